"""The leaderboard: each row's mean and error in each column, over the trials of its cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from oodbench.errors import counted, some
from oodbench.notes import AnyNote, Note
from oodbench.report.cells import (
    MEAN,
    METHOD,
    cells,
    is_before,
    on_tests,
    over_tests,
    recorded_metrics,
)
from oodbench.report.gaps import BASELINE
from oodbench.report.numbers import with_error
from oodbench.report.statistics import LEAST, WIDEST, each_mean_and_error, half_width
from oodbench.report.tables.remarks import notes, remarks
from oodbench.results.run_spec import CONSTANT
from oodbench.results.tables import ROW, Tables, origins, pretraining, seen_before
from oodbench.selection import rule_names, sees_test
from oodbench.selection.judge import Chosen, judge, judge_by_all

COLUMN = ["test_environments", "environment", "metric"]
"""The columns of a leaderboard's frame that make a column of a printed table."""
ENTRY = [*ROW, *COLUMN]
FROM, PRETRAINING, UNADAPTED = "from", "pretraining", "before"
"""Columns of a leaderboard's frame and tables that are there only for some results."""
ABOUT = {
    UNADAPTED: "before: the mean of the same runs at the same steps before adaptation.",
    PRETRAINING: "pretraining: the weights that the network begins with.",
}


@dataclass(frozen=True)
class Leaderboard:
    """The numbers of a table by one rule, with notes on them."""

    chosen: Chosen
    metric: str | None = None
    """Replaces each dataset's own."""
    also: tuple[str, ...] = ()
    """Further metrics, a column each."""
    alone: bool = False
    """Whether the findings do not compare selection rules."""
    whole: "Leaderboard | None" = None
    """The leaderboard of all rows, if these are some of them."""

    @property
    def rule(self) -> str:
        """The selection rule."""
        return self.chosen.rule.full_name

    @cached_property
    def others(self) -> list["Leaderboard"]:
        """The leaderboards by the other rules; empty if the rule sees the test environments."""
        if self.alone or self.chosen.rule.sees_test:
            return []
        names = [n for n in rule_names() if n != self.rule and not sees_test(n)]
        judged = judge_by_all(self.chosen.tables, names).values()
        return [Leaderboard(one, self.metric) for one in judged]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """See `oodbench.report.cells.cells`."""
        return cells(self.chosen, self.metric)

    @cached_property
    def higher(self) -> dict[str, bool]:
        """Whether a higher value is better, by metric."""
        shown = self.values.drop_duplicates("metric")
        return {m: up for m, up in zip(shown["metric"], shown["higher"], strict=True) if m}

    @cached_property
    def values(self) -> pd.DataFrame:
        """Values by ENTRY and trial: on test environments, over them, and of the predictor itself."""
        tests, own = on_tests(self.cells), self.cells[self.cells["environment"] == ""]
        joined = tests.assign(test_environments=tests["test_environments"].map("+".join))
        parts = [joined, over_tests(tests), over_tests(own)]
        return pd.concat([part for part in parts if len(part)], ignore_index=True)

    @cached_property
    def means(self) -> pd.DataFrame:
        """ENTRY and the columns of `_means`."""
        return _means(self.values, ENTRY)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One number in each row.

        `dataset`, `label`, `test_environments` (joined by `+`), `environment`, `metric`, `mean` and
        `stderr` (over trials, ddof=1; NaN below LEAST trials), `n` (complete trials), `planned` (trials),
        `rule`, `kind` (see `cells`). Some results have more columns: `defined`, the number of trials with
        a value, and `undefined`, why others have none; `constant` (see `constant_verdicts`); `before` and
        `before_stderr`, the row's mean before adaptation; with a board `from` (`board`, `here` or both);
        `pretraining`; and mean and error of each metric in `also`. The `environment` of a mean over all
        test environments is MEAN; that of a metric of the predictor itself is empty.
        """
        frame, runs = self.means.assign(rule=self.rule), self.chosen.runs
        frame = frame.assign(kind=frame.pop("kind"))
        if CONSTANT in set(frame["kind"]):
            verdicts = constant_verdicts(self.values).rename(columns={"dataset_label": "dataset"})
            frame = frame.merge(verdicts, on=["dataset", "label", *COLUMN], how="left")
            frame = frame.fillna({"constant": ""})
        if len(unadapted := self.cells[is_before(self.cells)]):
            frame = _with_means(frame, unadapted, UNADAPTED)
        where = origins(runs)
        if any("here" in origin for origin in where.values()):
            frame[FROM] = frame["label"].map(where).fillna("")
        if weights := pretraining(runs):
            named = zip(frame["dataset"], frame["label"], strict=True)
            frame[PRETRAINING] = [weights.get(row, "") for row in named]
        for metric in self.also:
            frame = _with_means(frame, on_tests(self._further[metric]), metric)
        return frame

    @cached_property
    def _further(self) -> dict[str, pd.DataFrame]:
        known, found = recorded_metrics(self.chosen.tables), {}
        for metric in self.also:
            there = [dataset for dataset, metrics in known.items() if metric in metrics]
            found[metric] = cells(self.chosen.on(there) if there else self.chosen, metric)
        return found

    @cached_property
    def notes(self) -> tuple[AnyNote, ...]:
        """The notes of a caption."""
        runs = self.chosen.tables.runs
        whole = bool((self.means["n"] == self.means["planned"]).all())
        of_rule = notes(runs, self.chosen.rule, self.higher, whole)
        about = [text for name, text in ABOUT.items() if name in self.frame]
        about += seen_before(runs)
        lacking = _undefined([self.cells, *self._further.values()])
        chosen = self.chosen.chosen
        tied, of = int((chosen["weight"] < 1).sum()), counted(len(chosen), "cell")
        ties = f"In {tied} of {of} draws tie in validation: the value is their mean."
        further = list[Note]()
        for metric in self.also:
            is_higher = self._further[metric].query("metric == @metric")["higher"].iloc[0]
            way = f"{'higher' if is_higher else 'lower'} is better"
            text = "the mean over test environments of the same runs at the same steps."
            further.append(Note(f"{metric}: {way}; {text}", f"{metric}: the same runs; {way}."))
        return (*of_rule, *lacking, *[ties] * bool(tied), *about, *further)

    @cached_property
    def remarks(self) -> tuple[AnyNote, ...]:
        """The notes that a paper leaves out: counts of runs, and the code behind them."""
        return remarks(self.chosen.runs)

    @cached_property
    def findings(self) -> tuple[AnyNote, ...]:
        """The findings that a reader must not miss."""
        own = [*beside_constant((self.whole or self).frame), *equal_rows(self.values)]
        return (*self.chosen.tables.notes, *own, *disagreement(self))


def leaderboard(
    tables: Tables, rule: str | None = None, metric: str | None = None, also: Sequence[str] = ()
) -> Leaderboard:
    """The leaderboard by a rule, the usual one by default; raises UserError as `judge` and `cells` do."""
    board = Leaderboard(judge(tables, rule), metric, tuple(dict.fromkeys(also)))
    assert len(board.frame)  # names are checked here
    return board


def _undefined(tables: Sequence[pd.DataFrame]) -> list[Note]:
    names = ["metric", "environment", "dataset_label", "undefined"]
    places = pd.concat([t.loc[t["undefined"] != "", names] for t in tables]).drop_duplicates()
    texts = ["{} on {} of {} ({})".format(*place) for place in places.to_numpy()]
    what = "Undefined, and not in means, ranks, wins, ties or losses"
    brief = f"Undefined: {some(texts, 1)}."
    return [Note(f"{what}: {'; '.join(texts)}.", brief)] * bool(texts)


def _means(values: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """`key`, `kind`, `mean`, `stderr`, `n` (complete trials), `planned` (trials); if any value is
    undefined, also `defined` (their number) and `undefined` (why others are not).
    """
    code = values.groupby(key, sort=False).ngroup().to_numpy()
    table = values[[*key, "kind"]].drop_duplicates(key, ignore_index=True)
    undefined = values["undefined"].ne("").to_numpy()
    complete = values["complete"].to_numpy(bool)
    whole = complete & ~undefined
    numbers = values["value"].to_numpy(float)[whole]
    mean, error = each_mean_and_error(numbers, code[whole], len(table), LEAST)
    counts = {"n": np.bincount(code[complete], minlength=len(table)), "planned": np.bincount(code)}
    if undefined.any():
        counts["defined"] = np.bincount(code[whole], minlength=len(table))
        counts["undefined"] = values.groupby(code)["undefined"].max().to_numpy()
    table = table.assign(mean=mean, stderr=error, **counts)
    return table.rename(columns={"dataset_label": "dataset"})


def _with_means(frame: pd.DataFrame, values: pd.DataFrame, name: str) -> pd.DataFrame:
    further = _means(over_tests(values), ROW).set_index(["dataset", "label"])
    further = further[[n for n in ("mean", "stderr", "undefined") if n in further]]
    further = further.rename(columns=lambda n: name if n == "mean" else f"{name}_{n}")
    frame = frame.merge(further, left_on=["dataset", "label"], right_index=True, how="left")
    return frame.fillna({f"{name}_undefined": ""})


def is_mean(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Mask of a leaderboard's numbers that are means over all test environments."""
    return (frame["environment"] == MEAN) & (frame["test_environments"] == "")


def disagreement(board: Leaderboard) -> list[Note]:
    """A finding if another rule moves a row by more than both errors, with the row that moves most errors.

    Rows without errors are skipped.
    """

    def of_methods(of: Leaderboard) -> pd.DataFrame:
        means = of.means
        ranked = is_mean(means) & (means["n"] > 0) & (means["kind"] == METHOD)
        return means[ranked].set_index(["dataset", "label"])[["mean", "stderr", "metric"]]

    mine = of_methods(board)
    moved = [pd.DataFrame()]
    for other in board.others:
        both = mine.join(of_methods(other).add_suffix("_other"), how="inner")
        gap = (both["mean"] - both["mean_other"]).abs()
        errors = both["stderr"] + both["stderr_other"]
        moved.append(both.assign(apart=gap / errors, other=other.rule)[gap > errors])
    table = pd.concat([part for part in moved if len(part)] or moved)
    if table.empty:
        return []
    furthest = table["apart"].to_numpy().argmax()
    (dataset, label), far = table.index.to_list()[furthest], table.iloc[furthest]
    here, there = (
        with_error(far[f"mean{s}"], far[f"stderr{s}"], far["metric"]) for s in ("", "_other")
    )
    more = table.index.nunique() - 1
    others = f", and {more} more cell{'s differ' if more > 1 else ' differs'} so" * bool(more)
    start = "The selection rule matters"
    finding = (
        f"{start}: {label} on {dataset} has {here} by {board.rule} and {there} by {far['other']}, a "
        f"difference beyond both errors{others}."
    )
    brief = f"{start}: {counted(more + 1, 'cell')} differ{'s' * (not more)} beyond both errors."
    return [Note(finding, brief)]


def constant_verdicts(values: pd.DataFrame) -> pd.DataFrame:
    """Whether rows are `better` than the constant answer, `worse` or `equal`: ENTRY, `constant`.

    `values` are those of a `Leaderboard`. A row differs if the 95 % interval of its paired difference
    (Student's t over trials) does not contain 0, or if it diverged. With one trial, which has no
    interval, it differs if the difference is not 0; with two trials it never does.
    """
    place = ["dataset_label", *COLUMN, "trial"]
    complete = values[values["complete"] & (values["undefined"] == "")]
    is_constant = complete["label"] == CONSTANT
    against = complete.loc[is_constant, [*place, "value"]]
    pairs = complete[~is_constant].merge(against, on=place, suffixes=("", "_constant"))
    sign = pd.Series(np.where(pairs["higher"].astype(bool), 1.0, -1.0))
    gain = (sign * (pairs["value"] - pairs["value_constant"])).round(12).fillna(-np.inf)
    table = gain.groupby([pairs[name] for name in ENTRY], sort=False).agg(["mean", "std", "size"])
    error = table["std"] / np.sqrt(table["size"])
    half = pd.Series(0.0, table.index).mask(table["size"] == 2)
    near = (table["size"] >= LEAST) & (table["mean"].abs() <= WIDEST * error)
    if near.any():  # other means are outside of any interval, and need no scipy
        half[near] = error[near] * half_width(table["size"][near])
    better = table["mean"] - half > 0
    worse = (table["mean"] + half < 0) | ~np.isfinite(table["mean"])
    table["constant"] = np.select([better, worse], ["better", "worse"], "equal")
    return pd.DataFrame(table[["constant"]].reset_index())


def beside_constant(frame: pd.DataFrame) -> list[Note]:
    """A finding for each dataset on which no complete method beats the constant answer."""
    ranked = is_mean(frame) & (frame["kind"] == METHOD) & (frame["n"] == frame["planned"])
    sentences: list[Note] = []
    compared = frame[ranked & (frame["constant"] != "")] if "constant" in frame else frame[:0]
    for dataset, rows in compared.groupby("dataset", sort=False):
        verdicts = set(rows["constant"])
        if "better" in verdicts:
            continue
        finding = f"No row of {dataset} is better than the constant answer"
        if verdicts == {"equal"}:
            finding = f"No row of {dataset} differs from the constant answer"
            if rows["planned"].max() == 2:
                finding = (
                    f"Two trials are too few to tell rows of {dataset} from the constant answer"
                )
        how = "95 % intervals of the paired differences over trials"
        sentences.append(Note(f"{finding} ({how}).", f"{finding}."))
    return sentences


def equal_rows(values: pd.DataFrame) -> list[Note]:
    """A finding for each group of rows with equal values in every environment and trial."""
    tested = values[(values["test_environments"] != "") & (values["label"] != CONSTANT)]
    cells = ["dataset_label", "test_environments", "environment", "trial"]
    wide = tested.pivot(index=cells, columns="label", values="value").dropna(axis=1, how="all")
    groups: dict[bytes, list[str]] = {}
    for label in tested["label"].unique():
        if label in wide:
            groups.setdefault(wide[label].to_numpy(float).tobytes(), []).append(str(label))
    sentences = []
    for labels in (group for group in groups.values() if len(group) > 1):
        first = BASELINE if BASELINE in labels else labels[0]
        others = ", ".join(label for label in labels if label != first)
        shown = some(labels, 2 if len(labels[0] + labels[1]) < 36 else 1)
        brief = f"{counted(len(labels), 'row')} equal in every chosen value: {shown}."
        sentences.append(Note(f"{others}: equal to {first} in every chosen value.", brief))
    return sentences
