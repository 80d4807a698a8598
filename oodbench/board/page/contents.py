"""The numbers behind a board's page: its runs, and their scores and gaps by each selection rule."""

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from oodbench.board.protocol import name_of
from oodbench.errors import UserError
from oodbench.metrics import is_proportion
from oodbench.report.gap_tables import Gaps, differences, gaps_of, serving
from oodbench.report.leaderboard import METHOD, Leaderboard, is_mean, leaderboard_by_rule, scores
from oodbench.report.statistics import Difference, block_table, mean_ranks
from oodbench.results.boards import PROTOCOL_FILE, find_board
from oodbench.results.frames import Frames
from oodbench.results.frozen import frozen
from oodbench.results.parts import kept_metrics
from oodbench.selection import find_rule, rule_names, usual
from oodbench.yaml_values import read_yaml


@dataclass(frozen=True)
class Contents:
    """The runs and numbers that a page shows."""

    folder: Path
    planned: list[str]
    """The datasets of the protocol."""
    frames: Frames
    rule: str
    leaderboard: Leaderboard
    """The leaderboard by `rule`."""
    values: dict[str, pd.DataFrame]
    """The values behind the leaderboard by each rule, of the datasets that serve it; see `scores`."""
    gains: dict[tuple[str, str], Difference]
    """The gain over the baseline by dataset and label."""
    gaps: dict[str, Gaps]
    """The shares of the gap by each rule that serves a dataset with a clear head-room."""

    @property
    def name(self) -> str:
        """The board's name."""
        return self.folder.name

    @property
    def intervals(self) -> int:
        """The number of gains that have an interval."""
        return sum(not difference.equal for difference in self.gains.values())

    @property
    def datasets(self) -> list[str]:
        """The datasets by their labels."""
        return [str(d) for d in self.leaderboard.frame["dataset"].unique()]

    @property
    def table(self) -> pd.DataFrame:
        """Values by `rule`: datasets by the labels that every one of them has; larger is better."""
        return block_table(self.values[self.rule])

    @property
    def labels(self) -> list[str]:
        """The labels: those with a mean rank, the best first, then the others."""
        ranked = [str(label) for label in mean_ranks(self.table).index]
        labels = self.values[self.rule]["label"].unique()
        return [*ranked, *(str(label) for label in labels if label not in ranked)]

    def averages(self, kind: str = METHOD) -> pd.DataFrame:
        """The average over test environments of each row of a kind on each dataset."""
        frame = self.leaderboard.frame
        rows = is_mean(frame) & (frame["kind"] == kind) & (frame["n"] > 0)
        return frame[rows].set_index(["dataset", "label"])

    def metric(self, dataset: str) -> str:
        """The metric of a dataset."""
        return str(self.averages()["metric"][dataset].iloc[0])

    def unit(self, dataset: str) -> str:
        """The unit of gains on a dataset."""
        metric = self.metric(dataset)
        return "points" if is_proportion(metric) else metric

    def is_higher_better(self, dataset: str) -> bool:
        """Whether a higher value of a dataset's metric is better."""
        return self.leaderboard.higher.get(self.metric(dataset), True)


def contents(name: str) -> Contents:
    """The contents of a board; raises UserError as `frozen` does, and if no rule judges every dataset."""
    folder = find_board(name)
    frames = _of_page(frozen(name))
    rule = usual(frames)
    values = {}
    frozen_rules = [name for name in rule_names() if find_rule(name).frozen]
    for other in dict.fromkeys([rule, *frozen_rules]):
        served = serving(frames, other)
        if len(served.runs):
            values[other] = scores(served, other)
    planned = [name_of(entry) for entry in read_yaml(folder / PROTOCOL_FILE)["datasets"]]
    judged = set(values[rule]["dataset"]) if rule in values else set()
    if unserved := [d for d in frames.runs["dataset_label"].unique() if d not in judged]:
        raise UserError(f"{rule}, the rule of {name}, cannot judge {', '.join(unserved)}: no page")
    shares = {r: one for r, table in values.items() if (one := gaps_of(frames, r, table=table))}
    gains = shares[rule].differences if rule in shares else differences(values[rule])
    board = leaderboard_by_rule(frames, rule)
    return Contents(folder, planned, frames, rule, board, values, gains, shares)


def _of_page(frames: Frames) -> Frames:
    """Drop the records of metrics that no page shows, see `kept_metrics`."""
    metrics = frames.metrics
    shown = metrics["metric"].isin(kept_metrics(map(str, frames.runs["metric"].unique())))
    return replace(frames, metrics=metrics[shown])
