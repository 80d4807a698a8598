"""From a results directory's frames to the numbers of a leaderboard. Imports no torch.

`leaderboard` has a mean and its error a row, `scores` the single values behind them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pandas as pd

from oodbench.errors import UserError, unknown
from oodbench.metrics import is_higher_better
from oodbench.report.numbers import number
from oodbench.report.references import METHOD, beside_constant, constant_values, kinds
from oodbench.report.statistics import mean_and_error
from oodbench.results.frames import CELL, Frames, origins, records_at, sweep_runs, test_values
from oodbench.results.provenance import code
from oodbench.results.run_spec import COMPLETE, State
from oodbench.selection import choose, find_rule, rule_names, sees_test, usual

COLUMN = ["test_environments", "environment", "metric"]
"""The columns of a leaderboard's frame that make a column of a printed table."""
AVERAGE = "average"
PLACES = ["label", "dataset_label", "test_environments", "trial"]
"""The columns of a run by which a remark names it."""
NAMED = 3
"""The number of runs of a state that a remark names."""


@dataclass(frozen=True)
class Leaderboard:
    """The numbers of a table, and the sentences that belong beside them."""

    frame: pd.DataFrame
    """One number in each row: `dataset`, `label`, `test_environments` (joined by `+`), `environment`,
    `metric`, `mean` and `stderr` (over trials, ddof=1; NaN for one trial), `n` (complete trials),
    `planned` (trials), `rule`, `kind` (see `oodbench.report.references`). The mean over all test
    environments has the environment `average`; metrics of the predictor itself have none."""
    higher: Mapping[str, bool]
    """Whether a higher value is better, by metric."""
    notes: tuple[str, ...]
    """The sentences of a caption."""
    remarks: tuple[str, ...]
    """The remarks that a paper does not repeat: counts of runs, and the code that made them."""
    findings: tuple[str, ...] = ()
    """The findings that a reader must not miss, a sentence each."""
    shifts: Mapping[str, str] = field(default_factory=dict)
    """The kind of each dataset's shift, where that is recorded."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each label's runs are from, of a table beside a board: `board`, `here` or both."""


def leaderboard(frames: Frames, rule: str | None = None, metric: str | None = None) -> Leaderboard:
    """The test environments' `metric` on their `in` splits at what `rule` chose.

    `rule` is the sweep's by default (`selection.usual`), `metric` each dataset's own; a metric never
    changes what is chosen. A finding says where another rule would have given other numbers. Raises
    UserError for an unknown rule or metric.
    """
    own = rule or usual(frames)
    shown = leaderboard_by_rule(frames, own, metric)
    others = []
    for other in rule_names():
        if other == own or sees_test(other) or sees_test(own):
            continue
        with suppress(UserError):  # a rule that the sweep cannot serve
            others.append(leaderboard_by_rule(frames, other, metric))
    return with_disagreement(shown, others)


def leaderboard_by_rule(frames: Frames, rule: str, metric: str | None = None) -> Leaderboard:
    """The leaderboard by one rule alone, without a look at the others; raises as `leaderboard` does."""
    chosen = choose(frames, rule)
    runs = sweep_runs(frames)
    reported, directions = reported_metrics(frames, runs, metric)
    own = _of_tests(frames, _grid(runs), chosen, reported)
    tests = pd.concat([part for part in (own, constant_values(runs, reported)) if len(part)])
    values = _per_trial(frames, _grid(runs), chosen, tests)
    rows = []
    for key, group in values.groupby(["dataset_label", "label", *COLUMN], sort=False):
        mean, stderr = mean_and_error(group.loc[group["complete"], "value"].to_numpy(float))
        rows.append((*key, mean, stderr, int(group["complete"].sum()), len(group), rule))
    names = ["dataset", "label", *COLUMN, "mean", "stderr", "n", "planned", "rule"]
    frame = pd.DataFrame(rows, columns=names)
    frame["kind"] = kinds(runs, frame["dataset"], frame["label"])
    frame = frame[frame["dataset"].isin(frame.loc[frame["kind"] == METHOD, "dataset"])]
    higher = {m: directions.get(m, is_higher_better(m)) for m in frame["metric"].unique() if m}
    shifts = {}
    if "shift" in runs:
        known = runs.dropna(subset=["shift"])
        shifts = dict(zip(known["dataset_label"], known["shift"], strict=True))
    table = tests.rename(columns={"dataset_label": "dataset"})
    table["environment"] = _places(table)
    table["kind"] = kinds(runs, table["dataset"], table["label"])
    findings = beside_constant(table, higher)
    notes, remarks = _notes(frames.runs, rule, higher), _remarks(runs)
    findings = (*frames.notes, *findings)
    return Leaderboard(frame, higher, notes, remarks, findings, shifts, origins(runs))


def with_disagreement(shown: Leaderboard, others: Iterable[Leaderboard]) -> Leaderboard:
    """The board with a finding where a rule of `others` moves a row by more than both errors.

    A rule that sees the test environments is passed over, and so is a row without an error of its
    mean. The finding has both numbers of the row that moves furthest, counted in errors.
    """
    mine = _averages(shown.frame)
    moved = []
    for other in others:
        rule = str(other.frame["rule"].iloc[0])
        if sees_test(rule) or sees_test(shown.frame["rule"].iloc[0]):
            continue
        both = mine.join(_averages(other.frame), rsuffix="_other", how="inner")
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
    rows = table.index.nunique() - 1
    more = f", and {rows} more row{'s differ' if rows > 1 else ' differs'} so" if rows else ""
    finding = (
        f"The selection rule matters: {label} on {dataset} has {here} by {far['rule']} and {there} by "
        f"{far['other']}, a difference beyond both errors{more}."
    )
    return replace(shown, findings=(*shown.findings, finding))


def is_average(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Which numbers of a leaderboard's frame are means over all test environments."""
    return (frame["environment"] == AVERAGE) & (frame["test_environments"] == "")


def _averages(frame: pd.DataFrame) -> pd.DataFrame:
    """The averages over test environments by (dataset, label), of rows with a complete trial."""
    own = is_average(frame) & (frame["n"] > 0) & (frame["kind"] == METHOD)
    columns = ["mean", "stderr", "metric", "rule"]
    return frame[own].set_index(["dataset", "label"])[columns]


def scores(frames: Frames, rule: str | None = None, metric: str | None = None) -> pd.DataFrame:
    """The values whose means a leaderboard shows, as `oodbench.report.statistics` takes them.

    `dataset`, `label`, `environment` (with its test set, where that is larger), `trial`, `value`,
    `higher`, `metric`; only of complete cells of methods that are ranked together. A missing value is NaN.
    """
    chosen = choose(frames, rule)
    runs = sweep_runs(frames)
    reported, directions = reported_metrics(frames, runs, metric)
    own = runs[~runs["ceiling"] & ~runs["transductive"]]
    values = _of_tests(frames, _grid(own), chosen, reported)
    values = values[values["complete"]]
    higher = [directions.get(m, is_higher_better(m)) for m in values["metric"]]
    table = values.assign(environment=_places(values), higher=higher)
    table = table.rename(columns={"dataset_label": "dataset"})
    names = ["dataset", "label", "environment", "trial", "value", "higher", "metric"]
    return table[names].reset_index(drop=True)


def _places(values: pd.DataFrame) -> "pd.Series[str]":
    """The test environments, each with its test set where that is larger."""
    sets = values["test_environments"].map(lambda tests: "" if len(tests) == 1 else "+".join(tests))
    return values["environment"] + sets.map(lambda tests: f" of {tests}" if tests else "")


def reported_metrics(
    frames: Frames, runs: pd.DataFrame, metric: str | None
) -> tuple[dict[str, str], dict[str, bool]]:
    """The metric that is shown of each dataset, and the direction of the datasets' own.

    Raises UserError for a `metric` that a dataset has no values of.
    """
    started = runs.dropna(subset=["metric"]).drop_duplicates("dataset_label")
    main = dict(zip(started["dataset_label"], started["metric"], strict=True))
    higher = {
        str(m): bool(h) for m, h in zip(started["metric"], started["higher_is_better"], strict=True)
    }
    datasets = runs.set_index("id")["dataset_label"]
    if metric is not None:
        scored = frames.metrics[frames.metrics["environment"].notna()]
        pairs = scored[["id", "metric"]].drop_duplicates().astype(object)
        known = pairs["metric"].groupby(pairs["id"].map(datasets)).unique()
        for dataset in main:
            if metric not in known.get(dataset, ()):
                raise unknown("metric", metric, sorted(known.get(dataset, ())), dataset)
        main = dict.fromkeys(main, metric)
    return {d: main.get(d, "") for d in datasets.unique()}, higher


def _grid(runs: pd.DataFrame) -> pd.DataFrame:
    """Every cell that a table of these runs has a place for, in the order of the sweep."""
    own = runs[~runs["helper"]]
    tests = own[["dataset_label", "test_environments", "trial"]].drop_duplicates()
    return own[["dataset_label", "label"]].drop_duplicates().merge(tests, on="dataset_label")


def _per_trial(
    frames: Frames, grid: pd.DataFrame, chosen: pd.DataFrame, tests: pd.DataFrame
) -> pd.DataFrame:
    """dataset_label, label, *COLUMN, trial, `value` and whether the trial is `complete`.

    `tests` are the values on test environments, to which it adds their means and the predictor's own.
    """
    records = records_at(frames, chosen[[*CELL, "id", "step"]])
    own = records[records["environment"].isna()][[*CELL, "metric", "value"]]
    cells = _with_completeness(grid, chosen)
    names = own[["dataset_label", "metric"]].drop_duplicates()
    predictor = cells.merge(names, on="dataset_label")
    predictor = predictor.merge(own, on=[*CELL, "metric"], how="left").assign(environment="")

    parts = [
        tests.assign(test_environments=tests["test_environments"].map("+".join)),
        _over_tests(tests.assign(environment=AVERAGE)),
        _over_tests(predictor),
    ]
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def _of_tests(
    frames: Frames, grid: pd.DataFrame, chosen: pd.DataFrame, reported: Mapping[str, str]
) -> pd.DataFrame:
    """CELL, `environment`, `metric`, `value`, `complete`: a row for every place of the grid."""
    scored = test_values(frames, chosen[[*CELL, "id", "step"]], reported)
    cells = _with_completeness(grid, chosen)
    tests = cells.assign(environment=cells["test_environments"]).explode("environment")
    tests["metric"] = tests["dataset_label"].map(reported)
    key = [*CELL, "environment", "metric"]
    return tests.merge(scored[[*key, "value"]], on=key, how="left")


def _with_completeness(grid: pd.DataFrame, chosen: pd.DataFrame) -> pd.DataFrame:
    cells = grid.merge(chosen[[*CELL, "id"]], on=CELL, how="left")
    cells["complete"] = cells.pop("id").notna()
    return cells


def _over_tests(values: pd.DataFrame) -> pd.DataFrame:
    """One value a trial: the mean over test environments, complete if all of them are."""
    key = ["dataset_label", "label", "environment", "metric", "trial"]
    groups = values.groupby(key, sort=False)
    means = groups.agg(
        value=("value", lambda v: v.mean(skipna=False)), complete=("complete", "all")
    )
    return means.reset_index().assign(test_environments="")


def _notes(runs: pd.DataFrame, rule: str, higher: Mapping[str, bool]) -> tuple[str, ...]:
    trials = runs["trial"].nunique()
    error = "mean ± standard error over trials (ddof=1); " if trials > 1 else ""
    directions = [f"{m}: {'higher' if up else 'lower'} is better" for m, up in higher.items()]
    return (
        f"Selection {rule}: {find_rule(rule).description}.",
        f"Values: in split of the test environments; {error}"
        f"trials: {trials}, hparam draws: {_draws(runs)}.",
        *([f"{'; '.join(directions)}."] if directions else []),
    )


def _remarks(runs: pd.DataFrame) -> tuple[str, ...]:
    states = runs["state"].value_counts()
    ended = [*COMPLETE, State.FAILED]
    if State.BROKEN in states:
        ended.append(State.BROKEN)
    counts = [f"{states.get(s, 0)} {s}" for s in ended]
    missing = len(runs) - sum(states.get(s, 0) for s in ended)
    codes = {code(p) for p in runs["provenance"] if p}
    return (
        f"Runs: {', '.join(counts)}, {missing} missing, of {len(runs)}. "
        "n: trials whose runs all ended; a row with n such as 4/5 is incomplete and not ranked.",
        *_named(runs),
        *_repeated(runs),
        f"Code: {'; '.join(sorted(codes)) or 'none yet'}.",
        *_mixed(runs),
    )


def _named(runs: pd.DataFrame) -> list[str]:
    """The first runs that diverged, and the first that are broken with what is wrong, by name."""
    found = []
    for state, meaning in (
        (State.DIVERGED, "counted with what they recorded"),
        (State.BROKEN, "counted nowhere"),
    ):
        own = runs.loc[runs["state"] == state, [*PLACES, "draw", "error"]]
        names = [
            f"{label} on {dataset} (test {'+'.join(tests)}, trial {trial}, draw {draw})"
            + (f", as {error}" if error else "")
            for label, dataset, tests, trial, draw, error in own[:NAMED].itertuples(
                index=False, name=None
            )
        ]
        more = [f"{len(own) - NAMED} more"] if len(own) > NAMED else []
        if names:
            between = "; " if state is State.BROKEN else ", "
            found.append(f"{state.capitalize()}, {meaning}: {between.join([*names, *more])}.")
    return found


def _repeated(runs: pd.DataFrame) -> list[str]:
    """The rows with several runs of one draw, as launches of an edited sweep leave them behind."""
    twice = runs[runs.duplicated([*CELL, "draw"], keep=False)]
    names = twice[["label", "dataset_label"]].drop_duplicates().itertuples(index=False, name=None)
    rows = [f"{label} on {dataset}" for label, dataset in names]
    if not rows:
        return []
    return [
        f"Several settings under one name: {', '.join(rows)}. The rule chooses among all of them, which "
        "other rows cannot; a new label or results directory keeps them apart."
    ]


def _mixed(runs: pd.DataFrame) -> list[str]:
    """The settings in which runs that count were trained differently, which can move the last bits."""
    made = [p for p in runs.loc[runs["state"].isin(COMPLETE), "provenance"] if p]
    words = {"True": "yes", "False": "no"}
    found = []
    for name in ("threads", "torch", "device", "vectorized"):
        values = [str(p[name]).partition(":")[0] for p in made if name in p]
        counts = sorted(Counter(words.get(value, value) for value in values).items())
        if len(counts) > 1:
            found.append(f"{name}: " + ", ".join(f"{v} ({n} runs)" for v, n in counts))
    return [f"Trained differently, equal up to round-off: {'; '.join(found)}."] if found else []


def _draws(runs: pd.DataFrame) -> str:
    """The number of draws of the hyperparameters of a row, and how they were chosen."""
    told = {}
    for label, group in runs.groupby("label", sort=False):
        count, search = str(group["draw"].nunique()), group["search"].dropna()
        told[label] = count + (f" ({', '.join(search.unique())})" if count != "1" else "")
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return ", ".join(f"{label} {text}" for label, text in told.items())
