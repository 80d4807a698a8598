from pathlib import Path

import pytest

from oodbench.data.cells import Cells
from oodbench.errors import UserError

CSV = 'a, b,c\n1,x,2\n\n3,"y\nz",4.5\n'


def read(path: Path, text: str, written: str = "utf-8", **options: str) -> Cells:
    path.write_bytes(text.encode(written))
    return Cells(path, **options)


def test_columns_of_both_formats(tmp_path: Path) -> None:
    jsonl = '{"a": 1, "b": "x", "c": 2}\n\n{"c": 4.5, "b": "y\\nz", "a": 3}\n'
    for cells, line in ((read(tmp_path / "f.csv", CSV), 5), (read(tmp_path / "f.jsonl", jsonl), 3)):
        assert list(cells.columns) == ["a", "b", "c"]
        assert list(cells.texts("b")) == ["x", "y\nz"]
        assert cells.texts("c") == ["2", "4.5"]
        assert cells.place(1) == f"{cells.path}, line {line}"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_programs_write(tmp_path: Path, encoding: str, separator: str, end: str) -> None:
    rows = [("Größe", "Ort"), ("1", " Köln "), ("2", '"a, b; c"')]
    text = end.join(separator.join(row) for row in rows) + end
    cells = read(tmp_path / "f.csv", text, encoding)
    assert cells.columns == ("Größe", "Ort")
    assert cells.texts("Ort") == ["Köln", "a, b; c"]
    said = " ".join(cells.notes)
    assert ("separated by" in said) == (separator != ",")
    assert ("read as" in said) == (not encoding.startswith("utf-8"))


def test_what_excel_says_of_itself_is_heard(tmp_path: Path) -> None:
    cells = read(tmp_path / "f.csv", "sep=|\r\na|b\r\n1|2;3\r\n")
    assert cells.texts("b") == ["2;3"] and cells.place(0).endswith("line 3")
    marked = read(tmp_path / "f.csv", "a,b\n1,2\n", "utf-8-sig", encoding="utf-8")
    assert marked.columns == ("a", "b")


def test_options_say_otherwise(tmp_path: Path) -> None:
    cells = read(tmp_path / "f.csv", "a;b,c\nł;2,3\n", "cp1250", encoding="cp1250", separator=",")
    assert cells.columns == ("a;b", "c") and cells.texts("a;b") == ["ł;2"]


def test_a_quote_within_a_cell_is_a_character(tmp_path: Path) -> None:
    assert read(tmp_path / "f.csv", 'a,b\n5" pipe,1\n').texts("a") == ['5" pipe']


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("f.csv", "", "f.csv holds no row$"),
        ("f.csv", "a,b\n1,2\n3\n", "f.csv, line 3: 1 cells, but the header names 2 columns"),
        ("f.csv", "b,a,a\n1,2,3\n", "two columns have the same name, 'a' .the 2. and the 3"),
        ("f.csv", "\na,c\n1,2\n", "unknown column 'b' in .*f.csv, line 2; known: a, c"),
        ("f.csv", "a,b\n1,2\n3,\n", "line 3: 'b' is empty"),
        ("f.zip", "PK\x03\x04 f.csv", "is a zip archive, not a text: unpack it"),
        ("f.csv", "PK\x03\x04 xl/workbook.xml", "is an Excel workbook, not a text: save it as CSV"),
        ("f.jsonl", '{"a": 1, "b": 2}\n{"a"\n', "f.jsonl, line 2 is not JSON"),
        ("f.jsonl", '{"b": 1, "b": 2}\n', "line 1 is not JSON: the key 'b' is there twice"),
        ("f.csv", "a b\n1 2\n", "unknown column 'b' .*option `separator` says what separates"),
        ("f.jsonl", '{"a": 1, "b": 2}\n{"a": 1}\n', "f.jsonl, line 2 lacks 'b'"),
    ],
)
def test_mistakes_have_a_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / name, text).texts("b")
    assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)
