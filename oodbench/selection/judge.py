"""From records to the chosen (run, step) of every cell, by rules that see only what they may.

A cell is one trial of one row of a table on one test set. Its candidates are its runs (one per draw) at
every recorded step. A rule scores a run by its evidence, the only records that the rule gets. Tables
average draws that tie; the first of them is the chosen one. DomainBed's rules differ (arXiv:2007.01434,
section 3, and its code): the last draw wins a tie, and the oracle sees a run's last step only.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from oodbench.errors import UserError, blaming
from oodbench.metrics import known_direction
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_spec import COMPLETE, SCORE
from oodbench.results.tables import CELL, KINDS, Tables, only, plugins_of, subset
from oodbench.selection import (
    Rule,
    evidence_by,
    find_rule,
    rule_names,
    score_by,
    shares,
    unserved,
    usual,
)

Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Chosen:
    """What a rule chooses among the runs of a sweep: the basis of every table, page and figure."""

    tables: Tables
    rule: Rule
    runs: pd.DataFrame
    """The runs; on a dataset without other rows, transductive and reference rows count as methods."""
    candidates: pd.DataFrame
    """Every step of every judged run, the best first: CELL, `run` (its label in the index of `runs`), `id`,
    `draw`, `step`, `score` (of the rule's metric, else of the dataset's), `complete`.

    Ties go to the lowest draw, then to the earliest step; NaN is the worst score. A run can be judged once
    it has ended, and all runs of its evidence. A cell is `complete`, and has a choice, once all of its runs
    can be judged."""

    @cached_property
    def tied(self) -> pd.DataFrame:
        """Every run with the best score of its complete cell, at the run's first step with that score.

        CELL, `run`, `id`, `draw`, `step`, `score`, and the run's `weight` in the mean over ties that tables
        show.
        """
        best = self.candidates[self.candidates["complete"]].drop(columns="complete")
        best = best.drop_duplicates("run", ignore_index=True)
        cell = best.groupby(CELL).ngroup()
        is_best = best["score"] == best.groupby(cell)["score"].transform("first")
        kept = is_best | ~cell.duplicated()  # NaN is not equal to itself
        cell = cell[kept].sort_values(kind="stable")
        weight = 1 / cell.groupby(cell).transform("size")
        return best.loc[cell.index].assign(weight=weight).reset_index(drop=True)

    @cached_property
    def chosen(self) -> pd.DataFrame:
        """The chosen run and step of every complete cell: the first of its `tied`."""
        return self.tied.drop_duplicates(CELL, ignore_index=True)

    def on(self, datasets: Collection[str]) -> "Chosen":
        """The choices on these datasets."""
        runs, candidates = (
            table[table["dataset_label"].isin(datasets)] for table in (self.runs, self.candidates)
        )
        return Chosen(subset(self.tables, runs), self.rule, runs, candidates)


def judge(tables: Tables, rule: str | None = None) -> Chosen:
    """What a rule, the `usual` one by default, chooses among the runs.

    Raises UserError for an unknown rule, and if the rule cannot judge any run.
    """
    judging = find_rule(rule or usual(tables), plugins=plugins_of(tables))
    runs = tables.runs
    marked = [kind for kind in KINDS if kind != "ceiling" and runs[kind].any()]
    if marked:
        others = runs.loc[~runs[[*KINDS]].any(axis=1), "dataset_label"].unique()
        has_others = runs["dataset_label"].isin(others)
        if not has_others.all():
            runs = runs.assign(**{kind: runs[kind] & has_others for kind in marked})
    return Chosen(tables, judging, runs, _candidates(tables, judging, runs))


def judge_by_all(tables: Tables, names: Iterable[str]) -> dict[str, Chosen]:
    """What each of these rules chooses; rules that cannot judge any run are left out."""
    found = {}
    for name in names:
        with suppress(UserError):
            found[name] = judge(tables, name)
    return found


def judge_each(tables: Tables, names: Collection[str]) -> Iterator[tuple[str, Chosen]]:
    """Yield each dataset with what each of these rules chooses on it; rules that can judge no run on it are
    left out.
    """
    for dataset in map(str, tables.runs["dataset_label"].unique()):
        for chosen in judge_by_all(only(tables, [dataset]), names).values():
            if len(chosen.candidates):
                yield dataset, chosen


def choose(tables: Tables, rule: str | None = None) -> pd.DataFrame:
    """`Chosen.chosen` by a rule; raises as `judge`."""
    return judge(tables, rule).chosen


def unchosen_predictions(results: Directory) -> list[Path]:
    """The files of kept predictions at steps that no rule chooses; empty until all runs have ended.

    Raises UserError if the sweep's rule is not registered, as its choices are then unknown.
    """
    files = list(results.path.glob("kept/*/predictions/*.npz"))
    tables = read_results(results) if files else None
    if tables is None or not tables.runs["state"].isin(COMPLETE).all():
        return []
    shown: set[tuple[str, str]] = set()
    rule = find_rule(usual(tables), plugins=plugins_of(tables))
    for chosen in judge_by_all(tables, [*rule_names(), rule.name]).values():
        ids = chosen.tied["id"]
        shown |= {*zip(ids, chosen.tied["step"].map(str), strict=True)}
        shown |= {(run_id, "examples") for run_id in ids}
    return [file for file in files if (file.parent.parent.name, file.stem) not in shown]


def _candidates(tables: Tables, rule: Rule, runs: pd.DataFrame) -> pd.DataFrame:
    if rule.metric is not None:
        runs = _judged_by(rule.metric, tables, runs)
    scores = tables.scores[tables.scores["rule"] == rule.full_name]
    numbered = runs[["id"]].assign(run=np.arange(len(runs)))
    frozen = scores.merge(numbered, on="id")[["run", "step", "score"]]
    live = ~runs["frozen"].eq(True).to_numpy()
    evidence = _evidence(rule, runs, live, frozen)
    ready = _ready(runs, evidence, live, frozen)
    table = frozen
    if live.any():
        with blaming(f"selection rule {rule.full_name}"):
            records = rule.records(tables)
        scores = _scores(rule, records, evidence, runs)
        table = pd.concat([scores[live[scores["run"]]], frozen], ignore_index=True)
    table = table[(ready & ~runs["helper"].to_numpy())[table["run"]]]
    cell = runs.groupby(CELL).ngroup()
    complete = (~cell.isin(cell[~ready])).to_numpy()
    found: pd.DataFrame = runs[[*CELL, "id", "draw"]].iloc[table["run"]].reset_index(names="run")
    found["step"] = table["step"].to_numpy(np.int64)
    found["score"] = table["score"].to_numpy()
    found["complete"] = complete[table["run"]]
    cost = found["score"] * np.where(_higher_is_better(runs), -1, 1)[table["run"]]
    # the id decides only where runs share cell and draw
    shared = runs[["draw"]].assign(cell=cell).duplicated().any()
    last = found["id"].rank() if shared else np.zeros(len(found))
    order = np.lexsort((last, found["step"], found["draw"], cost))  # NaN comes last
    return found.iloc[order].reset_index(drop=True)


def _higher_is_better(runs: pd.DataFrame) -> Booleans:
    return ~runs["higher_is_better"].eq(False).to_numpy()  # missing for planned runs alone


def _evidence(rule: Rule, runs: pd.DataFrame, live: Booleans, frozen: pd.DataFrame) -> pd.DataFrame:
    """The evidence of the live runs: `run` and `from`, positions in `runs` (`from` is -1 if the sweep lacks
    that run), the id `source`, `environment`, `split` and the run's `metric`.

    Raises UserError if the rule cannot judge any run. Frozen runs have scores by the board's rules; only
    other rules read their evidence.
    """
    if frozen.empty and not live.any():
        raise unserved(rule)
    alone = len(frozen) > 0 and (rule.judges_alone or not live.any())
    rows = pd.RangeIndex(len(runs)).map(str)
    # a run that stands in several rows is judged in each of them
    asked = runs.assign(id=rows)[live if alone else slice(None)]
    found: pd.DataFrame = evidence_by(rule, asked)
    run, source = (rows.get_indexer(pd.Index(found[name])) for name in ("id", "source"))
    found = found.assign(**{"run": run, "from": source})[run >= 0].reset_index(drop=True)
    if not alone and runs["metric"].notna().any() and (found["from"] < 0).all():
        raise unserved(rule)
    sources = pd.Series(runs["id"].to_numpy()).reindex(found["from"]).to_numpy()
    return pd.DataFrame(
        found.assign(source=sources, metric=runs["metric"].to_numpy()[found["run"]])
    )


def _ready(
    runs: pd.DataFrame, evidence: pd.DataFrame, live: Booleans, frozen: pd.DataFrame
) -> Booleans:
    """Whether each run can be judged: the run has evidence, and it and its evidence's runs have ended."""
    judged = np.zeros(len(runs), dtype=bool)
    judged[frozen["run"]] = True
    ended = runs["state"].isin(COMPLETE).to_numpy() & (live | judged)
    judged[evidence["run"]] = True
    judged[evidence.loc[(evidence["from"] < 0) | ~ended[evidence["from"]], "run"]] = False
    return ended & judged


def _judged_by(metric: str, tables: Tables, runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with `metric` as their own.

    Raises UserError for a dataset whose runs did not record it, and as `known_direction`.
    """
    records = tables.records[tables.records["split"] != SCORE]
    recorded = records.loc[records["metric"] == metric, "id"].unique()
    metrics = runs["metric"].where(runs["metric"].isna(), metric)
    started = runs[runs["id"].isin(records["id"].unique())]
    for dataset, of_dataset in started.groupby("dataset_label", sort=False):
        if not of_dataset["id"].isin(recorded).any():
            raise UserError(f"selection by {metric}: the runs of {dataset} have not recorded it")
    is_main = runs["metric"] == metric
    if is_main[runs["metric"].notna()].all():
        return runs
    higher = runs["higher_is_better"].where(is_main, known_direction(metric, plugins_of(tables)))
    return runs.assign(metric=metrics, higher_is_better=higher)


def _scores(
    rule: Rule, records: pd.DataFrame, evidence: pd.DataFrame, runs: pd.DataFrame
) -> pd.DataFrame:
    """`run` (its position in `runs`), `step` and `score` of every recorded step of runs with evidence."""
    sets = evidence.groupby("run").size().reset_index(name="sets")
    sets["code"] = records["id"].cat.categories.get_indexer(pd.Index(runs["id"]))[sets["run"]]
    steps = records[["step"]].assign(code=records["id"].cat.codes)
    steps = steps[(steps != steps.shift()).any(axis=1)].drop_duplicates()
    steps = steps.merge(sets, on="code").sort_values(["run", "step"], ignore_index=True)
    steps["count"] = steps.groupby("run")["step"].transform("size")
    steps["higher"] = _higher_is_better(runs)[steps["run"]]
    table = _seen(steps, records, evidence)
    _require_records(rule, runs, records, evidence, table.dropna(subset=["count"]))
    scores = np.empty(len(steps))
    starts = steps["sets"].cumsum() - steps["sets"]
    shapes: Any = steps.groupby(["count", "sets", "higher"])
    for (count, sets, higher), alike in shapes:
        rows = (starts[alike.index].to_numpy()[:, None] + np.arange(sets)).reshape(-1, count, sets)
        values, weights = (table[name].to_numpy()[rows] for name in ("value", "weight"))
        scores[alike.index] = score_by(rule, values, weights, higher).ravel()
    return steps[["run", "step"]].assign(score=scores)


def _seen(steps: pd.DataFrame, records: pd.DataFrame, evidence: pd.DataFrame) -> pd.DataFrame:
    """`run`, `value`, `count` and `weight` of each row of the evidence at each step; NaN if not
    recorded.
    """
    asked, codes = evidence[["run"]].copy(), {}
    for name in ("id", "environment", "split", "metric"):
        column = pd.Index(evidence["source" if name == "id" else name])
        asked[name] = records[name].cat.categories.get_indexer(column)
        codes[name] = records[name].cat.codes.to_numpy()
    useful = [
        np.isin(codes[n], asked.loc[asked[n] >= 0, n]) for n in ("environment", "split", "metric")
    ]
    found = records[["step", "value", "count"]].assign(**codes)[np.logical_and.reduce(useful)]
    # a run that has not ended may have lines twice, and each would have half the weight
    found = found.drop_duplicates([*codes, "step"], keep="last")
    table = (
        steps[["run", "step"]].merge(asked, on="run").merge(found, on=[*codes, "step"], how="left")
    )
    is_there, weights = table["count"].notna(), np.ones(len(table))
    environments = table[is_there].groupby(["run", "step", "environment"]).ngroup()
    weights[is_there] = shares(table.loc[is_there, "count"].to_numpy(), environments.to_numpy())
    return table.assign(weight=weights)


def _require_records(
    rule: Rule,
    runs: pd.DataFrame,
    records: pd.DataFrame,
    evidence: pd.DataFrame,
    seen: pd.DataFrame,
) -> None:
    """Raise UserError for a dataset whose runs have records, but not those that the rule needs."""
    dataset, labels = pd.factorize(runs["dataset_label"])
    lacks = ~np.isin(dataset[evidence["run"]], dataset[seen["run"].unique()])
    asked = evidence[lacks & evidence["source"].isin(records["id"].unique())]
    if len(asked):
        first = asked.iloc[0]
        raise UserError(
            f"selection rule {rule.name}: the runs of {labels[dataset[first['run']]]} have no record of "
            f"its evidence, such as the split '{first['split']}' of '{first['environment']}'"
        )
