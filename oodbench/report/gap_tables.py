"""The tables and sentences of a board on the share of the gap closed, its headline number."""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from oodbench.errors import UserError
from oodbench.report.formats import GAP_CLOSED, Block
from oodbench.report.gaps import (
    CLEAR,
    FLOOR,
    Place,
    Resampled,
    Trials,
    bounded_mean,
    by_trial,
    head_rooms,
    places,
    resampled,
    shares,
    significant,
)
from oodbench.report.leaderboard import CEILING, TRANSDUCTIVE, scores
from oodbench.report.statistics import (
    Difference,
    paired_differences,
)
from oodbench.results.frames import Frames, subset
from oodbench.results.run_spec import CONSTANT

BASELINE = "ERM"
ALL = "all"
HALVES = ("constructed", "natural")


@dataclass(frozen=True)
class Gaps:
    """The shares of the gap that the rows of a board close by one rule."""

    rule: str
    scores: pd.DataFrame
    """The values of methods; see `oodbench.report.leaderboard.scores`."""
    trials: Trials
    """The means of `scores` over test environments, by trial; see `oodbench.report.gaps`."""
    apart: Trials
    """The same for the rows that are not ranked (transductive, constant answer), and the baseline."""
    rooms: pd.DataFrame
    """The head-room of each dataset; see `head_rooms`."""
    subsets: Mapping[str, list[str]]
    """The datasets over which shares are averaged, by name: all, each half."""

    @cached_property
    def shares(self) -> pd.DataFrame:
        """Shares by dataset (row) and label (column): the best mean first, incomplete labels last."""
        table = shares(self.trials, self.rooms, BASELINE)
        order = bounded_mean(table).sort_values(ascending=False, kind="stable", na_position="last")
        return table[order.index]

    @cached_property
    def apart_shares(self) -> pd.DataFrame:
        """Shares of the rows that are not ranked, and the baseline, by dataset (row) and label (column)."""
        return shares(self.apart, self.rooms, BASELINE)

    @cached_property
    def means(self) -> "pd.Series[float]":
        """The mean share of each label that has every dataset, the best first."""
        return bounded_mean(self.shares).dropna()

    @cached_property
    def resampled(self) -> Resampled:
        """The bootstrap over the datasets with a clear head-room, for the labels that have them all."""
        return resampled(self.trials, self.rooms, BASELINE, self.subsets[ALL])

    @cached_property
    def places(self) -> dict[str, Place]:
        """The place of each label by its mean share."""
        return places(self.means[self.resampled.labels], self.resampled.gap)

    @cached_property
    def differences(self) -> dict[tuple[str, str], Difference]:
        """The paired difference of each label to the baseline, by dataset and label."""
        return differences(self.scores)

    @cached_property
    def signs(self) -> dict[tuple[str, str], int]:
        """The sign of each difference; 0 where it is not significant after Holm's correction over all."""
        return dict(zip(self.differences, significant([*self.differences.values()]), strict=True))

    @property
    def unclear(self) -> list[str]:
        """The datasets whose head-room is not clear of its error."""
        return [str(dataset) for dataset in self.rooms.index[~self.rooms["clear"]]]


def gaps_of(
    frames: Frames, rule: str, metric: str | None = None, table: pd.DataFrame | None = None
) -> Gaps | None:
    """Compute the gaps of a board's rows by a rule, from the methods' `scores` in `table` if it is given.

    Only datasets with a run of the baseline count. None without one, or without a ceiling whose head-room
    is clear.
    """
    frames = serving(frames, rule)
    ceilings = _scores_of(CEILING, frames, rule, metric)
    if ceilings is None:
        return None
    table = scores(frames, rule, metric) if table is None else table
    table = table[table["dataset"].isin(table.loc[table["label"] == BASELINE, "dataset"])]
    if table.empty:
        return None
    trials = by_trial(table)
    rooms = head_rooms(trials, by_trial(ceilings).bfill(axis=1).iloc[:, 0], BASELINE)
    if not rooms["clear"].any():
        return None
    baseline = table[table["label"] == BASELINE]
    constant = scores(frames, rule, metric, CONSTANT)
    apart = [baseline, _scores_of(TRANSDUCTIVE, frames, rule, metric), constant]
    others = by_trial(pd.concat([part for part in apart if part is not None and len(part)]))
    return Gaps(rule, table, trials, others, rooms, _subsets(frames.runs, rooms))


def _scores_of(kind: str, frames: Frames, rule: str, metric: str | None) -> pd.DataFrame | None:
    """The scores of the rows of a kind alone, None if there are none."""
    of_kind = frames.runs[kind].eq(True)
    if not of_kind.any():
        return None
    # transductive methods count as such only where a dataset has others
    few = subset(frames, frames.runs[of_kind | frames.runs["label"].eq(BASELINE)])
    return scores(few, rule, metric, kind)


def differences(table: pd.DataFrame) -> dict[tuple[str, str], Difference]:
    """The paired difference of each label to the baseline, by dataset and label, without a bootstrap."""
    return {
        (str(dataset), one.label): one
        for dataset, scored in table.groupby("dataset", sort=False)
        if BASELINE in set(scored["label"])
        for one in paired_differences(scored, BASELINE, resamples=0)
    }


def serving(frames: Frames, rule: str) -> Frames:
    """The frames of the datasets on which a rule can choose frozen runs; those of a sweep as they are."""
    if frames.scores is None:
        return frames
    runs, judged = frames.runs, frames.scores.loc[frames.scores["rule"] == rule, "id"]
    datasets = runs.loc[runs["id"].isin(judged), "dataset_label"].unique()
    return subset(frames, runs[runs["dataset_label"].isin(datasets)])


def _subsets(runs: pd.DataFrame, rooms: pd.DataFrame) -> dict[str, list[str]]:
    """The datasets with a clear head-room: all, and each half as datasets declare it."""
    from oodbench.datasets import datasets as registered

    names = runs.drop_duplicates("dataset_label").set_index("dataset_label")["dataset"]
    clear = [str(dataset) for dataset in rooms.index[rooms["clear"]]]
    groups: dict[str, list[str]] = {ALL: clear, **{half: [] for half in HALVES}}
    for dataset in clear:
        with suppress(UserError):  # a dataset of a plug-in that is not loaded
            half = registered.get(names[dataset]).metadata.half
            if half:
                groups[half].append(dataset)
    return {group: members for group, members in groups.items() if members}


def headline(gaps: Gaps) -> Block:
    """A table of each row's place and mean shares, over all datasets and over each half that is not all."""
    halves_here = [h for h in HALVES if gaps.subsets.get(h, gaps.subsets[ALL]) != gaps.subsets[ALL]]
    groups = [ALL, *halves_here]
    columns = _means(gaps, groups)
    rows = []
    for label in gaps.shares.columns:
        place = gaps.places.get(label)
        first = f"{place.first:.2f}" if place else "-"
        mean, *halves = columns[label]
        rows.append([label, mean, *_place(place), first, *halves])
    apart = _means(gaps, groups, apart=True)
    rows += [[label, mean, "-", "-", *halves] for label, (mean, *halves) in apart.items()]
    mean, *halves = (_counted(gaps, group) for group in groups)
    header = ["algorithm", mean, "place", "P(first)", *halves]
    title = f"{GAP_CLOSED} {gaps.rule}: 0 is {BASELINE}, 1 the ceiling [95 %]"
    return Block(title, header, rows, len(gaps.means), grey=len(apart))


def _counted(gaps: Gaps, group: str) -> str:
    return f"{group} ({len(gaps.subsets[group])})"


def _means(gaps: Gaps, groups: Iterable[str], apart: bool = False) -> dict[str, list[str]]:
    """The cells of each label: its mean share with its interval over the datasets of each group."""
    trials = gaps.apart if apart else gaps.trials
    table = shares(trials, gaps.rooms, BASELINE) if apart else gaps.shares
    labels = [str(label) for label in table.columns if not (apart and label == BASELINE)]
    cells: dict[str, list[str]] = {label: [] for label in labels}
    for group in groups:
        members = gaps.subsets[group]
        means = bounded_mean(table.loc[members])
        whole = group == ALL and not apart
        drawn = gaps.resampled if whole else resampled(trials, gaps.rooms, BASELINE, members)
        for label in labels:
            known = not math.isnan(means[label])
            cells[label].append(_interval(means[label], drawn, label) if known else "-")
    return cells


def _interval(mean: float, drawn: Resampled, label: str) -> str:
    if label == BASELINE:
        return "0"
    low, high = drawn.interval(label)
    return f"{mean:z.2f} [{low:z.2f}, {high:z.2f}]"


def _place(place: Place | None) -> list[str]:
    return [f"{place.place} [{place.low}, {place.high}]" if place else "-"]


def about(gaps: Gaps) -> str:
    """The note that explains the shares, their means and their intervals."""
    text = (
        f"On a dataset (row - {BASELINE}) / (ceiling - {BASELINE}), of means over trials: 0 is {BASELINE}, "
        "1 the ceiling, for accuracies and losses alike. In means over datasets it is bounded below at "
        f"{FLOOR:g}. Brackets: 95 % intervals of a bootstrap over datasets, then their trials, with the "
        "same trials for all rows."
    )
    if gaps.unclear:
        text += (
            f" The head-room of {'; '.join(gaps.unclear)} is not clear (more than {CLEAR:g} of its "
            "standard errors), and no share of it is given."
        )
    return text
