"""The page of a board: its tables, and findings each of which follows from a number in them."""

import math
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path

import pandas as pd
from markdown_it import MarkdownIt

from oodbench.board import page_tables as tables
from oodbench.board.beside import range_notes
from oodbench.board.findings import findings
from oodbench.board.page_tables import BASELINE, Contents, contents
from oodbench.metrics import is_proportion
from oodbench.report.formats import markdown
from oodbench.report.leaderboard import leaderboard_by_rule
from oodbench.report.ranking import block_table
from oodbench.report.sheet import Block, Sheet
from oodbench.selection import USUAL

TEMPLATE = Path(__file__).with_name("page.html")


def page(name: str) -> str:
    """The page of a board as Markdown; raises UserError as `frozen` does."""
    found = contents(name)
    intervals = sum(not difference.equal for difference in found.gains.values())
    parts = [
        f"# The board {found.name}",
        _about(found),
        "## Findings",
        f"A row gains or loses where the 95 % interval of its paired difference to {BASELINE} does not "
        f"hold 0. There are {intervals} intervals, not corrected for their number; a large difference "
        "over few trials need not be a gain.",
        "\n".join(f"- {sentence}" for sentence in findings(found)),
        "## Datasets",
        _tables([tables.head_room(found)]),
        f"## Results by {found.rule}",
        _of_results(found),
        _tables(tables.results(found.board)),
    ]
    if USUAL in found.values and found.rule != USUAL:
        own = leaderboard_by_rule(tables.serving(found.frames, USUAL), USUAL)
        left_out = [d for d in found.datasets if d not in set(own.frame["dataset"])]
        parts += [f"## Results by {USUAL}"]
        parts += [f"Without {'; '.join(left_out)}, which this rule cannot judge."] * bool(left_out)
        parts += [_tables(tables.results(own))]
    parts += [
        f"## Gains over {BASELINE}",
        f"Paired by trial, by {found.rule}; positive is better; 95 % intervals by Student's t over "
        f"trials. Bold: the interval does not hold 0 (a bound of +0.0 is above it, one of -0.0 below). "
        f"There are {intervals} intervals, and nothing is "
        "corrected for their number: of rows that are as good as the baseline one in 20 is bold.",
        _tables([tables.gains(found)]),
        "## Ranks",
        _of_ranks(found),
        _tables([tables.ranks(found)]),
        *_of_selection(found),
        "## Close to the best",
        "The share of the datasets on which a row's error (1 - accuracy, or the mse) is at most so much "
        "larger than the best row's.",
        _tables([tables.profile(found)]),
        "## Cost",
        f"Seconds of a row's fastest run, training and evaluation, beside {BASELINE}'s: the median over "
        "datasets, and each. The runs of a row were trained many at once; those marked *alone* one by "
        f"one, which is most of their difference to {BASELINE}. Other work went on beside them: a ratio "
        f"below 1 of a method that adds to the step of {BASELINE}, or one far above those of its other "
        "datasets, is of that work.",
        _tables([tables.costs(found)]),
    ]
    groups = tables.worst_group(found)
    if groups:
        parts += [
            "## The worst group",
            f"Accuracy of the worst group, selected by {found.rule}:{tables.WORST_GROUP}.",
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


def _tables(found: Iterable[Block]) -> str:
    """Blocks as Markdown; only those after the first have a title."""
    text = markdown(Sheet(list(found), (), (), pd.DataFrame()))
    return text.partition("\n\n")[2].strip()


def _about(found: Contents) -> str:
    runs = found.frames.runs
    of_rows = runs[~runs["ceiling"].eq(True)].groupby("label")["dataset_label"].nunique()
    rows, whole = len(of_rows), sum(of_rows == len(found.datasets))
    draws, trials = runs["draw"].nunique(), runs["trial"].nunique()
    commits = sorted({str(made.get("commit", ""))[:12] for made in runs["provenance"]})
    machines = sorted({f"torch {p.get('torch')}, {p.get('machine')}" for p in runs["provenance"]})
    missing = [dataset for dataset in found.planned if dataset not in found.datasets]
    to_come = f" Not frozen yet: {'; '.join(missing)}." if missing else ""
    several = "s" * (len(found.datasets) > 1)
    return (
        f"{rows} rows on {len(found.datasets)} dataset{several}, {whole} of them on all, {draws} draws x "
        f"{trials} trials each: {len(runs):,} runs. Code: {', '.join(commits)}; "
        f"{'; '.join(machines)}.{to_come} `python -m oodbench.board page {found.name}` writes this page; "
        "the [guide](../guide/boards.md) says how to put a method of your own beside these."
    )


def _of_results(found: Contents) -> str:
    metrics = {dataset: found.metric(dataset) for dataset in found.datasets}
    text = "Means and standard errors over trials, of the metric above."
    if not all(map(is_proportion, metrics.values())):
        text += " The average is that of the datasets in %."
    runs = found.frames.runs
    apart = runs.loc[runs["transductive"].eq(True), "label"].unique()
    seen = f" Predictions of {', '.join(apart)} depend on the other test inputs." * (len(apart) > 0)
    ranges = "".join(f" {note}" for note in range_notes(runs))
    return f"{text} Only rows that have run everywhere are ranked, among each other.{seen}{ranges}"


def _of_selection(found: Contents) -> list[str]:
    """The section on what selection costs, where a dataset has the oracle."""
    table = tables.selection(found)
    if not table.rows:
        return []
    about = (
        "Points of accuracy that a row has less than if it were selected by the test environment itself "
        "(the rule oracle): means over rows on each dataset, and the mean of these. Datasets that are not "
        "here have another metric, or a test environment without held-out examples."
    )
    return ["## What selection costs", about, _tables([table])]


def _of_ranks(found: Contents) -> str:
    text = (
        "By each rule, with fewer draws (the first is a method's defaults), and without a dataset. A rule "
        "ranks on the datasets that it can judge; Kendall's tau is over those that both rules judge."
    )
    others = [block_table(values) for values in found.values.values()]
    widths = {table.shape: tables.critical(table) for table in (found.table, *others)}
    for (blocks, labels), width in widths.items():
        if not math.isnan(width):
            text += (
                f" Mean ranks of {labels} rows on {blocks} datasets differ beyond chance (Nemenyi, 5 %) "
                f"if they are {width:.1f} apart."
            )
    return f"{text} A row that cannot be run on a dataset has none."
