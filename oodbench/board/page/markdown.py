"""The page of a board as Markdown: its tables, and findings each of which follows from a number in them."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from oodbench.board.page import agreement, claims, tables
from oodbench.board.page.contents import Contents
from oodbench.board.page.findings import findings
from oodbench.board.protocol import tiers
from oodbench.metrics import is_proportion
from oodbench.report import gap_tables
from oodbench.report.beside import range_notes
from oodbench.report.differences import origin
from oodbench.report.formats import Block, Sheet, markdown
from oodbench.report.gap_tables import BASELINE, Gaps
from oodbench.report.gaps import EQUAL
from oodbench.report.leaderboard import leaderboard_by_rule
from oodbench.report.remarks import number_of_trials
from oodbench.report.statistics import block_table
from oodbench.results.boards import called, frozen_folder
from oodbench.results.parts import WORST_GROUP
from oodbench.selection import USUAL

NOT_PORTABLE = (
    "These numbers are of that version and processor alone: it had no portable arithmetic, so that a rerun "
    "elsewhere need not be equal."
)
ABOUT_PRECISION = (
    f"How exact gains over {BASELINE} are: the medians over rows of the half-widths of their 95 % "
    "intervals, and of the smallest gain that so many trials find with 80 % power, beside the head-room "
    f"between {BASELINE} and the ceiling. An interval is narrow if its half-width is at most 2 points or "
    "5 % of the head-room."
)
ABOUT_PROFILE = (
    "The share of the datasets on which a row's error (1 - accuracy, or the mse) is at most so much "
    "larger than the best row's."
)
ABOUT_COSTS = (
    f"Seconds of a row's fastest run, training and evaluation, beside {BASELINE}'s: the median over "
    "datasets, and each. The runs of a row were trained many at once; those marked *alone* one by "
    f"one, which is most of their difference to {BASELINE}. Other work went on beside them: a ratio "
    f"below 1 of a method that adds to the step of {BASELINE}, or one far above those of its other "
    "datasets, is of that work."
)


@dataclass(frozen=True)
class Section:
    """A part of the page under a title."""

    title: str
    write: Callable[[], str]
    """Returns its text as Markdown."""
    drawn: bool = False
    """Whether the HTML page draws it by itself, from numbers that it computes again."""


def markdown_page(board: Contents) -> str:
    """The page of a board as Markdown."""
    parts = [f"# The board {board.name}", about(board)]
    parts += [part for one in sections(board) for part in (f"## {one.title}", one.write())]
    return "\n\n".join(parts) + "\n"


def sections(board: Contents) -> list[Section]:
    """The sections of a board's page."""
    in_order = [
        *_of_gaps(board),
        Section("Findings", lambda: _findings(board)),
        Section("Datasets", lambda: _tables([tables.head_room(board)])),
        Section("Precision", lambda: f"{ABOUT_PRECISION}\n\n{_tables([tables.precision(board)])}"),
        *_of_results(board),
        Section(f"Gains over {BASELINE}", lambda: _gains(board), drawn=True),
        Section("Ranks", lambda: f"{_about_ranks(board)}\n\n{_tables([tables.ranks(board)])}"),
        *_of_selection(board),
        *_of_agreement(board),
        Section(
            "Close to the best", lambda: f"{ABOUT_PROFILE}\n\n{_tables([tables.profile(board)])}"
        ),
        Section("Cost", lambda: f"{ABOUT_COSTS}\n\n{_tables([tables.costs(board)])}", drawn=True),
    ]
    if groups := tables.worst_group(board):
        about_groups = f"Accuracy of the worst group, selected by {board.rule}:{WORST_GROUP}."
        in_order.append(Section("The worst group", lambda: f"{about_groups}\n\n{_tables(groups)}"))
    return in_order


def _findings(board: Contents) -> str:
    listed = "\n".join(f"- {sentence}" for sentence in findings(board))
    return (
        f"A row gains or loses where the 95 % interval of its paired difference to {BASELINE} does not "
        f"hold 0. There are {board.intervals} intervals, not corrected for their number; a large "
        f"difference over few trials need not be a gain.\n\n{listed}"
    )


def _of_results(board: Contents) -> list[Section]:
    """The sections of results by the board's rule, and by the usual one if that is another."""
    shown = [Section(f"Results by {board.rule}", lambda: _results(board), drawn=True)]
    if USUAL in board.values and board.rule != USUAL:
        shown.append(Section(f"Results by {USUAL}", lambda: _usual_results(board), drawn=True))
    return shown


def _results(board: Contents) -> str:
    return f"{_about_results(board)}\n\n{_tables(tables.results(board.leaderboard))}"


def _usual_results(board: Contents) -> str:
    by_usual = leaderboard_by_rule(gap_tables.serving(board.frames, USUAL), USUAL)
    left_out = [d for d in board.datasets if d not in set(by_usual.frame["dataset"])]
    text = f"Without {'; '.join(left_out)}, which this rule cannot judge.\n\n" * bool(left_out)
    return text + _tables(tables.results(by_usual))


def _gains(board: Contents) -> str:
    about = (
        f"Paired by trial, by {board.rule}; positive is better; 95 % intervals by Student's t over "
        f"trials. Bold: the interval does not hold 0 (a bound of +0.0 is above it, one of -0.0 below). "
        f"There are {board.intervals} intervals, and nothing is "
        "corrected for their number: of rows that are as good as the baseline one in 20 is bold."
    )
    return f"{about}\n\n{_tables([tables.gains(board)])}"


def _tables(blocks: Iterable[Block]) -> str:
    """Blocks as Markdown, the first without its title, as the section has one."""
    text = markdown(Sheet(list(blocks), (), (), {}))
    return text.partition("\n\n")[2].strip()


def about(contents: Contents) -> str:
    """A paragraph on the board's size, and on the code and machines that trained it."""
    runs = contents.frames.runs
    of_rows = runs[~runs["ceiling"].eq(True)].groupby("label")["dataset_label"].nunique()
    rows, whole = len(of_rows), sum(of_rows == len(contents.datasets))
    draws, trials = runs["draw"].nunique(), number_of_trials(runs)
    commits = sorted({str(made.get("commit", ""))[:12] for made in runs["provenance"]})
    missing = [dataset for dataset in contents.planned if dataset not in contents.datasets]
    to_come = f" Not frozen yet: {'; '.join(missing)}." if missing else ""
    portable = all("arithmetic" in made for made in runs["provenance"])
    to_come += "" if portable else f" {NOT_PORTABLE}"
    count, name = len(contents.datasets), called(contents.folder)
    guide = "; the [guide](../guide/boards.md) says how to put a method of your own beside these"
    guide *= contents.folder.parent == frozen_folder()
    return (
        f"{rows} rows on {count} dataset{'s' * (count > 1)}, {whole} of them on all, {draws} draws x "
        f"{trials} trials each: {len(runs):,} runs. {origin(runs)} Commit: {', '.join(commits)}."
        f"{to_come} `python -m oodbench.board page {name}` writes this page{guide}."
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


def _of_selection(contents: Contents) -> list[Section]:
    """The section on what selection costs; none where no dataset has the oracle."""
    table = tables.selection(contents)
    if not table.rows:
        return []
    about = (
        "Points of accuracy that a row has less than if it were selected by the test environment itself "
        "(the rule oracle): means over rows on each dataset, and the mean of these. Datasets that are not "
        "here have another metric, or a test environment without held-out examples."
    )
    return [Section("What selection costs", lambda: f"{about}\n\n{_tables([table])}")]


def _of_gaps(contents: Contents) -> list[Section]:
    """The sections on the gap closed and on papers' claims; none without a clear head-room."""
    gaps = contents.gaps.get(contents.rule)
    if gaps is None:
        return []
    shown = [Section("The gap closed", lambda: _gap_closed(gaps), drawn=True)]
    table = claims.claims(contents, gaps)
    if table.rows:
        said = f"{claims.about(gaps)}\n\n{claims.sentence(table)}"
        shown.append(Section("What papers claim", lambda: f"{said}\n\n{_tables([table])}"))
    return [*shown, Section(f"Against {BASELINE}", lambda: _against(gaps))]


def _gap_closed(gaps: Gaps) -> str:
    listed = "\n".join(f"- {sentence}" for sentence in gap_tables.findings(gaps))
    blocks = _titled([gap_tables.headline(gaps), gap_tables.by_dataset(gaps)])
    return f"{gap_tables.about(gaps)}\n\n{listed}\n\n{blocks}"


def _against(gaps: Gaps) -> str:
    about = (
        "P(better) and P(equal): the probabilities, by the Bayesian signed-rank test on the shares of the "
        f"datasets, that averages of two datasets' shares are mostly above {EQUAL:g}, and mostly within "
        f"{EQUAL:g} of 0. Gains and losses: datasets on which the paired t-test finds one at 5 % after "
        "Holm's correction over all rows and datasets. Win rate: the share of the other rows that a row "
        "beats, a mean over datasets."
    )
    tests = [gap_tables.against_baseline(gaps), gap_tables.by_shift(gaps)]
    return f"{about}\n\n{_titled(tests)}"


def _of_agreement(contents: Contents) -> list[Section]:
    """The section on how much datasets, rules and tiers agree; none without shares of the gap."""
    gaps = contents.gaps.get(contents.rule)
    if gaps is None:
        return []
    return [Section("How much is agreed", lambda: _agreement(contents, gaps))]


def _agreement(contents: Contents, gaps: Gaps) -> str:
    several = contents.gaps if len(contents.gaps) > 1 else {}
    blocks = [agreement.datasets_agree(gaps)] if len(gaps.shares) > 1 else []
    blocks += [agreement.rules_agree(several)] if several else []
    cost = agreement.rules_cost(several)
    blocks += [cost] if cost else []
    if declared := tiers(contents.folder):
        blocks.append(agreement.tiers_agree(gaps, contents.frames, declared))
    line = agreement.on_the_line(contents.frames)
    about = (
        "Orders of rows by the share of the gap, on datasets and by rules that have both. A dataset on "
        "which values in and out of distribution go together rewards whatever fits better."
    )
    return f"{about}\n\n{_titled([*blocks, *[line] * bool(line.rows)])}"


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
