from pathlib import Path

import pytest
from oodbench.datasets.table import NumberedRows

from oodbench.errors import UserError

CSV = 'a, b,c\n1,x,2\n\n3,"y\nz",4.5\n'


def read(path: Path, text: str) -> NumberedRows:
    path.write_text(text)
    return NumberedRows(path)


def test_columns_of_both_formats(tmp_path: Path) -> None:
    jsonl = '{"a": 1, "b": "x", "c": 2}\n\n{"c": 4.5, "b": "y\\nz", "a": 3}\n'
    for rows in (read(tmp_path / "f.csv", CSV), read(tmp_path / "f.jsonl", jsonl)):
        assert list(rows.columns) == ["a", "b", "c"]
        assert list(rows.texts("b")) == ["x", "y\nz"]
        assert rows.numbers("c").tolist() == [2.0, 4.5]
    assert rows.place(1) == f"{tmp_path / 'f.jsonl'}, line 3"


def test_excel_writes_a_byte_order_mark(tmp_path: Path) -> None:
    assert read(tmp_path / "f.csv", "\ufeffa,b\n1,2\n").numbers("a").tolist() == [1.0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("f.csv", "", "f.csv holds no row$"),
        ("f.csv", "a,b\n", "f.csv holds no row$"),
        ("f.csv", "a,b\n1,2\n3\n", "f.csv, line 3: 1 cells, but the header names 2 columns"),
        ("f.csv", "a,a\n1,2\n", "line 1: two columns have the same name"),
        ("f.csv", "\na,c\n1,2\n", "unknown column 'b' in .*f.csv, line 2; known: a, c"),
        ("f.csv", "a,b\n1,2\n3,\n", "line 3: 'b' is empty"),
        ("f.csv", "a,b\n1,2\n3,inf\n", "line 3: 'b' must be a number, not 'inf'"),
        ("f.csv", 'a,b\n1,2\n3,"4\n', "line 3: unexpected end of data"),
        ("f.jsonl", '{"a": 1, "b": null}\n', "line 1: 'b' is empty"),
        ("f.jsonl", '{"a": 1, "b": true}\n', "line 1: 'b' must be a number, not 'True'"),
        ("f.jsonl", '{"a": 1, "b": 2}\n{"a"\n', "f.jsonl, line 2 is not JSON"),
        ("f.jsonl", '{"a": 1, "b": 2}\n[1]\n', "f.jsonl, line 2 is not a JSON object"),
        ("f.jsonl", '{"a": 1, "b": 2}\n{"a": 1}\n', "f.jsonl, line 2 lacks 'b'"),
        ("f.jsonl", '{"a": 1, "b": 2}\n{"a": 1, "bb": 2}\n', "unknown key 'bb' .*did you mean b"),
    ],
)
def test_mistakes_have_a_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / name, text).numbers("b")
    assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(UserError, match="is not a text file"):
        NumberedRows(tmp_path / "f.csv")
