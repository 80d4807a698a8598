import bz2
import csv
import gzip
import json
import lzma
import zipfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oodbench.data.tables.cells import Cells
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


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"]
)
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
    unseen = read(tmp_path / "f.csv", "\ufeffa\u200b, b\xa0\n1,2\n", "utf-8-sig")
    assert unseen.columns == ("a", "b")
    assert read(tmp_path / "f.csv", "a,b\n\u200b1,\u20032\u200b\n").texts("b") == ["2"]


def test_decimal_commas_do_not_separate(tmp_path: Path) -> None:
    rows = [f"p{i};{i},5;{i % 2}\n" for i in range(9)]
    assert read(tmp_path / "f.csv", "name;x;b\n" + "".join(rows)).columns == ("name", "x", "b")


BODY = "x,target,environment\n1.5,a,e\n2,b,f\n3,a,f\n"


@pytest.mark.parametrize(
    ("above", "body"),
    [
        ("# Device: W-12\n# Rate: 50, 100\n\n", BODY),
        ("Device: W-12\nNote: a, b, c, d, e\n", BODY),
        ('"Device","W-12"\n', BODY),
        ("#Kept by a wrist sensor\n#Device: W-12\n\n", BODY),
        ("Note; a; b; c; d; e\nDevice\n", BODY),
        ("# of the year, by Ada, 2021\n", BODY),
        ("# Device\n# ", BODY),
        ("[Data]\nDevice,1\n", BODY.replace(",", ";")),
        ("Report\n\n", BODY.replace(",", "\t")),
        ("Report\n\n", BODY.replace(",", "  ")),
        ("\n".join(map(str, range(150))) + "\n", BODY),
    ],
)
@pytest.mark.parametrize("written", ["utf-8", "utf-8-sig"])
def test_lines_above_are_left_out(tmp_path: Path, above: str, body: str, written: str) -> None:
    cells = read(tmp_path / "f.csv", above + body, written)
    assert cells.columns == ("x", "target", "environment")
    assert cells.texts("target") == ["a", "b", "a"]
    count = (above + body).count("\n")
    assert cells.place(2) == f"{cells.path}, line {count}"
    assert "stand above the header" in " ".join(cells.notes)


@pytest.mark.parametrize(
    "text",
    [
        " x   target environment\n 1.5 a      e\n 2   b      f\n",
        "x target environment\r\n1.5 a e\r\n2 b f\r\n",
        "x\t target  environment\n1.5   a  e\n2 'b' f  \n".replace("'", '"'),
    ],
)
def test_several_blanks_separate(tmp_path: Path, text: str) -> None:
    cells = read(tmp_path / "f.dat", text)
    assert cells.columns == ("x", "target", "environment")
    assert cells.texts("target") == ["a", "b"] and cells.place(1).endswith("line 3")


@pytest.mark.parametrize("separator", [",", "\t", " "])
@pytest.mark.parametrize(
    ("rows", "last"),
    [
        ("1,1.5,a\n2,2,b\n3,3,c\n", "Unnamed: 0"),  # names of rows, as R writes them
        ("1.5,a,\n2,b,\n3,c,\n", "Unnamed: 2"),
        ('"=""007""",a\n"=""010""",b\n8,c\n,\n,\n', "x"),  # Excel
    ],
)
def test_what_programs_add_is_taken_off(
    tmp_path: Path, rows: str, last: str, separator: str
) -> None:
    if separator == " " and last != "Unnamed: 0":
        return  # blanks at the ends are no separators
    cells = read(tmp_path / "f.csv", ("x,target\n" + rows).replace(",", separator))
    assert last in cells.columns and cells.texts("target") == ["a", "b", "c"]
    assert cells.texts("x") == (["007", "010", "8"] if last == "x" else ["1.5", "2", "3"])
    assert cells.place(1).endswith("line 3")


def test_one_byte_that_is_not_utf_8_has_a_line(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b"a,b\nBonn,1\nK\xf6ln,2\n")
    assert "cp1252 (line 3 is not UTF-8)" in Cells(tmp_path / "f.csv").notes[0]
    (tmp_path / "f.csv").write_bytes(b"a,b\nK\xf6ln,2\n" + "Köln,1\n".encode())
    with pytest.raises(UserError, match="line 3 is UTF-8, line 2 is not"):  # two names of one town
        Cells(tmp_path / "f.csv")
    (tmp_path / "f.csv").write_text("a,b\n大阪,1\n", "shift_jis")
    with pytest.raises(UserError, match=r"not a text in UTF-8 or cp1252.* option `encoding` names"):
        Cells(tmp_path / "f.csv")


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n"
RECORDS = [{"x": 1.5, "target": "a"}, {"x": None, "target": "b"}]
LINES = "\n".join(map(json.dumps, RECORDS))


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("f.json", json.dumps(RECORDS), "record 2"),
        ("f.json", json.dumps(RECORDS, indent=1), "record 2"),
        ("f.json", json.dumps({"version": 1, "data": RECORDS}), "record 2"),
        ("f.json", LINES, "line 2"),
        ("f.ndjson", LINES, "line 2"),
        ("f.txt", LINES, "line 2"),
        ("f.JSON", json.dumps(dict(zip("uv", RECORDS, strict=True))), "record 'v'"),
        ("f.json", pd.DataFrame(RECORDS).to_json(), "record '1'"),
        ("f.json", pd.DataFrame(RECORDS).to_json(orient="split"), "record 2"),
        ("f.json", json.dumps({"x": [1.5, None], "target": ["a", "b"]}), "record 2"),
        ("f.json", json.dumps([["x", "target"], [1.5, "a"], [None, "b"]]), "record 2"),
        ("f.json", pd.DataFrame(RECORDS, ["u", "v"]).to_json(), "record 'v'"),
    ],
)
def test_forms_of_json(tmp_path: Path, name: str, text: str, place: str) -> None:
    cells = read(tmp_path / name, text)
    assert cells.cells("x").to_pylist() == ["1.5", ""] and cells.texts("target") == ["a", "b"]
    assert cells.place(1) == f"{cells.path}, {place}"


def test_keys_of_inner_objects_follow_the_outer_one(tmp_path: Path) -> None:
    records = [{"a": {"x": 1, "y": {"z": "u"}}, "b": 2}, {"a": {"x": 3, "y": {"z": "v"}}, "b": 4}]
    cells = read(tmp_path / "f.json", json.dumps(records))
    assert cells.columns == ("a.x", "a.y.z", "b")
    assert cells.texts("a.y.z") == ["u", "v"]


def test_fields_of_structs_are_columns_and_lists_are_named(tmp_path: Path) -> None:
    records = [{"a": {"x": 1.5, "y": {"z": "u"}}, "b": {"bytes": b"1", "path": ""}, "c": [1]}, {}]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "f.parquet")
    cells = Cells(tmp_path / "f.parquet")
    assert cells.columns == ("a.x", "a.y.z", "b", "c")
    assert cells.cells("a.x").to_pylist() == ["1.5", ""]
    assert cells.cells("a.y.z").to_pylist() == ["u", ""]
    for name, hint in {
        "b": "type struct.*dataset `HuggingFace`",
        "c": "type list.*multilabel`",
    }.items():
        with pytest.raises(UserError, match=f"'{name}' holds values of {hint}"):
            cells.cells(name)


def test_json_names_files_by_environment_and_class(tmp_path: Path) -> None:
    tree = {"e": {"cat": ["1.png", "2.png"], "dog": []}, "f": {"dog": ["3.png"]}}
    cells = read(tmp_path / "f.json", json.dumps(tree))
    assert cells.texts("environment") == ["e", "e", "f"]
    assert cells.texts("target") == ["cat", "cat", "dog"]
    assert cells.texts("path") == ["1.png", "2.png", "3.png"] and cells.notes
    named = read(tmp_path / "f.json", json.dumps({"1.png": RECORDS[0], "2.png": RECORDS[1]}))
    assert named.texts("path") == ["1.png", "2.png"]


@pytest.mark.parametrize("text", [CSV, LINES, "# above\n" + CSV])
def test_one_packed_file_is_read(tmp_path: Path, text: str) -> None:
    plain = read(tmp_path / "f.csv", text)
    (tmp_path / "f.gz").write_bytes(gzip.compress(text.encode()))
    with zipfile.ZipFile(tmp_path / "f.zip", "w") as archive:
        archive.writestr("folder/f.csv", text)
        archive.writestr("__MACOSX/._f.csv", "")
    (tmp_path / "f.bz2").write_bytes(bz2.compress(text.encode()))
    (tmp_path / "f.xz").write_bytes(lzma.compress(gzip.compress(text.encode())))
    (tmp_path / "f.csv").write_bytes(pa.Codec("zstd").compress(text.encode()).to_pybytes())
    for name in ("f.gz", "f.zip", "f.bz2", "f.xz", "f.csv"):
        packed = Cells(tmp_path / name)
        assert [*packed.texts_of_columns] == [*plain.texts_of_columns]
        assert (packed.columns, packed.notes) == (plain.columns, plain.notes)
    with zipfile.ZipFile(tmp_path / "f.zip", "a") as archive:
        archive.writestr("g.csv", text)
    with pytest.raises(UserError, match=r"of 2 files, not of one \(folder/f.csv, g.csv\)"):
        Cells(tmp_path / "f.zip")
    (tmp_path / "f.gz").write_bytes(gzip.compress(text.encode())[:-5])
    with pytest.raises(UserError, match=r"f\.gz cannot be unpacked: "):
        Cells(tmp_path / "f.gz")


def test_options_say_otherwise(tmp_path: Path) -> None:
    cells = read(tmp_path / "f.csv", "a;b,c\nł;2,3\n", "cp1250", encoding="cp1250", separator=",")
    assert cells.columns == ("a;b", "c") and cells.texts("a;b") == ["ł;2"]
    other = read(tmp_path / "f.csv", "a^b\n1^2\n", separator="^")
    assert other.texts("b") == ["2"] and "separated by a '^'" in " ".join(other.notes)


def test_a_quote_within_a_cell_is_a_character(tmp_path: Path) -> None:
    assert read(tmp_path / "f.csv", 'a,b\n5" pipe,1\n').texts("a") == ['5" pipe']


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("f.csv", "", "f.csv is empty$"),
        ("f.csv", LFS, "f.csv is a pointer of Git LFS: `git lfs pull` fetches"),
        ("f.parquet", LFS, "f.parquet is a pointer of Git LFS: `git lfs pull` fetches"),
        ("f.csv", "\n\n", "f.csv holds no row$"),
        ("f.csv", "a,b\n1,2\n3\n", "f.csv, line 3: 1 cell, but the header names 2 columns; leave"),
        ("f.csv", "1.5,c\n2,d\n", "unknown column 'b' .*the first line names the columns: write"),
        ("f.csv", "a,b\n1,2\n\0\0", "f.csv is not a text file: line 3 holds a zero byte"),
        ("f.json", '[{"b": 1},\n {"b": 2},]', "f.json, line 2 is not JSON"),
        ("f.json", "[" * 99999, "f.json, line 1 is not JSON"),
        ("f.csv", "b,a,a\n1,2,3\n", "two columns have the same name, 'a' .the 2. and the 3"),
        ("f.csv", "\na,c\n1,2\n", "unknown column 'b' in .*f.csv, line 2; known: a, c"),
        ("f.csv", "a,b\n1,2\n3,\n", "line 3: 'b' is empty"),
        ("f.zip", "PK\x03\x04 f.csv", "cannot be unpacked"),
        ("f.tsv", 'a\tb\n1\t"5 pipe\n2\tx\n3\t"6 pipe\n', "f.tsv, line 4: .* expected after"),
        ("f.tar.gz", "X", "is of a form that is not read: save the table as CSV, JSON, Parquet"),
        ("f.data", "PAR1\0", "is Parquet or Feather: unpack it, and let its name end in"),
        ("f.csv.gz", "\0" * 257 + "ustar", "is an archive .tar.: unpack it"),
        ("f.csv", "<!DOCTYPE html>\n<html>", "is a web page, perhaps a login"),
        ("f.csv", "\ufeff<html>", "is a web page, perhaps a login"),
        ("f.csv", "% made\n@RELATION d\n@DATA\n1,2\n", "is in Weka's format ARFF: `scipy.io.arff"),
        ("f.csv", "'a','b'\n'1','2'\n", "names are in single quotes"),
        ("f.csv", '"a,b"\n"1,2"\n', "each line is in quotes"),
        ("f.csv", "u,v\na,b\n1,2\n", "it stands in line 2: leave out what is above"),
        ("f.XLS", "X", "is of a form that is not read: save the table as CSV, JSON, Parquet or"),
        ("f.jsonl", '{"a": 1, "b": 2}\n{"a"\n', "f.jsonl, line 2 is not JSON"),
        ("f.jsonl", '{"b": 1, "b": 2}\n', "line 1 is not JSON: the key 'b' is there twice"),
        ("f.csv", "a b\n1 2 3\n4 5\n", "unknown column 'b' .*option `separator` says what"),
        ("f.jsonl", '{"a": 1}\n', "unknown column 'b' .*; known: a$"),
        ("f.jsonl", '{"a": 1, "b": 2}\n{"a": 1}\n', "line 2: not all records have the key 'b'"),
        ("f.json", '[{"b": 1}, {"c": 1}]', "record 2: not all records have the key 'b'"),
        ("f.json", '{"u": [{"b": 1}], "v": [{"b": 1}]}', "holds the lists u, v: join them"),
        ("f.json", '{"s": {"e": {"c": ["f"]}}}', "not in a form that is read: a list of"),
        ("f.json", "[1, 2]", "record 1 is not a JSON object"),
        ("f.json", '[["b", "b"], [1, 2]]', "two columns have the same name, 'b'; rename one"),
        ("f.json", '[{"b": [1]}]', "'b' holds values of type list: save each number in a column"),
        ("f.json", '[{"b": {"c": 1}}]', "unknown column 'b' .*did you mean b.c"),
        ("f.csv", "a,b,c\nx,y,z\nx,y\nu,v,w\nu,v,w\n", "line 3: 2 cells, but the header names 3"),
        ("f.csv", "a,b\nx,y,z\nx,v,w\nu,v,w\n", "line 2: 3 cells, .* name each column, and leave"),
        ("f.csv", "Device\n1,2,3\n4,5,6\n7,8,9\n", "leave out what stands above the header"),
    ],
)
def test_mistakes_have_a_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / name, text).texts("b")
    assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)


def test_a_cell_may_be_longer_than_pythons_reader_allows_by_default(tmp_path: Path) -> None:
    limit, long = csv.field_size_limit(), "word " * 30_000
    (tmp_path / "f.csv").write_text(f"text,b\n{long},1\n")
    cells = Cells(tmp_path / "f.csv")
    assert cells.texts("text") == [long.strip()] and cells.place(0).endswith("line 2")
    assert csv.field_size_limit() == limit


def test_hidden_files_of_a_partitioned_folder_are_not_read(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2]})
    for name in ("env=A/p", "env=A/.p", "_temporary/env=A/p", "env=B/p"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, tmp_path / f"{name}.parquet")
    assert Cells(tmp_path).texts("env") == ["A", "A", "B", "B"]
    (tmp_path / "by/month=01").mkdir(parents=True)
    pq.write_table(pa.table({"month": [1]}), tmp_path / "by/month=01/_all.parquet")
    assert Cells(tmp_path / "by").texts("month") == ["1"]
    pq.write_table(table.append_column("env", pa.array(["A", "C"])), tmp_path / "env=A/p.parquet")
    with pytest.raises(UserError, match="a file in env=A has C in its own column 'env'"):
        Cells(tmp_path)


def test_a_label_beyond_the_names_of_the_classes_is_named(tmp_path: Path) -> None:
    names = {"info": {"features": {"y": {"_type": "ClassLabel", "names": ["a", "b"]}}}}
    schema = pa.schema([("y", pa.int64())], {"huggingface": json.dumps(names)})
    pq.write_table(pa.table({"y": [1, 2]}, schema=schema), tmp_path / "f.parquet")
    with pytest.raises(UserError, match="'y' has the label 2, and its 2 classes are numbered from"):
        Cells(tmp_path / "f.parquet")


def test_a_column_that_an_option_names_by_default_is_told_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("review,target\ngood,1\n")
    with pytest.raises(UserError, match="the option `text` names another"):
        Cells(tmp_path / "f.csv").cells("text")
    (tmp_path / "f.csv").write_text("age,relapse\n61,1\n")
    with pytest.raises(UserError, match=r"known: age, relapse \(the option `target` names another"):
        Cells(tmp_path / "f.csv").cells("target")
    (tmp_path / "f.csv").write_text("age,Targets\n61,1\n")
    with pytest.raises(UserError, match=r"did you mean Targets\?"):
        Cells(tmp_path / "f.csv").cells("target")
