"""From a results directory's frames to the numbers of a leaderboard.

`Leaderboard.frame` has a mean and its error in each row, `scores` the single values behind the means.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from oodbench.errors import PLUGIN_HINT, unknown
from oodbench.metrics import computed_names, is_higher_better, known_direction
from oodbench.notes import Note
from oodbench.report.numbers import number
from oodbench.report.statistics import LEAST, half_width, mean_and_error, plain_mean
from oodbench.report.tables.remarks import notes, remarks
from oodbench.results.run_spec import BEFORE, CONSTANT
from oodbench.results.tables import CELL, Tables, origins, plugins_of, pretraining, records_at
from oodbench.selection import Judged, find_rule, judged_by_all, rule_names, sees_test
from oodbench.terminal import counted

COLUMN = ["test_environments", "environment", "metric"]
"""The columns of a leaderboard's frame that make a column of a printed table."""
METHOD, TRANSDUCTIVE, CEILING, REFERENCE = "method", "transductive", "ceiling", "reference"
"""The kinds of rows besides the constant answer. Methods are ranked; transductive ones, whose
predictions depend on other test inputs, have a table of their own; ceilings, which a sweep marks, and
references, which are no methods of the field, have no rank."""
APART = (TRANSDUCTIVE, REFERENCE, CEILING)
"""The kinds that a column of that name marks among runs; of two that mark a row the later one counts."""
MEAN = "mean"
FROM = "from"
PRETRAINING = "pretraining"
UNADAPTED = "before"
"""The column of a row's mean before adaptation."""


@dataclass(frozen=True)
class Column:
    """A column of texts, which stands after the numbers."""

    name: str
    text: Callable[[Mapping[Any, Any]], str]
    """From a row's mean over the test environments, by the columns of `Leaderboard.frame`, to its cell."""
    note: str = ""
    """A sentence of the caption."""
    overall: bool = False
    """Whether tables over several datasets have it, too."""
    needs: str = "label"
    """The column of `Leaderboard.frame` that it is made from; a table without that one leaves it out."""


def count(row: Mapping[Any, Any]) -> str:
    """Return the number of a row's complete trials, and of the planned ones where some are missing."""
    n, planned = row["n"], row["planned"]
    return f"{n}" if n == planned else f"{n}/{planned}"


def before(row: Mapping[Any, Any]) -> str:
    """Return a row's mean before adaptation; empty of rows that do not adapt."""
    mean, stderr = row[UNADAPTED], row[f"{UNADAPTED}_stderr"]
    return "" if np.isnan(mean) else number(mean, stderr, row["metric"])


COLUMNS: tuple[Column, ...] = (
    Column(
        UNADAPTED,
        before,
        "before: the mean of the same runs at the same steps before adaptation.",
        needs=UNADAPTED,
    ),
    Column("n", count),
    Column(
        PRETRAINING,
        lambda row: str(row[PRETRAINING]) or "none",
        note="pretraining: the weights that the network begins with.",
        needs=PRETRAINING,
    ),
    Column(FROM, lambda row: str(row[FROM]), overall=True, needs=FROM),
)
"""The last columns of a table. All formats print what this list declares."""


@dataclass(frozen=True)
class Leaderboard:
    """The numbers of a table, and the sentences that belong beside them."""

    frame: pd.DataFrame
    """One number in each row: `dataset`, `label`, `test_environments` (joined by `+`), `environment`,
    `metric`, `mean` and `stderr` (over trials, ddof=1; NaN below LEAST trials), `n` (complete trials),
    `planned` (trials), `rule`, `kind` (METHOD, ..., or CONSTANT); where a dataset has a constant answer,
    `constant`: the row's verdict by `constant_verdicts`; beside a board, `from`: where the
    label's runs are from (`board`, `here` or both); and where rows adapt, `before` and `before_stderr`:
    the row's mean before that. The `environment` of a mean over all test environments is MEAN; that of a
    metric of the predictor itself is empty."""
    higher: Mapping[str, bool]
    """Whether a higher value is better, by metric."""
    notes: tuple[str, ...]
    """The sentences of a caption."""
    remarks: tuple[str, ...]
    """The remarks that a paper does not repeat: counts of runs, and the code that made them."""
    rule: str
    """The selection rule."""
    names: Mapping[str, str]
    """The registered name of each dataset; for features that of the pictures' dataset."""
    values: pd.DataFrame
    """The values behind the means: CELL, `environment`, `metric`, `value`, whether the trial is `complete`,
    and `kind`, of each row in each trial on each test environment."""
    findings: tuple[str, ...] = ()
    """The findings that a reader must not miss, a sentence each."""
    also: tuple[Column, ...] = ()
    """The columns of further metrics."""

    @property
    def columns(self) -> list[Column]:
        """The columns after the numbers."""
        return [*self.also, *(column for column in COLUMNS if column.needs in self.frame)]


def leaderboard_of(shown: Judged, metric: str | None = None) -> Leaderboard:
    """Return the `metric` on the `in` splits of the test environments, at the chosen runs and steps.

    `metric` is each dataset's own by default, and never changes what is chosen. A finding says where
    another rule would have given other numbers. Raises UserError for an unknown metric.
    """
    board = leaderboard_by_rule(shown, metric)
    return with_disagreement(board, by_other_rules(shown, metric))


def by_other_rules(shown: Judged, metric: str | None = None) -> list[Leaderboard]:
    """Return the leaderboards by the other rules, if neither rule sees the test environments."""
    if sees_test(shown.rule):
        return []
    names = [n for n in rule_names() if n != shown.rule and not sees_test(n)]
    others = judged_by_all(shown.frames, names).values()
    return [leaderboard_by_rule(one, metric) for one in others]


def leaderboard_by_rule(one: Judged, metric: str | None = None) -> Leaderboard:
    """Return the leaderboard by one rule alone, without others; raises as `leaderboard_of`."""
    frames, runs, rule = one.frames, one.runs, one.rule
    reported, directions = reported_metrics(frames, runs, metric)
    cells = _cells(one, runs)
    tested = _of_tests(one, cells, reported)
    tests = pd.concat([part for part in (tested, constant_values(runs, reported)) if len(part)])
    values = _per_trial(one, cells, tests)
    rows = []
    columns = ["dataset_label", "label", *COLUMN]
    numbers, complete = values["value"].to_numpy(float), values["complete"].to_numpy(bool)
    keys, of_group = _groups(values, columns)
    for key, places in zip(keys.itertuples(index=False, name=None), of_group, strict=True):
        whole = places[complete[places]]
        rows.append((*key, *mean_and_error(numbers[whole], LEAST), len(whole), len(places), rule))
    names = ["dataset", "label", *COLUMN, "mean", "stderr", "n", "planned", "rule"]
    frame = pd.DataFrame(rows, columns=names)
    frame["kind"] = kinds(runs, frame["dataset"], frame["label"])
    frame = frame[frame["dataset"].isin(frame.loc[frame["kind"] == METHOD, "dataset"])].copy()
    higher = {m: directions.get(m, is_higher_better(m)) for m in frame["metric"].unique() if m}
    if CONSTANT in set(frame["kind"]):
        verdicts = constant_verdicts(values, higher).rename(columns={"dataset_label": "dataset"})
        frame = frame.merge(verdicts, on=["dataset", "label", *COLUMN], how="left")
        frame = frame.fillna({"constant": ""})
    frame = _with_unadapted(frame, one, reported)
    where = origins(runs)
    if any("here" in origin for origin in where.values()):
        frame[FROM] = frame["label"].map(where).fillna("")
    if weights := pretraining(runs):
        named = zip(frame["dataset"], frame["label"], strict=True)
        frame[PRETRAINING] = [weights.get(row, "") for row in named]
    description = find_rule(rule, plugins=plugins_of(frames)).description
    declared = [column.note for column in COLUMNS if column.needs in frame]
    caption = (*notes(frames.runs, rule, description, higher), *_ties(one), *filter(None, declared))
    findings = (*frames.notes, *beside_constant(frame), *equal_rows(values))
    tests["kind"] = kinds(runs, tests["dataset_label"], tests["label"])
    firsts = runs.drop_duplicates("dataset_label").to_dict("records")
    return Leaderboard(
        frame=frame,
        higher=higher,
        notes=caption,
        remarks=remarks(runs),
        rule=rule,
        names={r["dataset_label"]: r["options"].get("of", r["dataset"]) for r in firsts},
        values=tests,
        findings=findings,
    )


def with_disagreement(shown: Leaderboard, others: Iterable[Leaderboard]) -> Leaderboard:
    """Return the board with a finding where a rule of `others` moves a row by more than both errors.

    A row without an error of its mean is passed over. The finding has both numbers of the row that moves
    furthest, counted in errors.
    """
    mine = _means(shown.frame)
    moved = []
    for other in others:
        rule = str(other.frame["rule"].iloc[0])
        both = mine.join(_means(other.frame).add_suffix("_other"), how="inner")
        both["gap"] = (both["mean"] - both["mean_other"]).abs()
        both["errors"] = both["stderr"] + both["stderr_other"]
        moved.append(both[both["gap"] > both["errors"]].assign(other=rule))
    table = pd.concat(moved) if moved else pd.DataFrame()
    if table.empty:
        return shown
    furthest = (table["gap"] / table["errors"]).to_numpy().argmax()
    (dataset, label), far = table.index.to_list()[furthest], table.iloc[furthest]
    here, there = (
        number(far[f"mean{s}"], far[f"stderr{s}"], far["metric"]) for s in ("", "_other")
    )
    cells = table.index.nunique() - 1
    more = f", and {cells} more cell{'s differ' if cells > 1 else ' differs'} so" if cells else ""
    finding = (
        f"The selection rule matters: {label} on {dataset} has {here} by {far['rule']} and {there} by "
        f"{far['other']}, a difference beyond both errors{more}."
    )
    verb = "differ" if cells else "differs"
    short = f"The selection rule matters: {counted(cells + 1, 'cell')} {verb} beyond both errors."
    return replace(shown, findings=(*shown.findings, Note(finding, short)))


def is_mean(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return whether each number of a leaderboard's frame is a mean over all test environments."""
    return (frame["environment"] == MEAN) & (frame["test_environments"] == "")


def _means(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the means over test environments by (dataset, label), of rows with a complete trial."""
    ranked = is_mean(frame) & (frame["n"] > 0) & (frame["kind"] == METHOD)
    columns = ["mean", "stderr", "metric", "rule"]
    return frame[ranked].set_index(["dataset", "label"])[columns]


def scores(board: Leaderboard, kind: str = METHOD) -> pd.DataFrame:
    """Return the values whose means a leaderboard shows, as `oodbench.report.statistics` takes them.

    `dataset`, `label`, `environment` (with its test set, where that is larger), `trial`, `value`,
    `higher`, `metric`; only of complete cells of rows of this kind: methods that are ranked together by
    default. A missing value is NaN.
    """
    values = board.values[board.values["complete"] & (board.values["kind"] == kind)]
    higher = [board.higher.get(metric, True) for metric in values["metric"]]
    table = values.assign(environment=_places(values), higher=higher)
    table = table.rename(columns={"dataset_label": "dataset"})
    names = ["dataset", "label", "environment", "trial", "value", "higher", "metric"]
    return table[names].reset_index(drop=True)


def _with_unadapted(frame: pd.DataFrame, one: Judged, reported: Mapping[str, str]) -> pd.DataFrame:
    """Return the leaderboard's frame with each row's mean before adaptation, where rows adapt."""
    runs = one.runs
    adapts = runs[runs["adapt"].notna()] if "adapt" in runs else runs[:0]
    if adapts.empty:
        return frame
    names = {dataset: metric + BEFORE for dataset, metric in reported.items()}
    tests = _of_tests(one, _cells(one, adapts), names).assign(environment=MEAN)
    values = _over_tests(tests)
    rows = []
    for key, group in values.groupby(["dataset_label", "label"], sort=False):
        complete = group.loc[group["complete"], "value"].to_numpy(float)
        rows.append((*key, *mean_and_error(complete, LEAST)))
    columns = ["dataset", "label", UNADAPTED, f"{UNADAPTED}_stderr"]
    return frame.merge(pd.DataFrame(rows, columns=columns), on=["dataset", "label"], how="left")


def _places(values: pd.DataFrame) -> "pd.Series[str]":
    """Return the names of test environments, followed by their test set where that has several."""
    sets = values["test_environments"].map(lambda tests: "" if len(tests) == 1 else "+".join(tests))
    return values["environment"] + sets.map(lambda tests: f" of {tests}" if tests else "")


def reported_metrics(
    frames: Tables, runs: pd.DataFrame, metric: str | None
) -> tuple[dict[str, str], dict[str, bool]]:
    """Return the metric shown for each dataset; and whether higher is better, by metric, shown or a
    dataset's own.

    Raises UserError for a `metric` that a dataset has no values of, or that is not registered.
    """
    started = runs.dropna(subset=["metric"]).drop_duplicates("dataset_label")
    main = dict(zip(started["dataset_label"], started["metric"], strict=True))
    higher = {
        str(m): bool(h) for m, h in zip(started["metric"], started["higher_is_better"], strict=True)
    }
    datasets = runs.set_index("id")["dataset_label"]
    if metric is not None:
        scored = frames.records[frames.records["environment"].notna()]
        pairs = scored[["id", "metric"]].drop_duplicates().astype(object)
        known = pairs["metric"].groupby(pairs["id"].map(datasets)).unique()
        for dataset in main:
            if metric not in known.get(dataset, ()):
                names = sorted({*known.get(dataset, ()), *computed_names()})
                raise unknown("metric", metric, names, dataset, PLUGIN_HINT)
        main = dict.fromkeys(main, metric)
        if metric not in higher:
            higher[metric] = known_direction(metric, plugins_of(frames))
    return {d: main.get(d, "") for d in datasets.unique()}, higher


def _cells(one: Judged, runs: pd.DataFrame) -> pd.DataFrame:
    """Return every cell that a table of these runs has a place for, in the order of the sweep.

    The columns are CELL, and whether the cell is `complete`: has a chosen run.
    """
    shown = runs[~runs["helper"]]
    tests = shown[["dataset_label", "test_environments", "trial"]].drop_duplicates()
    grid = shown[["dataset_label", "label"]].drop_duplicates().merge(tests, on="dataset_label")
    cells = grid.merge(one.chosen[[*CELL, "id"]], on=CELL, how="left")
    return cells.assign(complete=cells.pop("id").notna())


def _per_trial(one: Judged, cells: pd.DataFrame, tests: pd.DataFrame) -> pd.DataFrame:
    """Return the `value` of each row, COLUMN and trial, and whether the trial is `complete`.

    These are the values on test environments, `tests`, then their means, then the metrics of the
    predictor itself.
    """
    of_no_environment = one.frames.records[one.frames.records["environment"].isna()]
    known = replace(one.frames, records=of_no_environment)
    records = records_at(known, one.tied[["step", "id", *CELL]])
    names = records[["dataset_label", "metric"]].drop_duplicates()
    predictor = cells.merge(names, on="dataset_label")
    means = over_ties(records, [*CELL, "metric"])
    predictor = predictor.merge(means, on=[*CELL, "metric"], how="left")
    parts = [
        tests.assign(test_environments=tests["test_environments"].map("+".join)),
        _over_tests(tests.assign(environment=MEAN)),
        _over_tests(predictor.assign(environment="")),
    ]
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def _of_tests(one: Judged, cells: pd.DataFrame, reported: Mapping[str, str]) -> pd.DataFrame:
    """Return the cells with `environment`, `metric` and `value`, a row for each test environment."""
    key = [*CELL, "environment"]
    means = over_ties(one.test_values(one.tied, reported), key)
    tests = cells.assign(environment=cells["test_environments"]).explode("environment")
    tests["metric"] = tests["dataset_label"].map(reported)
    return tests.merge(means, on=key, how="left")


def _ties(one: Judged) -> list[str]:
    """Return a sentence on the cells in which several draws have the best score, if there are any."""
    draws = one.tied.groupby(CELL).size()
    several, cells = (draws > 1).sum(), counted(len(draws), "cell")
    text = f"In {several} of {cells} draws tie in validation: the value is their mean."
    return [text] * bool(several)


def over_ties(values: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return the mean `value` of each `key`, over the draws that tie; exact where all are equal."""
    made, places = _groups(values, key)
    numbers = values["value"].to_numpy(float)
    firsts = numbers[[of_group[0] for of_group in places]]
    return made.assign(value=firsts + [plain_mean(numbers[p] - numbers[p[0]]) for p in places])


def _over_tests(values: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over the test environments of each trial; complete if all of these are."""
    key = ["dataset_label", "label", "environment", "metric", "trial"]
    made, places = _groups(values, key)
    numbers, complete = values["value"].to_numpy(float), values["complete"].to_numpy(bool)
    made["value"] = [plain_mean(numbers[of_group]) for of_group in places]
    made["complete"] = [bool(complete[of_group].all()) for of_group in places]
    return made.assign(test_environments="")


def _groups(table: pd.DataFrame, key: list[str]) -> tuple[pd.DataFrame, list[Any]]:
    """Return the different values of `key` in the order of the table, and the rows that have each."""
    group = table.groupby(key, sort=False).ngroup().to_numpy()
    order = np.argsort(group, kind="stable")
    places = np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(table) else []
    return table[key].drop_duplicates(ignore_index=True), places


def kinds(runs: pd.DataFrame, dataset: pd.Series, label: pd.Series) -> list[str]:
    """Return the kind of each row of a table, given by its dataset and label."""
    marked_kinds: dict[tuple[str, str], str] = {}
    for kind in APART:
        marked = runs.loc[runs[kind], ["dataset_label", "label"]]
        marked_kinds |= dict.fromkeys(marked.itertuples(index=False, name=None), kind)
    return [
        CONSTANT if row[1] == CONSTANT else marked_kinds.get(row, METHOD)
        for row in zip(dataset, label, strict=True)
    ]


def constant_values(runs: pd.DataFrame, reported: Mapping[str, str]) -> pd.DataFrame:
    """Return the constant answer's values on the `in` splits of the test environments.

    The columns are `dataset_label`, `label`, `test_environments`, `trial`, `environment`, `metric`
    (the dataset's in `reported`), `value` and `complete`: whether a run of the trial has recorded
    it. A dataset without such a run is left out.
    """
    place = ["dataset_label", "test_environments", "trial"]
    trained = runs[~runs["helper"] & ~runs["ceiling"]]
    known = trained[trained["constant"].map(lambda constant: isinstance(constant, dict))]
    answers = known.drop_duplicates(place)[[*place, "constant"]]
    trials = trained[place].drop_duplicates().merge(answers, on=place, how="left")
    rows = []
    for dataset, tests, trial, constant in trials.itertuples(index=False, name=None):
        metric = reported[dataset]
        values = constant.get(metric, {}) if isinstance(constant, dict) else {}
        for test in tests:
            value = values.get(test, {}).get("in")
            rows.append((dataset, CONSTANT, tests, trial, test, metric, value, value is not None))
    names = ["dataset_label", "label", *place[1:], "environment", "metric", "value", "complete"]
    table = pd.DataFrame(rows, columns=names).astype({"value": float, "complete": bool})
    return table[table.groupby("dataset_label")["complete"].transform("any")]


def constant_verdicts(values: pd.DataFrame, higher: Mapping[str, bool]) -> pd.DataFrame:
    """Return whether rows are `better` than the constant answer, `worse` or `equal`, by place of the table.

    `values` comes from `_per_trial`; columns: `dataset_label`, `label`, COLUMN, `constant`. A row differs
    where the 95 % interval of its paired difference (Student's t over trials) does not contain 0; with one
    trial, which has no interval, where the difference is not 0, with two nowhere; and where it diverged.
    """
    place = ["dataset_label", *COLUMN]
    complete = values[values["complete"]]
    is_constant = complete["label"] == CONSTANT
    against = complete[is_constant].drop(columns=["label", "complete"])
    pairs = complete[~is_constant].merge(against, on=[*place, "trial"], suffixes=("", "_constant"))
    sign = pairs["metric"].map(lambda metric: 1.0 if higher.get(metric, True) else -1.0)
    gain = (sign * (pairs["value"] - pairs["value_constant"])).round(12).fillna(-np.inf)
    of_row = gain.groupby([pairs[name] for name in ("dataset_label", "label", *COLUMN)], sort=False)
    table = of_row.agg(["mean", "std", "size"])
    half = half_width(table["size"]) * table["std"] / np.sqrt(table["size"])
    half = half.mask(table["size"] == 1, 0.0)
    better = table["mean"] - half > 0
    worse = (table["mean"] + half < 0) | ~np.isfinite(table["mean"])
    table["constant"] = np.select([better, worse], ["better", "worse"], "equal")
    return table[["constant"]].reset_index()


def beside_constant(frame: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence for each dataset on which no complete method does better than the constant answer.

    `frame` is that of a leaderboard.
    """
    ranked = is_mean(frame) & (frame["kind"] == METHOD) & (frame["n"] == frame["planned"])
    sentences: list[str] = []
    compared = frame[ranked & (frame["constant"] != "")] if "constant" in frame else frame[:0]
    for dataset, rows in compared.groupby("dataset", sort=False):
        verdicts = set(rows["constant"])
        if "better" not in verdicts:
            verb = "differs from" if verdicts == {"equal"} else "is better than"
            finding = f"No row of {dataset} {verb} the constant answer"
            if verdicts == {"equal"} and rows["planned"].max() == 2:
                finding = (
                    f"Two trials are too few to tell rows of {dataset} from the constant answer"
                )
            how = "95 % intervals of the paired differences over trials"
            sentences.append(Note(f"{finding} ({how}).", f"{finding}."))
    return tuple(sentences)


def beats_constant(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return whether each number of a leaderboard's frame is better than the constant answer's, if any."""
    if "constant" not in frame:
        return pd.Series(True, frame.index)
    return ~frame["constant"].isin(("equal", "worse"))


def equal_rows(values: pd.DataFrame, baseline: str = "ERM") -> tuple[str, ...]:
    """Return a sentence for each group of rows whose values are equal in every environment and trial.

    `values` comes from `_per_trial`.
    """
    tested = values[(values["test_environments"] != "") & (values["label"] != CONSTANT)]
    places = ["dataset_label", "test_environments", "environment", "trial"]
    wide = tested.pivot(index=places, columns="label", values="value")
    groups: dict[bytes, list[str]] = {}
    for label in tested["label"].unique():
        if wide[label].notna().any():
            groups.setdefault(wide[label].to_numpy(float).tobytes(), []).append(str(label))
    sentences = []
    for labels in groups.values():
        if len(labels) > 1:
            first = baseline if baseline in labels else labels[0]
            others = ", ".join(label for label in labels if label != first)
            text = f"{others}: equal to {first} on every run."
            sentences.append(
                Note(text, f"{counted(len(labels), 'row')} equal on every run: {first}, ...")
            )
    return tuple(sentences)
