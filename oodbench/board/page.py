"""The page of a board: its tables, and findings each of which follows from a number in them."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

from oodbench.board import agreement, entries, gap_tables
from oodbench.board import page_tables as tables
from oodbench.board.beside import range_notes
from oodbench.board.differences import origin
from oodbench.board.files import find_board
from oodbench.board.gap_tables import BASELINE
from oodbench.board.page_tables import (
    Contents,
    contents,
    critical,
    gain_text,
    selection_costs,
    sign,
)
from oodbench.board.protocol import Tier, tiers
from oodbench.metrics import is_proportion
from oodbench.report.formats import Block, Sheet, markdown
from oodbench.report.leaderboard import leaderboard_by_rule
from oodbench.report.statistics import block_table, mean_ranks
from oodbench.selection import USUAL

NAMED = 6
"""How many of the rows that gain on a dataset are named."""
TEMPLATE = Path(__file__).with_name("page.html")


def page(name: str) -> str:
    """The page of a board as Markdown; raises UserError as `frozen` does."""
    board = contents(name)
    intervals = sum(not difference.equal for difference in board.gains.values())
    parts = [
        f"# The board {board.name}",
        _about(board),
        *_section_on_gaps(board),
        "## Findings",
        f"A row gains or loses where the 95 % interval of its paired difference to {BASELINE} does not "
        f"hold 0. There are {intervals} intervals, not corrected for their number; a large difference "
        "over few trials need not be a gain.",
        "\n".join(f"- {sentence}" for sentence in findings(board)),
        "## Datasets",
        _tables([tables.head_room(board)]),
        f"## Results by {board.rule}",
        _about_results(board),
        _tables(tables.results(board.leaderboard)),
    ]
    if USUAL in board.values and board.rule != USUAL:
        by_usual = leaderboard_by_rule(gap_tables.serving(board.frames, USUAL), USUAL)
        left_out = [d for d in board.datasets if d not in set(by_usual.frame["dataset"])]
        parts += [f"## Results by {USUAL}"]
        parts += [f"Without {'; '.join(left_out)}, which this rule cannot judge."] * bool(left_out)
        parts += [_tables(tables.results(by_usual))]
    parts += [
        f"## Gains over {BASELINE}",
        f"Paired by trial, by {board.rule}; positive is better; 95 % intervals by Student's t over "
        f"trials. Bold: the interval does not hold 0 (a bound of +0.0 is above it, one of -0.0 below). "
        f"There are {intervals} intervals, and nothing is "
        "corrected for their number: of rows that are as good as the baseline one in 20 is bold.",
        _tables([tables.gains(board)]),
        "## Ranks",
        _about_ranks(board),
        _tables([tables.ranks(board)]),
        *_section_on_selection(board),
        *_section_on_agreement(board, tiers(find_board(name))),
        "## Close to the best",
        "The share of the datasets on which a row's error (1 - accuracy, or the mse) is at most so much "
        "larger than the best row's.",
        _tables([tables.profile(board)]),
        "## Cost",
        f"Seconds of a row's fastest run, training and evaluation, beside {BASELINE}'s: the median over "
        "datasets, and each. The runs of a row were trained many at once; those marked *alone* one by "
        f"one, which is most of their difference to {BASELINE}. Other work went on beside them: a ratio "
        f"below 1 of a method that adds to the step of {BASELINE}, or one far above those of its other "
        "datasets, is of that work.",
        _tables([tables.costs(board)]),
    ]
    if (entered := entries.table(find_board(name))).rows:
        parts += ["## Rows that others entered", _tables([entered])]
    groups = tables.worst_group(board)
    if groups:
        parts += [
            "## The worst group",
            f"Accuracy of the worst group, selected by {board.rule}:{tables.WORST_GROUP}.",
            _tables(groups),
        ]
    return "\n\n".join(parts) + "\n"


def html_page(text: str) -> str:
    """A page in Markdown as one HTML file that needs no other."""
    body = MarkdownIt("commonmark").enable("table").render(text)
    body = body.replace("<table>", '<div class="wide"><table>').replace(
        "</table>", "</table></div>"
    )
    titles = re.findall("<h2>(.*?)</h2>", body)
    for i, title in enumerate(titles):
        body = body.replace(f"<h2>{title}</h2>", f'<h2 id="s{i}">{title}</h2>')
    links = " ".join(f'<a href="#s{i}">{title}</a>' for i, title in enumerate(titles))
    body = body.replace("</h1>", f"</h1>\n<nav>{links}</nav>", 1)
    name = escape(text.splitlines()[0].removeprefix("# "))
    return TEMPLATE.read_text().replace("@title@", name).replace("@body@", body)


def _tables(blocks: Iterable[Block]) -> str:
    """Blocks as Markdown; only those after the first have a title."""
    text = markdown(Sheet(list(blocks), (), (), {}))
    return text.partition("\n\n")[2].strip()


def _about(contents: Contents) -> str:
    runs = contents.frames.runs
    of_rows = runs[~runs["ceiling"].eq(True)].groupby("label")["dataset_label"].nunique()
    rows, whole = len(of_rows), sum(of_rows == len(contents.datasets))
    draws, trials = runs["draw"].nunique(), runs["trial"].nunique()
    commits = sorted({str(made.get("commit", ""))[:12] for made in runs["provenance"]})
    missing = [dataset for dataset in contents.planned if dataset not in contents.datasets]
    to_come = f" Not frozen yet: {'; '.join(missing)}." if missing else ""
    count, name = len(contents.datasets), contents.name
    return (
        f"{rows} rows on {count} dataset{'s' * (count > 1)}, {whole} of them on all, {draws} draws x "
        f"{trials} trials each: {len(runs):,} runs. {origin(runs)} Commit: {', '.join(commits)}."
        f"{to_come} `python -m oodbench.board page {name}` writes this page; "
        "the [guide](../guide/boards.md) says how to put a method of your own beside these."
    )


def _about_results(contents: Contents) -> str:
    metrics = {dataset: contents.metric(dataset) for dataset in contents.datasets}
    text = "Means and standard errors over trials, of the metric above."
    if not all(map(is_proportion, metrics.values())):
        text += " The average is that of the datasets in %."
    runs = contents.frames.runs
    apart = runs.loc[runs["transductive"].eq(True), "label"].unique()
    seen = f" Predictions of {', '.join(apart)} depend on the other test inputs." * (len(apart) > 0)
    ranges = "".join(f" {note}" for note in range_notes(runs))
    return f"{text} Only rows that have run everywhere are ranked, among each other.{seen}{ranges}"


def _section_on_selection(contents: Contents) -> list[str]:
    """The section on what selection costs, where a dataset has the oracle."""
    table = tables.selection(contents)
    if not table.rows:
        return []
    about = (
        "Points of accuracy that a row has less than if it were selected by the test environment itself "
        "(the rule oracle): means over rows on each dataset, and the mean of these. Datasets that are not "
        "here have another metric, or a test environment without held-out examples."
    )
    return ["## What selection costs", about, _tables([table])]


def _section_on_gaps(contents: Contents) -> list[str]:
    """The section on the share of the gap closed, where the board's rule has one."""
    gaps = contents.gaps.get(contents.rule)
    if gaps is None:
        return []
    return [
        "## The gap closed",
        gap_tables.about(gaps),
        "\n".join(f"- {sentence}" for sentence in gap_tables.findings(gaps)),
        _titled([gap_tables.headline(gaps)]),
        "P(better): by the Bayesian signed-rank test on the shares of the datasets. Gains and losses: "
        "datasets on which the paired t-test finds one at 5 % after Holm's correction over all rows and "
        "datasets. Win rate: the share of the other rows that a row beats, a mean over datasets.",
        _titled([gap_tables.against_baseline(gaps)]),
        _titled([gap_tables.by_dataset(gaps), gap_tables.by_shift(gaps)]),
    ]


def _section_on_agreement(contents: Contents, declared: Mapping[str, Tier]) -> list[str]:
    """The section on how much datasets and rules agree, where there are shares of the gap."""
    gaps = contents.gaps.get(contents.rule)
    if gaps is None:
        return []
    several = contents.gaps if len(contents.gaps) > 1 else {}
    blocks = [agreement.datasets_agree(gaps)] if len(gaps.shares) > 1 else []
    blocks += [agreement.rules_agree(several)] if several else []
    cost = agreement.rules_cost(several)
    blocks += [cost] if cost else []
    if declared:
        blocks.append(agreement.tiers_agree(gaps, contents.frames, declared))
    line = agreement.on_the_line(contents.frames)
    about = (
        "Orders of rows by the share of the gap, on datasets and by rules that have both. A dataset on "
        "which values in and out of distribution go together rewards whatever fits better."
    )
    return ["## How much is agreed", about, _titled([*blocks, *[line] * bool(line.rows)])]


def _titled(blocks: Iterable[Block]) -> str:
    """Blocks as Markdown, each with its title."""
    return markdown(Sheet(list(blocks), (), (), {})).strip()


def _about_ranks(contents: Contents) -> str:
    text = (
        "By each rule, with fewer draws (the first is a method's defaults), and without a dataset. A rule "
        "ranks on the datasets that it can judge; Kendall's tau is over those that both rules judge."
    )
    others = [block_table(values) for values in contents.values.values()]
    widths = {table.shape: tables.critical(table) for table in (contents.table, *others)}
    for (blocks, labels), width in widths.items():
        if not math.isnan(width):
            text += (
                f" Mean ranks of {labels} rows on {blocks} datasets differ beyond chance (Nemenyi, 5 %) "
                f"if they are {width:.1f} apart."
            )
    return f"{text} A row that cannot be run on a dataset has none."


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
    """Which rows gain over the baseline on a dataset, how many lose, and which have its numbers."""
    gains = {label: d for (of, label), d in contents.gains.items() if of == dataset}
    better = sorted((x for x in gains if sign(gains[x]) > 0), key=lambda x: -gains[x].gain.mean)
    lose = f"{sum(sign(d) < 0 for d in gains.values())} lose"
    equal = [x for x in gains if gains[x].equal]
    if equal:
        lose += f"; exactly {BASELINE}'s numbers have {_listed(equal)}"
    if not better:
        return f"**{dataset}**: no row of {len(gains)} gains over {BASELINE}; {lose}."
    first, *others = better
    most = f"{first} ({gain_text(contents, dataset, first)} {contents.unit(dataset)})"
    rest = f"; the others are {_listed(others[: NAMED - 1])}" if others else ""
    rest += f" and {len(better) - NAMED} more" if len(better) > NAMED else ""
    return (
        f"**{dataset}**: {len(better)} of {len(gains)} rows gain over {BASELINE}, most of all "
        f"{most}{rest}; {lose}."
    )


def _of_ranks(contents: Contents) -> list[str]:
    """Which mean ranks are further from the baseline's than chance."""
    mean, width = mean_ranks(contents.table), critical(contents.table)
    if math.isnan(width) or BASELINE not in mean:
        return []
    lead = mean[BASELINE] - mean
    return [
        f"Rows whose mean rank is ahead of {BASELINE}'s by more than the critical difference: "
        f"{_listed(mean.index[lead > width])}; behind it by more: {_listed(mean.index[-lead > width])}."
    ]


def _of_selection(contents: Contents) -> list[str]:
    """What it costs that a rule cannot see the test environments."""
    costs = selection_costs(contents)
    sentences = []
    for rule, by_rule in costs.groupby("rule", sort=False):
        of_datasets = by_rule.groupby("dataset")["cost"].mean().sort_values()
        most = f"; most on {of_datasets.index[-1]} ({of_datasets.iloc[-1]:.1f})"
        sentences.append(
            f"Selection by {rule} costs {of_datasets.mean():.1f} points on the mean over rows, then "
            f"over the datasets on which accuracy can be selected by the test environment itself"
            f"{most if len(of_datasets) > 1 else ''}."
        )
    return sentences
