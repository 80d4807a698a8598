import io
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from oodbench.report.comparison import table
from oodbench.report.tables import FORMATS, Block, Sheet, to_terminal
from oodbench.terminal import Terminal
from tests.helpers.results.made import OneStep, spec

NASTY = r"a_b%<script>&#^~\{}$|*[x]"


def two_rows(*others: str, keys: int = 1) -> Sheet:
    """A sheet of two rows with names, and with a number for each of these columns."""
    names = ["dataset", "algorithm"][:keys]
    rows = [
        [*("the same" for _ in names[1:]), f"row {r}", *("-12.3" for _ in others)] for r in (1, 2)
    ]
    block = Block("A title", [*names, *others], rows, 2, best={(0, keys)}, keys=keys)
    return Sheet([block], ("A note.",), ("A remark.",), pd.DataFrame(), ("Bold: the best value.",))


def test_a_notebook_shows_the_leaderboard_as_tables(tmp_path: Path) -> None:
    made = OneStep(tmp_path)
    for label in ("ERM", NASTY):
        for trial in range(3):
            value = 0.5 + trial / 10 + (0.3 if label == "ERM" else 0)
            made.add(spec("<script>", label, "a", trial=trial), value)
    shown = table(made.results.path)
    text = shown._repr_html_()
    rows = ElementTree.fromstring(text[text.index("<table>") : text.index("</table>") + 8])
    first = ["".join(row[0].itertext()).strip() for row in rows.iter("tr")]
    assert first[:3] == ["algorithm", "ERM", NASTY]
    assert "<b>90.0" in text and "<script>" not in text
    means = shown.frame.groupby("label")["mean"].max()
    assert means["ERM"] == pytest.approx(0.9) and means[NASTY] == pytest.approx(0.6)


def test_bold_is_explained_where_it_is_shown() -> None:
    shown = two_rows("gain")
    for format_ in ("markdown", "latex"):
        text = FORMATS[format_](shown)
        assert text.index("A note.") < text.index("Bold: the best value.") < text.index("A remark.")
    plain = to_terminal(shown, Terminal(file=io.StringIO(), width=80))
    assert "A note.\nA remark." in plain and "Bold" not in plain and "\x1b" not in plain
    styled = Terminal(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    text = to_terminal(shown, styled)
    assert "\x1b[1m-12.3" in text and "A note.\nBold: the best value.\nA remark." in text


def test_each_part_of_a_wide_table_has_all_that_names_a_row() -> None:
    columns = ["interval", "detectable", "probability", "differences", "wins", "a longer title"]
    shown = two_rows(*columns, keys=2)
    text = to_terminal(shown, Terminal(file=io.StringIO(), width=50))
    assert max(map(len, text.splitlines())) <= 50
    assert text.count("dataset") >= 2
    assert text.count("dataset") == text.count("algorithm") == text.count("row 1")
    assert "| the same  | row 1       |" in FORMATS["markdown"](shown)
    assert r"\begin{tabular}{llrrrrrr}" in FORMATS["latex"](shown)
    text = FORMATS["latex"](two_rows(*["gain"] * 12))
    assert r"\resizebox" in text and "graphicx" in text.partition("\n")[0]
