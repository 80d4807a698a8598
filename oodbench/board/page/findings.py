"""Findings on a board: sentences that follow from its numbers."""

import math
from collections.abc import Callable, Iterable

from oodbench.board.page.contents import Contents
from oodbench.board.page.tables import critical, gain_text, selection_costs, sign
from oodbench.report.gap_tables import BASELINE
from oodbench.report.statistics import mean_ranks

NAMED = 6
"""The most rows that gain on a dataset which a sentence names."""


def findings(contents: Contents) -> list[str]:
    """Sentences, each of which follows from a number in a table."""
    sentences = [_of_dataset(contents, dataset) for dataset in contents.datasets]

    def everywhere(wanted: Callable[[set[int]], bool]) -> str:
        signs: dict[str, set[int]] = {}
        for (_, label), difference in contents.gains.items():
            signs.setdefault(label, set()).add(sign(difference))
        return _listed(x for x in contents.labels if x in signs and wanted(signs[x]))

    never = everywhere(lambda signs: 1 not in signs)
    sentences.append(f"Rows that gain over {BASELINE} on no dataset: {never}.")
    safe = everywhere(lambda signs: 1 in signs and -1 not in signs)
    sentences.append(f"Rows that gain somewhere and, where they can be run, lose nowhere: {safe}.")
    return [*sentences, *_of_ranks(contents), *_of_selection(contents)]


def _listed(labels: Iterable[object]) -> str:
    return ", ".join(map(str, labels)) or "none"


def _of_dataset(contents: Contents, dataset: str) -> str:
    """Say which rows gain over the baseline on a dataset, how many lose, and which are equal to it."""
    gains = {label: d for (of, label), d in contents.gains.items() if of == dataset}
    better = sorted((x for x in gains if sign(gains[x]) > 0), key=lambda x: -gains[x].gain.mean)
    losers = sum(sign(d) < 0 for d in gains.values())
    lose = f"{losers or 'none'} lose{'s' * (losers < 2)}"
    equal = [x for x in gains if gains[x].equal]
    if equal:
        lose += f"; exactly {BASELINE}'s numbers have {_listed(equal)}"
    if not better:
        return f"**{dataset}**: no row of {len(gains)} gains over {BASELINE}; {lose}."
    first, *others = better
    most = f"{first} ({gain_text(contents, dataset, first)} {contents.unit(dataset)})"
    rest = f", then {_listed(others[: NAMED - 1])}" if others else ""
    rest += f" and {len(better) - NAMED} more" if len(better) > NAMED else ""
    which = f"{len(better)} of {len(gains)} rows gain{'s' * (len(better) == 1)} over {BASELINE}"
    return f"**{dataset}**: {which}: {most}{rest}; {lose}."


def _of_ranks(contents: Contents) -> list[str]:
    """Name the rows whose mean ranks differ from the baseline's by more than the critical difference."""
    mean, width = mean_ranks(contents.table), critical(contents.table)
    if math.isnan(width) or BASELINE not in mean:
        return []
    lead = mean[BASELINE] - mean
    return [
        f"Rows whose mean rank is ahead of {BASELINE}'s by more than the critical difference: "
        f"{_listed(mean.index[lead > width])}; behind it by more: {_listed(mean.index[-lead > width])}."
    ]


def _of_selection(contents: Contents) -> list[str]:
    """Say how many points of accuracy each rule costs, as it cannot see the test environments."""
    costs = selection_costs(contents)
    sentences = []
    for rule, by_rule in costs.groupby("rule", sort=False):
        of_datasets = by_rule.groupby("dataset")["cost"].mean().sort_values()
        several = len(of_datasets) > 1
        most = f"; most on {of_datasets.index[-1]} ({of_datasets.iloc[-1]:.1f})" * several
        sentences.append(
            f"Selection by {rule} costs {of_datasets.mean():.1f} points of accuracy beside selection by "
            f"the test environment itself, a mean over rows, then datasets{most}."
        )
    return sentences
