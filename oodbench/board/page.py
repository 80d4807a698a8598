"""The page of a board: its tables, and findings each of which follows from a number in them.

Imports no torch.
"""

import math
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path

import pandas as pd
from markdown_it import MarkdownIt

from oodbench.board import page_tables as tables
from oodbench.board.findings import findings
from oodbench.board.page_tables import BASELINE, Contents, contents
from oodbench.report.formats import markdown
from oodbench.report.leaderboard import standings
from oodbench.report.sheet import Block, Sheet
from oodbench.results.metrics import is_proportion

TEMPLATE = Path(__file__).with_name("page.html")


def page(name: str) -> str:
    """The page of a board as Markdown; raises UserError as `frozen` does."""
    found = contents(name)
    intervals = sum(not difference.equal for difference in found.gains.values())
    parts = [
        f"# The board {found.name}",
        _about(found),
        "## Findings",
        "\n".join(f"- {sentence}" for sentence in findings(found)),
        "## Datasets",
        _tables([tables.head_room(found)]),
        f"## Results by {found.rule}",
        _of_results(found),
        _tables(tables.results(found.board)),
    ]
    if "train_val" in found.values and found.rule != "train_val":
        own = standings(tables.serving(found.frames, "train_val"), "train_val")
        left_out = [d for d in found.datasets if d not in set(own.frame["dataset"])]
        parts += ["## Results by train_val"]
        parts += [f"Without {'; '.join(left_out)}, which this rule cannot judge."] * bool(left_out)
        parts += [_tables(tables.results(own))]
    parts += [
        f"## Gains over {BASELINE}",
        f"Paired by trial, by {found.rule}; positive is better; 95 % intervals by Student's t over "
        f"trials. Bold: the interval does not hold 0. There are {intervals} intervals, and nothing is "
        "corrected for their number: of rows that are as good as the baseline one in 20 is bold.",
        _tables([tables.gains(found)]),
        "## Ranks",
        _of_ranks(found),
        _tables([tables.ranks(found)]),
        "## Close to the best",
        "The share of the datasets on which a row's error (1 - accuracy, or the mse) is at most so much "
        "larger than the best row's.",
        _tables([tables.profile(found)]),
        "## Cost",
        f"Seconds of a run, training and evaluation, beside those of {BASELINE}: the median over "
        "datasets, and each. The runs of a row were trained many at once; those marked *alone* one by "
        f"one, which is most of their difference to {BASELINE}. Other work went on beside them: where a "
        f"method that adds to the step of {BASELINE} has a ratio below 1, that is what moved it.",
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
    rows = runs.loc[~runs["ceiling"].eq(True), "label"].nunique()
    draws, trials = runs["draw"].nunique(), runs["trial"].nunique()
    commits = sorted({str(made.get("commit", ""))[:12] for made in runs["provenance"]})
    machines = sorted({f"torch {p.get('torch')}, {p.get('machine')}" for p in runs["provenance"]})
    missing = [dataset for dataset in found.planned if dataset not in found.datasets]
    to_come = f" Not frozen yet: {'; '.join(missing)}." if missing else ""
    several = "s" * (len(found.datasets) > 1)
    return (
        f"{rows} rows on {len(found.datasets)} dataset{several}, {draws} draws x {trials} trials "
        f"each: {len(runs):,} runs. Code: {', '.join(commits)}; {'; '.join(machines)}.{to_come} `python "
        f"-m oodbench.board page {found.name}` writes this page; the [guide](../guide/boards.md) says "
        "how to put a method of your own beside these."
    )


def _of_results(found: Contents) -> str:
    metrics = {dataset: found.metric(dataset) for dataset in found.datasets}
    text = "Means and standard errors over trials, of the metric above."
    if not all(map(is_proportion, metrics.values())):
        text += " The average is that of the datasets in %."
    runs = found.frames.runs
    apart = runs.loc[runs["transductive"].eq(True), "label"].unique()
    seen = f" Predictions of {', '.join(apart)} depend on the other test inputs." * (len(apart) > 0)
    return f"{text} Only rows that have run everywhere are ranked, among each other.{seen}"


def _of_ranks(found: Contents) -> str:
    text = (
        "By each rule, with fewer draws (the first is a method's defaults), and without a dataset."
    )
    width = tables.critical(found)
    if not math.isnan(width):
        blocks, labels = found.table.shape
        text += (
            f" Mean ranks of {labels} rows on {blocks} datasets differ beyond chance (Nemenyi, 5 %) if "
            f"they are {width:.1f} apart."
        )
    return f"{text} A row that cannot be run on a dataset has none."
