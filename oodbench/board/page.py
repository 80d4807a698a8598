"""The page of a board: its tables, and findings each of which follows from a number in them.

Imports no torch.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from oodbench.errors import UserError
from oodbench.report.comparison import gains as gains_over
from oodbench.report.formats import markdown
from oodbench.report.leaderboard import Leaderboard, scores, standings
from oodbench.report.numbers import gain, number
from oodbench.report.ranking import block_table, critical_difference, kendall, mean_ranks
from oodbench.report.references import CEILING, METHOD
from oodbench.report.sheet import Block, Sheet, blocks
from oodbench.report.statistics import Difference
from oodbench.results.beside import frozen
from oodbench.results.board import PROTOCOL_FILE, find_board
from oodbench.results.frames import Frames
from oodbench.results.join import only_dataset, records_of
from oodbench.results.run_spec import CONSTANT
from oodbench.selection import usual
from oodbench.yaml_values import read_yaml

BASELINE = "ERM"
DRAWS = (1, 5)
"""The smaller budgets of which the ranks are shown, beside the whole one."""
SHARES = (0.05, 0.1, 0.25, 0.5)
"""How near to the best, as shares of its lead over the constant answer."""


@dataclass(frozen=True)
class Contents:
    """What a page is made of."""

    name: str
    planned: list[str]
    """The datasets of the protocol."""
    frames: Frames
    rule: str
    board: Leaderboard
    """By `rule`."""
    others: dict[str, pd.DataFrame]
    """The values behind the leaderboard by each rule that serves every dataset; see `scores`."""

    @property
    def datasets(self) -> list[str]:
        """The datasets by their labels."""
        return [str(d) for d in self.board.frame["dataset"].unique()]

    def averages(self, kind: str = METHOD) -> pd.DataFrame:
        """The average over test environments of each row of a kind on each dataset."""
        frame = self.board.frame
        own = (frame["kind"] == kind) & (frame["n"] > 0) & frame["environment"].notna()
        found = frame[own & (frame["environment"] == "average")]
        return found.set_index(["dataset", "label"])


def page(name: str) -> str:
    """The page of a board as Markdown; raises UserError as `frozen` does."""
    frames = frozen(name)
    rule = usual(frames)
    others = {}
    for other in ("val_env", "train_val", "oracle"):
        with suppress(UserError):  # a rule that a dataset cannot serve
            others[other] = scores(frames, other)
    values = read_yaml(find_board(name) / PROTOCOL_FILE)["datasets"]
    planned = [d if isinstance(d, str) else str(d.get("label") or d["name"]) for d in values]
    board = standings(frames, rule)
    contents = Contents(Path(name).name, planned, frames, rule, board, others)
    spread = gains_over(others[rule], BASELINE)
    parts = [
        f"# The board {contents.name}\n",
        _about(contents),
        "## Findings\n",
        "\n".join(f"- {sentence}" for sentence in _findings(contents, spread)),
        "\n## Datasets\n",
        _table(_head_room(contents)),
        f"\n## Results by {rule}\n",
        _table(_results(contents.board)),
    ]
    for other in others:
        if other == "train_val" != rule:
            parts += [f"\n## Results by {other}\n", _table(_results(standings(frames, other)))]
    parts += [
        f"\n## Gains over {BASELINE}\n",
        f"Paired by trial, by {rule}; positive is better; 95 % intervals by Student's t over trials. "
        "Bold: the interval does not hold 0.\n",
        _table(_gains(contents, spread)),
        "\n## Ranks\n",
        _table(_ranks(contents)),
        _critical(contents),
        "\n## Close to the best\n",
        "The share of the datasets on which a row's lead over the constant answer is within so much of the "
        "best row's lead.\n",
        _table(_profile(contents)),
        "\n## Cost\n",
        f"Seconds of a run, training and evaluation, beside those of {BASELINE}: the median over "
        "datasets, and each. Runs were trained many at once, with other work beside them.\n",
        _table(_costs(contents)),
    ]
    groups = _groups(contents)
    if groups:
        parts += ["\n## The worst group\n", _sheet(groups)]
    return "\n".join(part.rstrip("\n") if part.startswith("|") else part for part in parts) + "\n"


def _table(block: Block) -> str:
    return _sheet([block])


def _sheet(found: Iterable[Block]) -> str:
    """Blocks as Markdown, without their titles."""
    text = markdown(Sheet(list(found), (), (), pd.DataFrame()))
    return "\n".join(line for line in text.splitlines() if not line.startswith("### ")).strip()


def _results(board: Leaderboard) -> Block:
    """The averages of all rows on all datasets, or the table of the only one."""
    found = blocks(replace(board, origins={}))
    return found[-2] if board.frame["dataset"].nunique() > 1 else found[0]


def _about(contents: Contents) -> str:
    runs = contents.frames.runs
    rows = runs.loc[~runs["ceiling"].eq(True), "label"].nunique()
    draws, trials = runs["draw"].nunique(), runs["trial"].nunique()
    commits = sorted({str(p.get("commit", ""))[:12] for p in runs["provenance"]})
    versions = sorted({f"torch {p.get('torch')}, {p.get('machine')}" for p in runs["provenance"]})
    missing = [dataset for dataset in contents.planned if dataset not in contents.datasets]
    to_come = f" Not frozen yet: {', '.join(missing)}." if missing else ""
    several = "s" * (len(contents.datasets) > 1)
    return (
        f"{rows} rows on {len(contents.datasets)} dataset{several}, {draws} draws x {trials} trials "
        f"each: {len(runs):,} runs. Code: {', '.join(commits)}; {'; '.join(versions)}.{to_come} `python "
        f"-m oodbench.board page {contents.name}` writes this page; the [guide](../guide/boards.md) says "
        "how to put a method of your own beside these.\n"
    )


def _head_room(contents: Contents) -> Block:
    """What each dataset is, and its constant answer, baseline, best row and ceiling."""
    constant = contents.averages(CONSTANT)
    ceiling, rows = contents.averages(CEILING), []
    for dataset in contents.datasets:
        run = contents.frames.runs.query("dataset_label == @dataset").iloc[0]
        hidden = run["network_hparams"]
        size = ", ".join(f"{name} {hidden[name]}" for name in ("width", "depth") if name in hidden)
        best = _best(contents, dataset)
        cells = [
            _cell(constant, dataset, CONSTANT),
            _cell(contents.averages(), dataset, BASELINE),
            f"{best}: {_cell(contents.averages(), dataset, best)}",
            _cell(ceiling, dataset, "ceiling"),
        ]
        kind = contents.board.shifts.get(dataset, "-")
        metric = str(contents.averages().loc[(dataset, BASELINE), "metric"])
        rows.append(
            [dataset, kind, f"{run['network']} {size}".strip(), str(run["steps"]), metric, *cells]
        )
    header = [
        "dataset",
        "shift",
        "network",
        "steps",
        "metric",
        "constant",
        BASELINE,
        "best",
        "ceiling",
    ]
    return Block("Datasets", header, rows, len(rows))


def _cell(averages: pd.DataFrame, dataset: str, label: str) -> str:
    if (dataset, label) not in averages.index:
        return "-"
    row = averages.loc[[(dataset, label)]].iloc[0]
    return number(float(row["mean"]), float(row["stderr"]), str(row["metric"]))


def _best(contents: Contents, dataset: str) -> str:
    """The row with the best mean on a dataset."""
    own = contents.averages().loc[dataset]
    up = contents.board.higher.get(str(own["metric"].iloc[0]), True)
    return str(own["mean"].idxmax() if up else own["mean"].idxmin())


Spread = list[tuple[str, list[Difference]]]


def _of_datasets(contents: Contents, spread: Spread) -> dict[tuple[str, str], Difference]:
    """The gains by dataset and label."""
    known = set(contents.datasets)
    return {(dataset, d.label): d for dataset, own in spread if dataset in known for d in own}


def _sure(d: Difference) -> int:
    """1 or -1 where the interval of a gain is above or below 0, else 0."""
    if d.equal or math.isnan(d.gain.low):
        return 0
    return int(d.gain.low > 0) - int(d.gain.high < 0)


def _order(contents: Contents) -> list[str]:
    """The labels: those with a mean rank, the best first, then the others."""
    ranked = [str(label) for label in mean_ranks(block_table(contents.others[contents.rule])).index]
    labels = contents.others[contents.rule]["label"].unique()
    return [*ranked, *(str(x) for x in labels if x not in ranked)]


def _gains(contents: Contents, spread: Spread) -> Block:
    """The gain of each row over the baseline on each dataset."""
    found = _of_datasets(contents, spread)
    rows: list[list[str]] = []
    marked: set[tuple[int, int]] = set()
    for label in _order(contents):
        if label == BASELINE:
            continue
        cells = [label]
        for dataset in contents.datasets:
            d = found.get((dataset, label))
            cells.append("-" if d is None else _gain(contents, dataset, d))
            if d is not None and _sure(d):
                marked.add((len(rows), len(cells) - 1))
        rows.append(cells)
    return Block("Gains", ["algorithm", *contents.datasets], rows, len(rows), best=marked)


def _gain(contents: Contents, dataset: str, d: Difference) -> str:
    if d.equal:
        return "equal"
    metric = str(contents.averages().loc[(dataset, BASELINE), "metric"])
    return f"{gain(d.gain.mean, metric)} [{gain(d.gain.low, metric)}, {gain(d.gain.high, metric)}]"


def _first_draws(frames: Frames, count: int) -> Frames:
    """The frames of the first `count` draws alone."""
    runs = frames.runs[frames.runs["draw"] < count].reset_index(drop=True)
    judged = frames.scores[frames.scores["id"].isin(runs["id"])]
    return replace(frames, runs=runs, metrics=records_of(frames.metrics, runs["id"]), scores=judged)


def _rankings(contents: Contents) -> "dict[str, pd.Series[float]]":
    """Mean ranks: by each rule, of fewer draws, and without each dataset; the first is the page's own."""
    own = block_table(contents.others[contents.rule])
    found = {contents.rule: mean_ranks(own)}
    for rule, table in contents.others.items():
        if rule != contents.rule:
            found[rule] = mean_ranks(block_table(table))
    planned = contents.frames.runs["draw"].nunique()
    for count in DRAWS:
        if count < planned:
            fewer = scores(_first_draws(contents.frames, count), contents.rule)
            found[f"{count} draw{'s' * (count > 1)}"] = mean_ranks(block_table(fewer))
    if len(own) > 1:
        for dataset in own.index:
            found[f"without {dataset}"] = mean_ranks(own.drop(dataset))
    return found


def _ranks(contents: Contents) -> Block:
    """The mean rank of each row that is complete on every dataset, and what moves it."""
    found = _rankings(contents)
    own, *rest = found
    left_out = [name for name in rest if name.startswith("without ")]
    shown = [name for name in rest if name not in left_out]
    rows = []
    for label, rank in found[own].items():
        cells = [
            str(label),
            f"{rank:.2f}",
            *(f"{found[name].get(label, math.nan):.2f}" for name in shown),
        ]
        without = [float(found[name][str(label)]) for name in left_out]
        rows.append([*cells, f"{min(without):.2f} to {max(without):.2f}" if without else "-"])
    taus = [kendall(found[own], found[name]) for name in rest]
    told = dict(zip(rest, taus, strict=True))
    cells = [f"{told[name]:.2f}" for name in shown]
    without = [told[name] for name in left_out]
    last = f"{min(without):.2f} to {max(without):.2f}" if without else "-"
    rows.append([f"Kendall's tau with {own}", "1", *cells, last])
    header = ["algorithm", own, *shown, "without a dataset"]
    return Block("Ranks", header, rows, len(rows) - 1, grey=1)


def _critical(contents: Contents) -> str:
    table = block_table(contents.others[contents.rule])
    if table.shape[0] < 2 or table.shape[1] < 3:
        return ""
    width = critical_difference(table.shape[1], table.shape[0])
    return (
        f"\nMean ranks of {table.shape[1]} rows on {table.shape[0]} datasets differ beyond chance "
        f"(Nemenyi, 5 %) if they are {width:.1f} apart. A row that cannot be run on a dataset has none."
    )


def _leads(contents: Contents) -> pd.DataFrame:
    """The lead of each row (columns) over the constant answer on each dataset, the best one's being 1."""
    means, constant = contents.averages()["mean"], contents.averages(CONSTANT)["mean"]
    found = {}
    for dataset in contents.datasets:
        if (dataset, CONSTANT) not in constant.index:
            continue
        lead = means[dataset] - constant[dataset, CONSTANT]
        metric = str(contents.averages().loc[(dataset, BASELINE), "metric"])
        lead = lead if contents.board.higher.get(metric, True) else -lead
        if lead.max() > 0:
            found[dataset] = lead / lead.max()
    return pd.DataFrame(found).T


def _profile(contents: Contents) -> Block:
    leads = _leads(contents)
    near = {share: (leads >= 1 - share).mean() for share in SHARES}
    rows = [
        [label, *(f"{near[share][label]:.2f}" for share in SHARES)]
        for label in _order(contents)
        if label in leads and leads[label].notna().all()
    ]
    rows.sort(key=lambda row: [float(cell) for cell in row[1:]], reverse=True)
    header = ["algorithm", *(f"within {100 * share:g} %" for share in SHARES)]
    return Block("Close to the best", header, rows, len(rows))


def _costs(contents: Contents) -> Block:
    runs = contents.frames.runs
    seconds = (
        runs.groupby(["label", "dataset_label"], sort=False)["training_seconds"].mean().unstack()
    )
    seconds = seconds[contents.datasets]
    ratio = seconds / seconds.loc[BASELINE]
    rows = []
    for label in _order(contents):
        own = ratio.loc[label]
        middle = float(np.nanmedian(own.to_numpy(float)))
        cells = ["-" if math.isnan(v) else f"{v:.1f}" for v in own]
        rows.append([label, f"{middle:.1f}", *cells])
    plain = seconds.loc[BASELINE]
    rows.append([f"{BASELINE}, seconds", f"{plain.median():.2f}", *(f"{v:.2f}" for v in plain)])
    return Block("Cost", ["algorithm", "median", *contents.datasets], rows, len(rows) - 1, grey=1)


def _groups(contents: Contents) -> list[Block]:
    """Tables of the worst group's accuracy, of datasets that record it, by the rule that selects by it."""
    found = []
    metric = "worst_group_accuracy"
    for dataset in contents.datasets:
        own = only_dataset(contents.frames, dataset)
        if metric in set(own.metrics["metric"].astype(object)):
            with suppress(UserError):
                found += blocks(standings(own, f"{contents.rule}:{metric}", metric))
    return found


def _listed(labels: Iterable[str]) -> str:
    return ", ".join(labels) or "none"


def _findings(contents: Contents, spread: Spread) -> list[str]:
    """What the tables say in plain words."""
    found = _of_datasets(contents, spread)
    labels = [label for label in _order(contents) if label != BASELINE]
    told = []
    for dataset in contents.datasets:
        own = {label: found[dataset, label] for label in labels if (dataset, label) in found}
        better = sorted(
            (x for x, d in own.items() if _sure(d) > 0), key=lambda x: -own[x].gain.mean
        )
        worse = sum(_sure(d) < 0 for d in own.values())
        if better:
            first = own[better[0]]
            more = f", most of all {better[0]} ({_gain(contents, dataset, first)})"
            rest = f"; the others are {_listed(better[1:6])}" if len(better) > 1 else ""
            rest += f" and {len(better) - 6} more" if len(better) > 6 else ""
            many = f"{len(better)} of {len(own)} rows gain over {BASELINE}"
            told.append(f"**{dataset}**: {many}{more}{rest}; {worse} lose.")
        else:
            told.append(f"**{dataset}**: no row of {len(own)} gains over {BASELINE}; {worse} lose.")

    def everywhere(wanted: Callable[[list[int]], bool]) -> list[str]:
        return [
            label
            for label in labels
            if wanted([_sure(found[d, label]) for d in contents.datasets if (d, label) in found])
        ]

    never = everywhere(lambda signs: max(signs, default=0) <= 0)
    told.append(f"Rows that gain over {BASELINE} on no dataset: {_listed(never)}.")
    safe = everywhere(lambda signs: min(signs, default=0) >= 0 and max(signs, default=0) > 0)
    told.append(f"Rows that gain somewhere and lose nowhere: {_listed(safe)}.")
    told += _of_selection(contents)
    return told


def _of_selection(contents: Contents) -> list[str]:
    """What it costs that a rule cannot see the test environments."""
    told: list[str] = []
    if "oracle" not in contents.others:
        return told
    seen = _means(contents.others["oracle"])
    for rule in ("val_env", "train_val"):
        if rule not in contents.others:
            continue
        lost = (seen - _means(contents.others[rule])).mul(100)
        worst = lost.groupby("dataset").mean().sort_values()
        told.append(
            f"Selection by {rule} costs {lost.mean():.1f} points on the mean over rows and datasets "
            "measured by accuracy, beside selection on the test environment itself; most on "
            f"{worst.index[-1]} ({worst.iloc[-1]:.1f})."
        )
    return told


def _means(table: pd.DataFrame) -> "pd.Series[float]":
    """The mean of each row on each dataset whose metric is accuracy."""
    own = table[table["metric"] == "accuracy"]
    return own.groupby(["dataset", "label"])["value"].mean()
