"""The numbers of a report as one tidy table; every printed table, page and figure is a view of it.

docs/guide/results_format.md shows how to make a report of your own from it.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import SupportsFloat

import numpy as np
import pandas as pd

from oodbench.errors import UserError, blaming, is_engine, plugin_hint, unknown, wrong_result
from oodbench.metrics import (
    LOSSES,
    PredictionMetric,
    checked,
    computed_names,
    is_higher_better,
    known_direction,
    metrics,
    needs,
    of_predictions,
)
from oodbench.report.statistics import each_mean_and_error
from oodbench.results.predictions import Predictions, predictions_of_runs
from oodbench.results.run_spec import BEFORE, CONSTANT, SCORE
from oodbench.results.tables import CELL, ROW, Tables, plugins_of, records_at, with_records
from oodbench.selection import selection_rules
from oodbench.selection.judge import Chosen, judge

METHOD, TRANSDUCTIVE, CEILING, REFERENCE = "method", "transductive", "ceiling", "reference"
"""The kinds of rows, besides the constant answer. Methods are ranked. Transductive methods, whose
predictions depend on other test inputs, have a separate table. Ceilings, which a sweep marks, and
references, which are not methods of the field, have no rank."""
APART = [TRANSDUCTIVE, REFERENCE, CEILING]
"""The kinds that columns of runs mark; the last mark of a row decides."""
SHARED = ["dataset_label", "test_environments", "trial"]
"""The columns on which the cells of different rows agree."""
COLUMNS = [*CELL, "environment", "metric", "value", "complete", "kind", "higher", "undefined"]
MEAN = "mean"
"""The environment of a mean over all test environments; its `test_environments` is empty."""


def cells(chosen: Chosen, metric: str | None = None) -> pd.DataFrame:
    """All numbers of a report, one per row, in the order of the sweep.

    `metric` replaces each dataset's own, and never changes what is chosen. Columns:

    - `dataset_label`, `label` (str): the dataset and the row of a table;
    - `test_environments` (tuple of str): the test set; `trial` (int): the repetition;
    - `environment` (str): the test environment; empty for a metric of the predictor itself;
    - `metric` (str): the metric shown; METRIC + `BEFORE`, its value before adaptation to test inputs; or a
      metric of the predictor itself;
    - `value` (float): the metric on the environment's `in` split at the chosen run and step, in the
      metric's own unit (a proportion in [0, 1]); the mean over draws that tie. NaN if nothing is chosen
      or a value was not finite;
    - `undefined` (str): why a complete trial has no value although its predictions are finite (the AUROC
      of one class), or empty. Undefined values are left out of means, ranks, wins, ties and losses;
    - `complete` (bool): whether all runs of the trial have ended, so that one is chosen;
    - `kind` (str): of the row: `method`, `transductive`, `reference`, `ceiling`, or `constant` for the best
      constant answer of the training environments;
    - `higher` (bool): whether higher is better.

    Datasets without a method are left out. Raises UserError for a metric that is not registered, and for
    one that a dataset did not record.
    """
    reported, higher = reported_metrics(chosen.tables, metric)
    runs = cell_runs(chosen.runs)
    grid = _grid(chosen, runs)
    parts = [
        _on_tests(chosen, grid, chosen.tied, reported),
        constant_values(runs, reported),
        _of_predictor(chosen, grid),
        _unadapted(chosen, grid, reported),
    ]
    table = pd.concat([part for part in parts if len(part)], ignore_index=True)
    methods = table.loc[table["kind"] == METHOD, "dataset_label"].unique()
    table = table[table["dataset_label"].isin(methods)]
    higher |= {m + BEFORE: up for m, up in higher.items()} | {"": True}
    known = {m: higher.get(m, is_higher_better(m)) for m in table["metric"].unique()}
    table = table.assign(higher=table["metric"].map(known).astype(bool))
    return table.reindex(columns=COLUMNS).fillna({"undefined": ""}).reset_index(drop=True)


def on_tests(table: pd.DataFrame) -> pd.DataFrame:
    """The cells of test environments: values of the metric that is shown."""
    return table[(table["environment"] != "") & ~is_before(table)]


def is_before(table: pd.DataFrame) -> "pd.Series[bool]":
    """Mask of the cells before adaptation."""
    names = set(table["metric"])
    return table["metric"].isin(
        name for name in names if name.removesuffix(BEFORE) in names - {name}
    )


def over_tests(table: pd.DataFrame) -> pd.DataFrame:
    """The mean of each row and trial over the test environments; complete if all its cells are.

    An environment on which no row is defined is left out; a row that is undefined on any other has no mean.
    Metrics of the predictor itself are averaged over test sets, and keep the empty environment.
    """
    key, environments = [*ROW, "environment", "metric", "trial"], table["environment"]
    table = table.assign(environment=np.where(environments == "", "", MEAN))
    code = table.groupby(key, sort=False).ngroup().to_numpy()
    made = table.drop_duplicates(key).assign(test_environments="")
    lacks, values = (table["undefined"] != "").to_numpy(), table["value"].to_numpy()
    counts = ~lacks
    if lacks.any():
        same = [environments, *(table[name] for name in [*SHARED, "metric"])]
        has = (table["complete"] & ~lacks).groupby(same).transform("any")
        counts |= has.to_numpy()
        is_lost = (np.bincount(code, lacks & counts) > 0) | (np.bincount(code, counts) == 0)
        made["undefined"] = table.groupby(code)["undefined"].max().where(is_lost, "").to_numpy()
    made["value"], _ = each_mean_and_error(values[counts], code[counts], len(made))
    made["complete"] = np.bincount(code, ~table["complete"].to_numpy(bool)) == 0
    return made


def scores(table: pd.DataFrame, kind: str = METHOD) -> pd.DataFrame:
    """The complete, defined test values of all rows of a kind, for `oodbench.report.statistics`.

    `dataset`, `label`, `environment` (with its test set if that has several), `trial`, `value`, `higher`,
    `metric`. A value that is not finite is NaN.
    """
    counts = table["complete"] & (table["undefined"] == "") & (table["kind"] == kind)
    values = on_tests(table[counts])
    sets = {t: "" if len(t) == 1 else f" of {'+'.join(t)}" for t in values["test_environments"]}
    of_sets = values["test_environments"].map(lambda t: sets[t])  # pandas misreads a map of tuples
    names = values["environment"] + of_sets.astype(str)
    values = values.assign(environment=names).rename(columns={"dataset_label": "dataset"})
    columns = ["dataset", "label", "environment", "trial", "value", "higher", "metric"]
    return values[columns].reset_index(drop=True)


def reported_metrics(
    tables: Tables, metric: str | None = None
) -> tuple[dict[str, str], dict[str, bool]]:
    """The metric shown for each dataset (empty until a run has started), and by metric whether higher is
    better.

    Raises UserError for a `metric` that is not registered, and for one that a dataset did not record.
    """
    runs, columns = tables.runs, ["dataset_label", "metric", "higher_is_better"]
    started = runs[columns].dropna(subset=["metric"]).drop_duplicates("dataset_label")
    main = dict(zip(started["dataset_label"], started["metric"], strict=True))
    directions = zip(started["metric"], started["higher_is_better"], strict=True)
    higher = {str(m): bool(up) for m, up in directions}
    if metric is not None:
        for dataset, recorded in recorded_metrics(tables).items():
            if dataset not in main or metric in recorded:
                continue
            if metric in computed_names():  # which other datasets have
                raise UserError(f"{metric} takes no predictions of {dataset}; see --dataset")
            names = sorted({*recorded, *computed_names(recorded)})
            raise unknown_metric(metric, names, tables, dataset)
        main = dict.fromkeys(main, metric)
        if metric not in higher:
            higher[metric] = known_direction(metric, plugins_of(tables))
    return {str(d): main.get(d, "") for d in runs["dataset_label"].unique()}, higher


def unknown_metric(
    metric: str, known: Collection[str], tables: Tables, dataset: str = ""
) -> UserError:
    """The error for a metric that is not among those `known` of the runs."""
    own = (tables.records["environment"].cat.codes == -1) & (tables.records["split"] != SCORE)
    if metric in set(tables.records.loc[own, "metric"]):
        return UserError(f"{metric} is a number of the predictor: tables show it in its own column")
    registered = metrics.find(metric)
    if registered is not None and not is_engine(registered.__module__):
        of = f" of {dataset}" if dataset else ""
        return UserError(
            f"the runs{of} did not record the metric {metric}, and ended runs are not trained again: "
            "launch with its plug-in into another directory (`--out`)"
        )
    hint = plugin_hint(plugins_of(tables))
    if metric.partition(":")[0] in selection_rules:
        hint = f" ({metric} is a selection rule, for --rule)"
    return unknown("metric", metric, known, dataset, hint)


def recorded_metrics(tables: Tables) -> dict[str, set[str]]:
    """The metrics that each dataset's runs recorded on environments."""
    records, runs = tables.records, tables.runs
    pairs = records.loc[records["environment"].cat.codes != -1, ["id", "metric"]].drop_duplicates()
    pairs = pairs.astype(object).merge(runs[["id", "dataset_label"]], on="id")
    known = pairs.groupby("dataset_label")["metric"].agg(set)
    return {str(d): known.get(d, set()) for d in runs["dataset_label"].unique()}


def cell_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """One run of each cell, in the sweep's order: the first with a constant answer, if any has one."""
    runs = runs.loc[~runs["helper"], [*CELL, *APART, "constant"]]
    lacking = runs["constant"].isna().to_numpy()
    return runs.iloc[np.argsort(lacking, kind="stable")].drop_duplicates(CELL).sort_index()


def _grid(chosen: Chosen, runs: pd.DataFrame) -> pd.DataFrame:
    """All cells of a table, filled or not: CELL, `complete`, `kind`."""
    rows = runs.groupby(ROW, sort=False)[[*APART]].any().reset_index()
    last_first = APART[::-1]
    rows["kind"] = np.select([rows[kind] for kind in last_first], last_first, METHOD)
    tests = runs[SHARED].drop_duplicates()
    grid = rows[[*ROW, "kind"]].merge(tests, on="dataset_label")
    table = grid.merge(chosen.chosen[[*CELL, "id"]], on=CELL, how="left")
    return table.assign(complete=table.pop("id").notna())


def _on_tests(
    chosen: Chosen, grid: pd.DataFrame, tied: pd.DataFrame, metrics: Mapping[str, str]
) -> pd.DataFrame:
    key = [*CELL, "environment"]
    values = test_values(chosen, tied, metrics)
    means = mean_values(values[~values["undefined"]], key).assign(known=True)
    tests = grid.assign(environment=grid["test_environments"]).explode("environment")
    tests["metric"] = tests["dataset_label"].map(metrics)
    table = tests.merge(means, on=key, how="left")
    undefined = table["complete"] & table.pop("known").isna()
    lacking = table["metric"].where(undefined, "")
    reasons = {metric: needs(metric) if metric else "" for metric in lacking.unique()}
    adapted = chosen.runs.loc[chosen.runs["adapt"].notna(), "label"]
    unadapted = lacking.str.endswith(BEFORE) & ~table["label"].isin(adapted)
    why = lacking.map(reasons)
    return table.assign(undefined=why.mask(unadapted, "needs a row that adapts"))


def test_values(chosen: Chosen, rows: pd.DataFrame, metrics: Mapping[str, str]) -> pd.DataFrame:
    """The values of runs on the `in` splits of their test environments.

    Each of `rows` has another `run` of `Chosen.runs`, its `id` and a `step`; `metrics` are by dataset.
    Returns `rows` with `environment`, `metric`, `value` and
    `undefined`, a row for each test environment. `value` is NaN if nothing was recorded, and `undefined`
    if the loss is finite nevertheless.
    """
    runs = chosen.runs.loc[rows["run"]]
    metric = runs["dataset_label"].map(metrics)
    asked = rows[["id", "step"]].assign(row=np.arange(len(rows)), metric_shown=metric.to_numpy())
    records = records_at(chosen.tables, asked, set(metric.unique()))
    meant = (records["split"] == "in") & (records["metric"] == records["metric_shown"])
    tests = rows.assign(row=np.arange(len(rows)), environment=runs["test_environments"].to_numpy())
    tests = tests.assign(metric=metric.to_numpy()).explode("environment")
    values = records.loc[meant, ["row", "environment", "value"]]
    table = tests.merge(values, on=["row", "environment"], how="left")
    undefined = table["value"].isna()
    if undefined.any():
        losses = records_at(chosen.tables, asked, LOSSES)
        there = losses[(losses["split"] == "in") & losses["value"].notna()]
        tested, finite = (
            pd.MultiIndex.from_frame(t[["row", "environment"]]) for t in (table, there)
        )
        undefined &= tested.isin(finite)
    return table.drop(columns="row").assign(undefined=undefined)


def mean_values(values: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """The mean `value` of each `key`, in the order of `values`; exact if all of them are equal."""
    code = values.groupby(key, sort=False).ngroup().to_numpy()
    made = values[key].drop_duplicates(ignore_index=True)
    numbers = values["value"].to_numpy(float)
    firsts = numbers[np.unique(code, return_index=True)[1]]
    means, _ = each_mean_and_error(numbers - firsts[code], code, len(made))
    return made.assign(value=firsts + means)


def constant_values(runs: pd.DataFrame, reported: Mapping[str, str]) -> pd.DataFrame:
    """The constant answer's values on the `in` splits of the test environments, in the columns of `cells`.

    `runs` are `cell_runs`. A trial is complete if one of its runs recorded the values. A dataset
    without such a run is left out.
    """
    trained = runs.loc[~runs["ceiling"], [*SHARED, "constant"]]
    known = trained[trained["constant"].notna()].drop_duplicates(SHARED)
    trials = trained[SHARED].drop_duplicates().merge(known, on=SHARED, how="left")
    rows = []
    for dataset, tests, trial, constant in trials.itertuples(index=False, name=None):
        metric = reported[dataset]
        values = constant.get(metric, {}) if isinstance(constant, dict) else {}
        for test in tests:
            value = values.get(test, {}).get("in")
            rows.append((dataset, CONSTANT, tests, trial, test, metric, value, value is not None))
    table = pd.DataFrame(rows, columns=COLUMNS[:8]).astype({"value": float, "complete": bool})
    there = table[table.groupby("dataset_label")["complete"].transform("any")]
    return there.assign(kind=CONSTANT)


def _of_predictor(chosen: Chosen, grid: pd.DataFrame) -> pd.DataFrame:
    records = chosen.tables.records
    own = (records["environment"].cat.codes == -1) & (records["split"] != SCORE)
    if not own.any():
        return pd.DataFrame()
    tables = Tables(chosen.runs, records[own])
    values = records_at(tables, chosen.tied[["id", "step", *CELL]])
    names = values[["dataset_label", "metric"]].drop_duplicates()
    key = [*CELL, "metric"]
    of_cells = grid.merge(names, on="dataset_label")
    return of_cells.merge(mean_values(values, key), on=key, how="left").assign(environment="")


def _unadapted(chosen: Chosen, grid: pd.DataFrame, reported: Mapping[str, str]) -> pd.DataFrame:
    runs = chosen.runs
    reported = {d: m for d, m in reported.items() if not m.endswith(BEFORE)}
    if not runs["adapt"].notna().any() or not reported:
        return pd.DataFrame()
    adapted = runs.loc[runs["adapt"].notna(), ROW].drop_duplicates()
    grid, tied = (table.merge(adapted, on=ROW) for table in (grid, chosen.tied))
    return _on_tests(chosen, grid, tied, {d: m + BEFORE for d, m in reported.items()})


def with_prediction_metrics(
    tables: Tables, rule: str | None, metrics: Iterable[str | None]
) -> Tables:
    """Add records of the `metrics` that are computed from kept predictions, at the steps that a rule
    chooses.

    A run that recorded a metric keeps its values. An environment whose task the metric does not take gets
    none. Raises UserError if no predictions are kept, and as `judge`.
    """
    for metric in dict.fromkeys(filter(None, metrics)):
        if computed := of_predictions(metric):
            made = _computed(tables, rule, metric, computed)
            tables = replace(tables, records=with_records(tables.records, made))
    return tables


@np.errstate(all="ignore")  # an undefined metric may divide by 0
def _computed(
    tables: Tables, rule: str | None, metric: str, computed: PredictionMetric
) -> list[tuple[object, ...]]:
    recorded = tables.records.loc[tables.records["metric"] == metric, "id"].unique()
    if len(recorded) == tables.records["id"].nunique():
        return []
    chosen = judge(tables, rule).tied.drop_duplicates(["id", "step"])
    chosen = chosen[~chosen["id"].isin(recorded)]
    read, found = predictions_of_runs(tables.runs), list[tuple[object, ...]]()
    for run_id, step in zip(chosen["id"].map(str), chosen["step"].map(int), strict=True):
        for environment, p in read(run_id, step).items():
            for split, mask in (("in", ~p.out), ("out", p.out)):
                if not mask.any() or p.kind not in computed.kinds:
                    continue
                logits, targets = p.logits[mask], p.targets[mask]
                part = replace(p, logits=logits, targets=targets, out=p.out[mask])
                value = _value(metric, computed, part)
                found.append((run_id, step, environment, split, metric, value, len(targets)))
    return found


def _value(metric: str, computed: PredictionMetric, part: Predictions) -> float:
    with blaming(f"the metric {metric}"):
        value: object = computed.of_predictions(part)
    if np.ndim(value) or not isinstance(value, SupportsFloat):  # type: ignore[arg-type]
        raise wrong_result("of_predictions", f"the metric {metric}", "a number", value)
    return checked(metric, float(value)) if math.isfinite(value) else math.nan
