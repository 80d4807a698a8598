"""Users' tables are read as the tables of cases say."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oodbench.datasets import Dataset, make
from oodbench.errors import UserError

COUNT = 90


def frame(**columns: Any) -> pd.DataFrame:
    """A table of one input, two classes and three environments, with further columns."""
    stream = np.random.default_rng(0)
    i = np.arange(COUNT)
    given: dict[str, Any] = {"x": stream.normal(size=COUNT), "target": np.where(i % 2, "yes", "no")}
    given |= {"environment": np.array(["A", "B", "C"])[i % 3]}
    for name, values in columns.items():
        is_text = isinstance(values, str)
        given[name] = values if is_text else np.resize(np.array(values, object), COUNT)
    return pd.DataFrame(given)


def table(folder: Path, data: pd.DataFrame, *, write: Any = None, **options: Any) -> Dataset:
    data.to_csv(folder / "mine.csv", index=False, **(write or {}))
    return make("Table", {"file": "mine.csv", **options}, folder)


def kinds(dataset: Any) -> dict[str, str]:
    return {reading.column: reading.kind for reading in dataset.readings}


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1.5", "-2", "+3", "1e-3", ".5"], "number"),
        (["10_3", "1_1", "20_29"], "category"),
        (["10-19", "20-29", "30+"], "category"),
        (["0x1F", "0x2A"], "category"),
        (["inf", "-inf"], "category"),
        (["2020-01-31", "2021-12-01"], "date"),
        (["2020-01-31T10:00:00Z", "2021-12-01T00:30:00+01:00"], "date"),
        (["20200131", "20211201"], "date"),
        (["Jan-2020", "31. Dec 2021", "March 1, 2021", "2020-Feb-02"], "date"),
        (["Wed Jan 01 2020", "Thu, 02 Jan 2020 10:00:00 GMT", "Friday, January 3, 2020"], "date"),
        (["2021-03", "2021/04"], "date"),
        (["2021-W03", "2021W4"], "date"),
        (["2021-Q1", "Q2 2021"], "date"),
        (["4. März 2021", "5 de abril de 2021"], "date"),
        (["2020-22", "Room 2020"], "category"),
        (["1", "Missing", "k. A."], "number"),
        (["1", "\u2014", ".."], "number"),
        (["", ""], "left out"),
        (["1", "NA", "3"], "number"),
        (["1", "<NA>", "#DIV/0!"], "number"),
        (["2020-01-31", "NaT"], "date"),
        (["NA", "red"], "category"),
        (["nan", "-", ""], "left out"),
        (["(1)", "(2)"], "category"),
    ],
)
def test_a_column_is_what_its_cells_are(tmp_path: Path, cells: list[str], kind: str) -> None:
    dataset = table(tmp_path, frame(c=cells), missing="median")
    others = {"x": "number", "target": "target", "environment": "environment"}
    assert kinds(dataset) == others | {"c": kind}
    columns = dataset.columns
    assert columns is not None
    assert ("c" in columns.numbers) == (kind == "number")
    assert ("c" in columns.categories) == (kind == "category")


@pytest.mark.parametrize(
    ("cells", "values", "options"),
    [
        (["10,010", "9,999", "850"], [10010, 9999, 850], {}),
        (["1,234,567.5", "12.25"], [1234567.5, 12.25], {}),
        (["10\u00a0010", "9\u202f999"], [10010, 9999], {}),
        (["3,5", "12,25", "7"], [3.5, 12.25, 7], {}),
        (["1.234,5", "12.000,25"], [1234.5, 12000.25], {}),
        (["10,010", "9,999"], [10.01, 9.999], {"decimal": ","}),
        (["1.234", "5.678"], [1234, 5678], {"decimal": ","}),
        (["1.234", "5.678", "9.1"], [1.234, 5.678, 9.1], {}),
        (["$1,234.50", "-$99", "$ 7"], [1234.5, -99, 7], {}),
        (["\u22121,5", "2,25"], [-1.5, 2.25], {}),
        (["(1,250.50)", "900.25"], [-1250.5, 900.25], {}),
        (["$12.50", "($3.00)"], [12.5, -3], {}),
        (["5-", "2.5", "-"], [-5, 2.5, 0], {"missing": "mean"}),
    ],
)
def test_numbers_as_people_write_them(
    tmp_path: Path, cells: list[str], values: list[float], options: dict[str, str]
) -> None:
    dataset: Any = table(tmp_path, frame(c=cells).drop(columns="x"), **options)
    found = dataset.x[:, 0]
    assert torch.allclose(found, torch.from_numpy(np.resize(np.array(values, float), COUNT)))
    is_plain = "9.1" in cells
    assert any("'c' read as number" in note for note in dataset.notes) != is_plain


def test_one_number_in_two_spellings_is_one_class(tmp_path: Path) -> None:
    data = frame(target=["0", "1.0", "0.0", "1"], environment=["2020", "2021", "2020.0"])
    dataset = table(tmp_path, data)
    assert dataset.classes == ("0", "1") and dataset.environments == ("2020", "2021")
    assert "0 and 0.0 are the same number and count as one" in " ".join(dataset.notes)
    large = table(tmp_path, frame(target=["9007199254740993", "9007199254740992.0", "-0", "0"]))
    assert large.classes == ("0", "9007199254740992.0", "9007199254740993")
    codes = table(tmp_path, frame(target=["01", "1"]))
    assert codes.classes == ("01", "1")


def test_blanks_around_names_do_not_count(tmp_path: Path) -> None:
    data = frame(environment=["A", " A", "B ", "C"], target=["no", " no", "yes"])
    dataset = table(tmp_path, data, test_environments=[" B"])
    assert dataset.environments == ("A", "B", "C") and dataset.classes == ("no", "yes")
    assert dataset.test_environments == ("B",)
    numbered = table(tmp_path, frame(environment=[*map(str, range(1, 11))]))
    assert numbered.environments == tuple(map(str, range(1, 11)))


COUNTS = np.arange(1, COUNT + 1)
"""Row numbers; others start again in each environment of `frame`, or were shuffled."""


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        *((name, COUNTS) for name in ("", "Unnamed: 0", "Unnamed: 0.1", "...1", "id", "row", "no")),
        *((name, (COUNTS - 1) // 3) for name in ("", "__index_level_0__", "row", "Index", "X")),
        *((name, COUNTS[::-1] // 3) for name in ("", "index", "level_0", "rownames")),
    ],
)
def test_row_numbers_are_no_inputs(tmp_path: Path, name: str, numbers: np.ndarray) -> None:
    data = frame(attribute=["m", "f"])
    data.insert(0, name, numbers)
    for options in ({}, {"attribute": "attribute"}):
        dataset: Any = table(tmp_path, data, **options)
        assert next(iter(kinds(dataset).values())) == "index"
        assert dataset.columns.numbers == ("x",)
    named: Any = table(tmp_path, data, features=[name or "Unnamed: 0", "x"])
    assert named.columns.numbers == (name or "Unnamed: 0", "x")


def test_a_column_that_is_constant_in_training_is_zero(tmp_path: Path) -> None:
    data = frame(c=["3"]).assign(c=lambda d: np.where(d["environment"] == "C", 5, 3))
    for more in ({}, {"word": ["a", "b"]}, {"gap": ["1", "2", ""]}):
        dataset: Any = table(tmp_path, frame(**more).assign(c=data["c"]), missing="mean")
        found = dataset.load(0)
        change = dataset.fit({name: found[name] for name in ("A", "B")})
        place = dataset.columns.inputs.index("c")
        assert all((change(e.x)[:, place] == 0).all() for e in found.values())


def test_environments_are_compared_before_training(tmp_path: Path) -> None:
    data = frame()
    data.loc[data["environment"] == "B", "target"] = "no."
    data.loc[[0, 3], "environment"] = "D"
    notes = " ".join(table(tmp_path, data).notes)
    said = "only environment 'B' has the class 'no.': where it is held out, 30 of its 30 examples"
    assert said in notes
    assert "environment 'B' has one class only, 'no.'" in notes
    assert table(tmp_path, data).test_environments == ("C",)
    data.loc[data["environment"] == "C", "target"] = "no."
    together = table(tmp_path, data, test_environments=["B", "C"])
    said = "with B, C held out, no training environment has 'no.': 30 examples of 'B' can't"
    assert said in " ".join(together.notes)


@pytest.mark.parametrize(
    ("column", "cells", "said"),
    [
        ("target", ["Yes", "yes", "no"], "'Yes' and 'yes' count as different"),
        ("environment", ["Ko\u0308ln", "Köln", "Ulm"], "count as different"),
        ("c", ["True", "TRUE", "False"], "'TRUE' and 'True' count as different"),
        ("target", ["1", "True", "0"], "'1' and 'True' count as different"),
        ("target", ["yes", "true", "no"], "'true' and 'yes' count as different"),
        ("environment", ["07", "7", "8"], "'07' and '7' count as different"),
        ("target", ["yes", "no", "?"], "? is a name here, not a gap"),
        ("c", ["12 kg", "900 g"], "numbers in g, kg"),
        ("c", ["N/A", "", "red"], "'' and 'N/A' count as different"),
        ("c", [f"{i}:30" for i in range(12)], "12 texts such as 0:30 count as words"),
        ("c", [*[-200] * 10, *(i / 9 for i in range(30))], "-200 is far from all others"),
        ("c", ["1.5", "2.5", "-999"], "-999 is far from all others"),
        ("c", ["0", *(f"{90 + i}.5" for i in range(12))], "0 is far from all others"),
        ("c", ["1", "2", "6", "98", "99"], "98, 99 are far from all others"),
        ("c", ["14.4", "29", "7777", "9999"], "7777, 9999 are far from all others"),
        ("c", ["1.5", "2.5", "-97", "-98", "-99"], "-99, -98, -97 are far from all others"),
        ("c", ["1", "2", "5", "-8", "-9"], "-9, -8 are far from all others"),
        ("c", ["1.5", "2.5", "1e20"], "1e+20 is far from all others"),
        ("c", ["74", "120", "65535"], "65535 is far from all others"),
        ("c", ["0.5", "29.58", "-9999.9"], "-9999.9 is far from all others"),
        ("c", ["1.328", "2.137", "895"], "three digits follow every point: `decimal=,`"),
        ("target", ["cat", "dog", "c\u0430t"], "'cat' and 'c\u0430t' count as different"),
        ("c", ["(1.5)", "2.5"], "(1.5) and the like are negative"),
        ("c", ["1152921504606846977", "7"], "more than 15 digits are rounded"),
        ("target", ["cat", "dog", "cat|dog"], "'cat|dog' counts as a class: several labels"),
        ("target", ["7 9", "9", "7", "7 8 9"], "'7 9' counts as a class: several labels"),
        ("target", ["['u']", "['v']", "['u', 'v']"], "counts as a class: several labels"),
        ("target", ["no", "\u201cno\u201d", "yes"], "'no' and '\u201cno\u201d' count as different"),
    ],
)
def test_what_could_mean_something_else_is_said(
    tmp_path: Path, column: str, cells: list[Any], said: str
) -> None:
    dataset = table(tmp_path, frame(**{column: cells}))
    assert any(f"'{column}' read as" in n and said in n for n in dataset.notes)


@pytest.mark.parametrize(
    "cells",
    [
        ["A", "A+", "B", "B+"],
        ["1,5", "2,5", "1,2"],
        ["R&D", "Sales & Marketing"],
        ["tench, Tinca tinca", "crane, bird", "crane, machine"],
        ["10,000-20,000", "20,000-30,000"],
        [*["abnormal"] * 20, "normal"],
        [*["stage IIIA"] * 20, "stage III"],
        ["18-24", "New York, NY", "Albany, NY"],
    ],
)
def test_a_class_with_a_sign_in_its_name_is_one_label(tmp_path: Path, cells: list[str]) -> None:
    data = frame(target=np.resize(cells, 60).tolist())
    assert not any("target' read as" in note for note in table(tmp_path, data).notes)


def test_three_decimals_everywhere_are_usual_beside_commas(tmp_path: Path) -> None:
    assert not table(tmp_path, frame(c=["1.328", "2.137", "8.955"])).notes


def test_environments_that_write_numbers_by_different_signs(tmp_path: Path) -> None:
    def written(form: str) -> pd.DataFrame:
        data = frame()
        cells = pd.Series([format(1 + i / 7, form) for i in range(COUNT)])
        at = data["environment"] == "B"
        return data.assign(c=cells.where(~at, cells.str.replace(".", ",")))

    said = "environment 'A' writes 1.000 and 'B' 1,143: write numbers alike everywhere"
    assert said in " ".join(table(tmp_path, written(".3f")).notes)
    with pytest.raises(UserError, match=r"a number, not '1,14'; .*'A' writes 1\.00 and 'B' 1,14"):
        table(tmp_path, written(".2f"))
    thousands = frame().assign(c=[f"{1000 + i / 2 * (i % 3)}" for i in range(COUNT)])
    thousands["c"] = thousands["c"].map(lambda text: f"{float(text):,}".removesuffix(".0"))
    assert "write numbers alike" not in " ".join(table(tmp_path, thousands).notes)


CELLS = st.one_of(
    st.integers(-(10**6), 10**6).map(str),
    st.floats(-1e6, 1e6, allow_nan=False).map(repr),
    st.sampled_from(
        ["", "NA", "?", "red", "blue, green", 'a "b" c', "20_29", "2020-01-31", " x ", "é"]
    ),
)


@st.composite
def files(draw: st.DrawFn) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table of texts, and how pandas writes it."""
    count = draw(st.integers(4, 25))
    names = draw(st.lists(st.sampled_from(["a", "b", "c", "ü", "b c"]), min_size=1, max_size=4))
    columns = []
    for _ in names:
        kind = draw(st.integers(0, 3))
        cells = CELLS
        if kind:
            cells = st.sampled_from(draw(st.lists(CELLS, min_size=1, max_size=3)))
        if kind == 1:
            cells = st.floats(-1e3, 1e3).map(lambda x: f"{x:.3f}")
        columns.append(draw(st.lists(cells, min_size=count, max_size=count)))
    data = pd.DataFrame(dict(enumerate(columns)))
    data["target"] = [("no", "yes")[i % 2] for i in range(count)]
    data["environment"] = [("A", "B")[i // 2 % 2] for i in range(count)]
    data = data.sample(frac=1, random_state=draw(st.integers(0, 9)))
    data.columns = [*names, "target", "environment"]
    write = {
        "sep": draw(st.sampled_from([",", ";", "\t", "|"])),
        "encoding": draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"])),
        "quoting": draw(st.sampled_from([0, 1])),
        "lineterminator": draw(st.sampled_from(["\n", "\r\n"])),
    }
    return data, write


@pytest.mark.slow
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(files())
def test_what_is_trained_on_is_what_pandas_reads(
    tmp_path: Path, file: tuple[pd.DataFrame, dict[str, Any]]
) -> None:
    data, write = file
    try:
        dataset: Any = table(tmp_path, data, write=write, missing="median")
    except UserError as error:
        assert "\n" not in str(error)
        return
    read = pd.read_csv(
        tmp_path / "mine.csv",
        sep=write["sep"],
        encoding=write["encoding"],
        dtype=str,
        keep_default_na=False,
    )
    read = read.map(str.strip)
    for name, places in dataset.places.items():
        assert (read.index[read["environment"] == name] == places.numpy()).all()
    x, columns = dataset.x.numpy(), dataset.columns
    for i, name in enumerate(columns.numbers):
        wanted = pd.to_numeric(read[name], errors="coerce").to_numpy(float)
        assert np.allclose(x[:, i], np.nan_to_num(wanted), rtol=1e-12, atol=0), name
        assert np.isnan(wanted).any() == (name in columns.gaps)
        if name in columns.gaps:
            place = len(columns.numbers) + columns.gaps.index(name)
            assert (x[:, place] == np.isnan(wanted)).all()
    start = len(columns.numbers + columns.gaps)
    for i, (name, values) in enumerate(columns.categories.items(), start):
        wanted = read[name].replace("", "(empty)").tolist()
        assert [values[int(place)] for place in x[:, i]] == wanted
    inputs = {r.column for r in dataset.readings if r.kind in ("number", "category")}
    assert inputs == {*columns.numbers, *columns.categories}


def test_answers_with_a_comma_do_not_change_the_decimals_of_other_columns(tmp_path: Path) -> None:
    columns = {"a": ["4.123", "5.678"], "b": ["51.26", "7.5"], "c": ["1,234", "4,5"]}
    dataset: Any = table(tmp_path, frame(**columns))
    for name, most in (("a", 5.678), ("b", 51.26), ("c", 4.5)):
        values = np.asarray(dataset.x)[:, dataset.columns.numbers.index(name)]
        assert values.max() == pytest.approx(most)


def test_environments_that_are_called_like_splits_are_said(tmp_path: Path) -> None:
    notes = table(tmp_path, frame(environment=["train", "test"])).notes
    assert any("called like splits (test, train)" in note for note in notes)
