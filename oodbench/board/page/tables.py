"""The tables of a board's page."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from oodbench.board.page.contents import Contents
from oodbench.metrics import is_proportion
from oodbench.report.formats import OVER_DATASETS, Block
from oodbench.report.gap_tables import BASELINE, serving
from oodbench.report.leaderboard import (
    CEILING,
    FROM,
    METHOD,
    Leaderboard,
    leaderboard_by_rule,
    scores,
)
from oodbench.report.numbers import gain, number
from oodbench.report.sheet import blocks
from oodbench.report.statistics import (
    Difference,
    block_table,
    critical_difference,
    kendall,
    mean_ranks,
    plain_mean,
)
from oodbench.results.frames import subset
from oodbench.results.parts import WORST_GROUP
from oodbench.results.run_spec import CONSTANT

DRAWS = (1, 5)
"""The numbers of first draws for which ranks are shown, beside those with all draws."""
SHARES = (0.05, 0.1, 0.25, 0.5)
"""The shares by which a row's error may exceed the best row's and count as close."""
NARROW, NARROW_SHARE = 0.02, 0.05
"""The half-width of a narrow interval: 2 points of a proportion, or a twentieth of the head-room."""


def results(board: Leaderboard) -> list[Block]:
    """The table of means over all datasets, or the tables of the only dataset."""
    shown = blocks(replace(board, frame=board.frame.drop(columns=FROM, errors="ignore")))
    if board.frame["dataset"].nunique() > 1:
        return [block for block in shown if block.title == OVER_DATASETS]
    return [block for block in shown if not block.metrics]


def head_room(contents: Contents) -> Block:
    """A table of each dataset's shift and training, its constant answer, baseline, best row and ceiling."""
    methods, ceilings, constants = map(contents.averages, (METHOD, CEILING, CONSTANT))
    rows = []
    for dataset in contents.datasets:
        run = contents.frames.runs.query("dataset_label == @dataset").iloc[0]
        sizes = run["network_hparams"]
        network = [f"{name} {sizes[name]}" for name in ("width", "depth") if name in sizes]
        means = methods["mean"][dataset]
        best = means.idxmax() if contents.is_higher_better(dataset) else means.idxmin()
        rows.append(
            [
                dataset,
                contents.leaderboard.shifts.get(dataset, "-"),
                f"{run['network']} {', '.join(network)}".strip(),
                str(run["steps"]),
                contents.metric(dataset),
                _cell(constants, dataset, CONSTANT),
                _cell(methods, dataset, BASELINE),
                f"{best}: {_cell(methods, dataset, best)}",
                _cell(ceilings, dataset, "ceiling"),
            ]
        )
    about = ["dataset", "shift", "network", "steps", "metric"]
    return Block("Datasets", [*about, "constant", BASELINE, "best", "ceiling"], rows, len(rows))


def _cell(averages: pd.DataFrame, dataset: str, label: str) -> str:
    if (dataset, label) not in averages.index:
        return "-"
    row = averages.loc[[(dataset, label)]].iloc[0]
    return number(float(row["mean"]), float(row["stderr"]), str(row["metric"]))


def sign(difference: Difference | None) -> int:
    """1 or -1 where the interval of a gain is above or below 0, else 0."""
    if difference is None or difference.equal:
        return 0
    return int(difference.gain.low > 0) - int(difference.gain.high < 0)


def gain_text(contents: Contents, dataset: str, label: str) -> str:
    """The gain of a row over the baseline with its interval."""
    difference = contents.gains.get((dataset, label))
    if difference is None or difference.equal:
        return "-" if difference is None else "equal"
    metric, interval = contents.metric(dataset), difference.gain
    return f"{gain(interval.mean, metric)} [{gain(interval.low, metric)}, {gain(interval.high, metric)}]"


def gains(contents: Contents) -> Block:
    """The gain of each row over the baseline on each dataset; those beyond 0 are marked."""
    labels = [label for label in contents.labels if label != BASELINE]
    datasets = contents.datasets
    rows = [[label, *(gain_text(contents, d, label) for d in datasets)] for label in labels]
    marked = {
        (row, column)
        for row, label in enumerate(labels)
        for column, dataset in enumerate(datasets, 1)
        if sign(contents.gains.get((dataset, label)))
    }
    header = ["algorithm", *(f"{d} ({contents.unit(d)})" for d in datasets)]
    return Block("Gains", header, rows, len(rows), best=marked)


def precision(contents: Contents) -> Block:
    """How exact gains over the baseline are on each dataset: medians over rows, and how many are narrow.

    A gain that is *detectable* is found in 4 of 5 boards with as many trials, by a test at 5 %.
    """
    gaps, runs = contents.gaps.get(contents.rule), contents.frames.runs
    rows = []
    for dataset in contents.datasets:
        of_rows = [d for (of, _), d in contents.gains.items() if of == dataset and not d.equal]
        of_rows = [d for d in of_rows if math.isfinite(d.detectable)]  # no run diverged
        widths = np.array([d.gain.high - d.gain.low for d in of_rows]) / 2
        least = float(np.median([d.detectable for d in of_rows])) if of_rows else math.nan
        is_clear = gaps is not None and dataset in gaps.shares.index
        room = float(gaps.rooms["mean"][dataset]) if gaps and is_clear else math.nan
        metric = contents.metric(dataset)
        half = float(np.median(widths)) if of_rows else math.nan
        is_narrow = widths <= NARROW_SHARE * room
        if is_proportion(metric):
            is_narrow |= widths <= NARROW
        cells = (gain(v, metric, "") for v in (half, least, room))
        shares = ("-" if math.isnan(v / room) else f"{100 * v / room:.0f} %" for v in (half, least))
        narrow = f"{is_narrow.sum()} of {len(widths)}"
        trials = str(runs.loc[runs["dataset_label"] == dataset, "trial"].nunique())
        rows.append([dataset, trials, contents.unit(dataset), *cells, *shares, narrow])
    header = ["dataset", "trials", "unit", "half-width", "detectable", "head-room"]
    header += ["half-width / head-room", "detectable / head-room", "narrow rows"]
    return Block("Precision", header, rows, len(rows))


def selection_costs(contents: Contents) -> pd.DataFrame:
    """The points of accuracy that each row loses when a rule chooses its runs instead of the oracle.

    Returns `dataset`, `label`, `rule` and `cost`, for what the oracle can choose, too.
    """
    parts = []
    for rule, values in contents.values.items():
        accuracies = values[values["metric"] == "accuracy"]
        means = 100 * accuracies.groupby(["dataset", "label"], sort=False)["value"].agg(plain_mean)
        parts.append(means.rename("points").reset_index().assign(rule=rule))
    points = pd.concat(parts, ignore_index=True)
    place = ["dataset", "label"]
    oracle = points[points["rule"] == "oracle"].drop(columns="rule")
    both = points[points["rule"] != "oracle"].merge(oracle, on=place, suffixes=("", "_oracle"))
    return both.assign(cost=both["points_oracle"] - both["points"])[[*place, "rule", "cost"]]


def selection(contents: Contents) -> Block:
    """The mean over rows of what each rule costs on each dataset, and the mean of these."""
    costs = selection_costs(contents)
    there = [dataset for dataset in contents.datasets if dataset in set(costs["dataset"])]
    rows = []
    for rule, of_rule in costs.groupby("rule", sort=False):
        of_datasets = of_rule.groupby("dataset")["cost"].mean()
        cells = [f"{of_datasets[d]:z.1f}" if d in of_datasets else "-" for d in there]
        rows.append([str(rule), *cells, f"{of_datasets.mean():z.1f}"])
    return Block("Selection", ["rule", *there, "mean"], rows, len(rows))


def ranks(contents: Contents) -> Block:
    """A table of complete rows' mean ranks: by each rule, with fewer draws, and without each dataset."""
    rule, runs, table = contents.rule, contents.frames.runs, contents.table
    usual_ranks = mean_ranks(table)
    tables = {r: block_table(v) for r, v in contents.values.items() if r != rule}
    for count in DRAWS:
        if count < runs["draw"].nunique():
            fewer = scores(subset(contents.frames, runs[runs["draw"] < count]), rule)
            tables[f"{count} draw{'s' * (count > 1)}"] = block_table(fewer)
    shown = {name: mean_ranks(other) for name, other in tables.items()}
    several = len(contents.datasets) > 1
    without = [mean_ranks(table.drop(dataset)) for dataset in table.index] if several else []

    def cells(of_one: "pd.Series[float]") -> list[str]:
        return [f"{of_one.get(name, math.nan):.2f}" for name in shown]

    rows = []
    for label in usual_ranks.index:
        others = pd.Series({name: ranks.get(label, math.nan) for name, ranks in shown.items()})
        spread = _spread([ranks[label] for ranks in without])
        rows.append([str(label), f"{usual_ranks[label]:.2f}", *cells(others), spread])
    taus = pd.Series(
        {
            name: kendall(mean_ranks(table.loc[table.index.isin(other.index)]), shown[name])
            for name, other in tables.items()
        }
    )
    spread = _spread([kendall(usual_ranks, ranks) for ranks in without])
    rows.append([f"Kendall's tau with {rule}", "1", *cells(taus), spread])
    titles = [
        name if len(other) == len(table) else f"{name} ({len(other)} datasets)"
        for name, other in tables.items()
    ]
    header = ["algorithm", rule, *titles, "without a dataset"]
    return Block("Ranks", header, rows, len(rows) - 1, grey=1)


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else "-"


def critical(table: pd.DataFrame) -> float:
    """The difference of mean ranks beyond which the labels of a table of datasets by labels differ.

    NaN for one dataset or two labels.
    """
    if table.shape[0] < 2 or table.shape[1] < 3:
        return math.nan
    return critical_difference(table.shape[1], table.shape[0])


def profile(contents: Contents) -> Block:
    """The share of the datasets on which a row's error is close to the best (Dolan and Moré 2002)."""
    close = {}
    for dataset in contents.datasets:
        means = contents.averages()["mean"][dataset]
        errors = 1 - means if contents.is_higher_better(dataset) else means
        close[dataset] = {share: errors <= (1 + share) * errors.min() for share in SHARES}
    labels = [str(label) for label in mean_ranks(contents.table).index]
    near = {
        x: [np.mean([shares[s][x] for shares in close.values()]) for s in SHARES] for x in labels
    }
    order = sorted(labels, key=near.__getitem__, reverse=True)
    rows = [[label, *(f"{share:.2f}" for share in near[label])] for label in order]
    header = ["algorithm", *(f"within {100 * share:g} %" for share in SHARES)]
    return Block("Close to the best", header, rows, len(rows))


def costs(contents: Contents) -> Block:
    """The seconds of the fastest run of each row beside the baseline's, and those of the baseline."""
    runs = contents.frames.runs
    alone = runs["provenance"].map(lambda made: not made.get("vectorized"))
    groups = runs.assign(alone=alone).groupby(["label", "dataset_label"], sort=False)
    seconds = groups["training_seconds"].min().unstack()[contents.datasets]
    one_by_one = groups["alone"].any()
    ratio = seconds / seconds.loc[BASELINE]
    rows = []
    for label in contents.labels:
        cells = [
            "-" if math.isnan(v) else f"{v:.1f}{' alone' * bool(one_by_one[label, dataset])}"
            for dataset, v in ratio.loc[label].items()
        ]
        rows.append([label, f"{ratio.loc[label].median():.1f}", *cells])
    plain = seconds.loc[BASELINE]
    rows.append([f"{BASELINE}, seconds", f"{plain.median():.2f}", *(f"{v:.2f}" for v in plain)])
    return Block("Cost", ["algorithm", "median", *contents.datasets], rows, len(rows) - 1, grey=1)


def worst_group(contents: Contents) -> list[Block]:
    """Tables of the worst group's accuracy, of datasets that record it, by the rule that selects by it.

    Ceilings are left out: data like the test environment's have a smallest group, too, so that training on
    them is no bound of this metric.
    """
    rule = f"{contents.rule}:{WORST_GROUP}"
    served = serving(contents.frames, rule)
    served = subset(served, served.runs[~served.runs["ceiling"].eq(True)])
    return results(leaderboard_by_rule(served, rule, WORST_GROUP)) if len(served.runs) else []
