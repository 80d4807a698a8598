from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from oodbench.data.preparation import load_checked
from oodbench.datasets import Dataset, make
from oodbench.errors import UserError
from oodbench.results.directory import Directory
from oodbench.results.predictions import read_predictions
from oodbench.sweep.file import read_sweep, validate
from oodbench.sweep.plan import make_plan, single
from oodbench.train.loading import load_data, split
from oodbench.train.settings import TrainSettings
from tests.helpers.commands import type_in

MINE = {"name": "Table", "file": "mine.csv"}


def frame(count: int = 60) -> pd.DataFrame:
    """Four columns of numbers, three environments, two classes."""
    stream = np.random.default_rng(0)
    numbers = {name: stream.normal(i, 1 + i, count) for i, name in enumerate("abcd")}
    found = pd.DataFrame(numbers | {"constant": 3.0})
    found["target"] = np.where(found["a"] + found["b"] > 1, "yes", "no")
    found["environment"] = np.array(["north", "south", "west"])[np.arange(count) % 3]
    return found


def table(folder: Path, data: pd.DataFrame, **options: Any) -> Dataset:
    data.to_csv(folder / "mine.csv", index=False)
    return make("Table", {"file": "mine.csv", **options}, folder)


def test_environments_inputs_and_targets(tmp_path: Path) -> None:
    data = frame()
    dataset = table(tmp_path, data)
    assert dataset.environments == ("north", "south", "west")
    assert dataset.test_environments == ("west",)
    assert (dataset.task.kind, dataset.input_shape) == ("binary", (5,))
    assert dataset.label == "mine"
    found = dataset.load(0)
    for name, part in data[[*"abcd", "constant"]].groupby(data["environment"]):
        assert np.allclose(found[str(name)].x, part, atol=1e-6)
        assert (found[str(name)].y.numpy() == (data.loc[part.index, "target"] == "yes")).all()
    assert found["north"].clusters is None and found["north"].out is None


def mixed(count: int = 90) -> pd.DataFrame:
    """`frame` with gaps in a column of numbers, colours with gaps, and codes."""
    data = frame(count)
    data["b"] = data["b"].where(data.index % 7 != 0)
    colours = np.array(["red", "green", None, "blue"], dtype=object)
    data["colour"] = colours[data.index % 4]
    data.loc[data["environment"] == "west", "colour"] = "violet"
    data["code"] = data.index % 2 + 7
    return data


def by_pandas(data: pd.DataFrame, known: pd.Index) -> pd.DataFrame:
    """The inputs of `mixed`, worked out from the rows `known` by pandas alone."""
    numbers = data[["a", "b", "c", "d", "constant"]]
    numbers = numbers.fillna(numbers.loc[known].median())
    scale = numbers.loc[known].std(ddof=0).replace(0.0, 1.0)
    scaled = (numbers - numbers.loc[known].mean()) / scale
    scaled["b (empty)"] = data["b"].isna()
    for name in ("colour", "code"):
        texts = data[name].astype(object).where(data[name].notna(), "(empty)").astype(str)
        for value in sorted(set(texts)):
            scaled[f"{name}: {value}"] = (texts == value) & (value in set(texts[known]))
    return scaled.astype(float)


@pytest.mark.parametrize("held_out", ["north", "west"])
def test_gaps_and_categories_are_fitted_on_training_rows(tmp_path: Path, held_out: str) -> None:
    data = mixed()
    options = {"missing": "median", "categorical": ["code"]}
    dataset = table(tmp_path, data, **options)
    entry = {**MINE, **options}
    spec = single(entry, {"name": "ERM"}, tmp_path, test_environments=[[held_out]])
    loaded = load_data(spec, TrainSettings(data_dir=tmp_path))
    rows = {name: data.index[data["environment"] == name] for name in loaded.environments}
    trained = [rows[n][loaded.splits[n]["in"].numpy()] for n in rows if n != held_out]
    inputs = by_pandas(data, pd.Index(np.concatenate(trained)))
    columns = dataset.columns
    assert columns is not None and columns.inputs == tuple(inputs.columns)
    assert dataset.input_shape == (len(inputs.columns),)
    for name, environment in loaded.environments.items():
        assert environment.x.dtype == torch.float32
        assert np.allclose(environment.x, inputs.loc[rows[name]], atol=1e-6)
    violet = loaded.environments["west"].x[:, list(inputs.columns).index("colour: violet")]
    assert violet.unique().tolist() == [0.0 if held_out == "west" else 1.0]


def test_other_columns_and_kinds(tmp_path: Path) -> None:
    data = frame().rename(columns={"environment": "place", "target": "answer"})
    options = {"environment": "place", "target": "a", "kind": "real", "features": ["c", "d"]}
    dataset = table(tmp_path, data, **options, test_environments=["north", "west"])
    assert dataset.task.kind == "regression" and dataset.input_shape == (2,)
    assert dataset.test_environments == ("north", "west")
    found = dataset.load(0)["south"].y
    assert found.shape == (20, 1)
    assert np.allclose(found[:, 0], data.loc[data["place"] == "south", "a"])
    many = frame().assign(target=lambda d: d.index % 4)
    assert table(tmp_path, many).task.num_outputs == 4


def test_splits_and_groups_of_the_file(tmp_path: Path) -> None:
    data = frame().assign(split=lambda d: np.where(d.index < 12, "out", "in"))
    north = table(tmp_path, data).load(0)["north"]
    for trial in (0, 1):
        assert split(north, 0.2, "mine", "north", trial)["out"].tolist() == [0, 1, 2, 3]
        assert split(north, 0.2, "mine", "north", trial)["in"].tolist() == list(range(4, 20))
    assert set(split(north, 0.0, "mine", "north", 0)) == {"in"}
    assert "split" not in "".join(table(tmp_path, data).notes)
    data = frame().assign(split=lambda d: np.where(d["environment"] == "north", "out", "in"))
    assert "no row of 'south' is `out`" in "".join(table(tmp_path, data).notes)
    data["split"] = np.where(data["environment"] == "west", "in", np.tile(["in", "out"], 30))
    assert "split" not in "".join(table(tmp_path, data).notes)  # west is the test environment
    lone = table(tmp_path, frame().assign(p=range(60)), features=["a"], group="p")
    assert "each row has another group" in "".join(lone.notes)
    data = frame().assign(group=lambda d: "patient " + (d.index // 6).astype(str))
    assert table(tmp_path, data).load(0)["north"].clusters is None
    north = table(tmp_path, data, group="group").load(0)["north"]
    assert north.clusters is not None and north.clusters.tolist() == [i // 2 for i in range(20)]


def test_an_attribute_is_a_column(tmp_path: Path) -> None:
    data = frame(24).assign(weather=lambda d: np.where(d.index % 3, "rain", "sun"))
    dataset = table(tmp_path, data, attribute="weather")
    assert (dataset.input_shape, dataset.attributes) == ((5,), ("rain", "sun"))
    loaded: Any = load_checked(dataset, 0)
    for name, environment in loaded.items():
        wanted = (data["weather"][data["environment"] == name] == "sun").astype(int)
        assert environment.attributes.tolist() == wanted.tolist()
    with pytest.raises(UserError, match="unknown column 'wether'"):
        table(tmp_path, data, attribute="wether")


@pytest.mark.nightly
def test_a_sweep_over_a_file_and_a_file_that_changes(tmp_path: Path) -> None:
    table(tmp_path, frame(90))
    sweep: dict[str, Any] = {"name": "own", "datasets": [MINE], "algorithms": ["ERM", "IRM"]}
    sweep |= {"test_environments": "each", "trials": 1, "steps": 20}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(sweep))
    command = ["sweep", "launch", tmp_path / "own.yaml", "--out", tmp_path / "out", "--yes"]
    command += ["--launcher", "debug", "--data-dir", tmp_path, "--keep-predictions"]
    launched = type_in(*command, code=0)
    assert "6 done of 6 runs" in launched.output, launched.output
    assert "mine: accuracy" in launched.output
    results = Directory(tmp_path / "out")
    ids = set(results.specs())
    run = results.run(min(ids))
    info = run.info()
    assert info is not None and info.context["classes"] == ["no", "yes"]
    assert {p.classes for p in read_predictions(run, 20).values()} == {("no", "yes")}
    flags = ["--algorithm", "ERM", "--test-env", "north"]
    asked = type_in("report", "why", results.path, *flags)
    assert "Classes: no, yes." in asked.output
    assert info.context["read_as"]["a"] == "number: numbers"
    before = make_plan(validate(sweep, "own"), tmp_path).runs
    assert set(before) == ids
    table(tmp_path, frame(93))
    assert not ids & set(make_plan(validate(sweep, "own"), tmp_path).runs)
    options = next(iter(before.values())).options
    with pytest.raises(UserError, match=r"mine\.csv has changed since these runs were planned"):
        make("Table", options, tmp_path)


def unchanged(data: pd.DataFrame) -> pd.DataFrame:
    return data


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (unchanged, {"kind": "real"}, "line 2: 'target' must be a number, .*, or leave the row"),
        (lambda d: d.assign(target=["1", "n/a"] * 100), {"kind": "real"}, "line 3: .* not 'n/a'"),
        (lambda d: d.assign(target=7), {"kind": "real"}, "'target' is 7 in every row"),
        (lambda d: d.assign(c=["red", *d["c"][1:]]), {}, "'c' must be a number, not 'red'; write"),
        (lambda d: d.assign(c=[f"P {i}." for i in d.index]), {}, "'c' has 200 categories, and a"),
        (lambda d: d[["target", "environment"]], {}, "has no column of inputs$"),
        (lambda d: d.assign(target="no"), {}, "the target 'target' has one class only, 'no'"),
        (unchanged, {"features": ["a", "target"]}, "names 'target', which is the target; .* copy"),
        (unchanged, {"target": "taget"}, r"unknown column 'taget' in .*mine\.csv, line 1; did you"),
        (unchanged, {"environment": "a"}, "'a' has 200 different values in 200 rows; name a"),
        (unchanged, {"target": "environment"}, "'environment' is both `env"),
    ],
)
def test_mistakes_have_a_line(
    tmp_path: Path, change: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        table(tmp_path, change(frame(200)), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("start", "step", "said"), [(0, 1, False), (1990, 1, True), (0, 2, True)])
def test_numbers_that_may_measure_are_said(
    tmp_path: Path, start: int, step: int, said: bool
) -> None:
    dataset = table(tmp_path, frame().assign(target=lambda d: start + step * (d.index % 12)))
    assert any("12 numbers are classes: `kind: real`" in note for note in dataset.notes) == said


def test_a_column_left_out_that_may_be_a_group_is_said(tmp_path: Path) -> None:
    data = frame().assign(patient=lambda d: d.index % 20, age=lambda d: d.index % 20)
    hint = (
        "'patient' is not read: if its equal values are of one patient or thing, the option `group`"
    )
    own = data.assign(patient=lambda d: d["environment"] + (d["patient"] % 2).astype(str))
    assert hint in " ".join(table(tmp_path, own, features=["a"]).notes)
    shared = "'patient' is not read, and 20 of its 20 values are in several environments: if these"
    assert shared in " ".join(table(tmp_path, data, features=["a"]).notes)
    few = data.assign(patient=data["patient"] % 5)
    assert hint in " ".join(table(tmp_path, few, features=["a"]).notes)
    assert "'age' is not" not in " ".join(table(tmp_path, data, features=["a"]).notes)
    grouped = table(tmp_path, data.assign(case=1), features=["a"], group="patient")
    assert "is not read" not in " ".join(grouped.notes)


def test_a_group_as_large_as_its_environment_is_said(tmp_path: Path) -> None:
    table(tmp_path, frame().assign(ward=lambda d: d["environment"]))
    source = {"name": "Table", "file": "mine.csv", "group": "ward"}
    sweep = {"name": "own", "datasets": [source], "algorithms": ["ERM"], "trials": 1, "steps": 4}
    with pytest.raises(UserError, match="no example to train on: the option `group` leaves none"):
        make_plan(validate(sweep, "own"), tmp_path)


@pytest.mark.parametrize("name", ["NO", "2020", "1e3", "10_3", "2020-01-31"])
def test_environments_are_named_as_the_file_has_them(tmp_path: Path, name: str) -> None:
    data = frame(90).assign(environment=lambda d: np.array(["A", name, "B"])[d.index % 3])
    data.to_csv(tmp_path / "mine.csv", index=False)
    text = f"name: s\ndatasets: [{{name: Table, file: mine.csv, test_environments: [{name}]}}]\n"
    (tmp_path / "s.yaml").write_text(text + "algorithms: [ERM]\n")
    plan = make_plan(read_sweep(tmp_path / "s.yaml"), tmp_path)
    assert {run.test_environments for run in plan.runs.values()} == {(name,)}


def test_new_rows_are_read_as_those_of_the_file(tmp_path: Path) -> None:
    """From a frame and from a file, which writes numbers and units as the first does."""
    data = mixed()
    data["weight"] = [f"{90 + i},5 kg" for i in range(90)]
    data.to_csv(tmp_path / "mine.csv", index=False, sep=";", decimal=",")
    options = {"file": "mine.csv", "missing": "median", "categorical": ["code"]}
    dataset: Any = make("Table", options, tmp_path)
    west = data[data["environment"] == "west"].drop(columns=["target", "environment"])
    west[:2].to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=",")
    wanted = dataset.load(0)["west"].x
    assert torch.equal(dataset.read(tmp_path / "new.csv"), wanted[:2])
    few = west.assign(weight=west.index + 90.5, extra=pd.Series([[1]] * 90))
    few = few.astype({"code": float, "colour": "category"})
    assert torch.equal(dataset.read(few), wanted)
    few = few[:2]
    mistakes: list[tuple[Any, str]] = [
        (few.drop(columns="a"), "unknown column 'a' in the data frame"),
        (few.assign(colour="pink"), "unknown value of 'colour' 'pink' in the data frame, row 1"),
        (few.assign(code=[8, 5]), "unknown value of 'code' '5' in .* frame, row 2; known: 7, 8"),
        (few.assign(a=[1, np.nan]), "row 2: 'a' is empty, and nothing fills it, as no cell of"),
        (few.assign(weight="9 lb"), "must be a number, as in .*mine.csv in 'kg', not '9 lb'"),
        ([1.0], "reads new rows of a data frame or a file, not of list"),
        (tmp_path / "no.csv", "there is no file"),
    ]
    for new, words in mistakes:
        with pytest.raises(UserError, match=words):
            dataset.read(new)


def test_a_point_in_new_rows_is_no_separator_of_thousands(tmp_path: Path) -> None:
    """The file's numbers have decimal commas; one of its columns has whole numbers alone."""
    data = frame().assign(whole=range(90, 150))
    data.to_csv(tmp_path / "mine.csv", index=False, sep=";", decimal=",")
    dataset: Any = make("Table", {"file": "mine.csv"}, tmp_path)
    assert "numbers with a decimal comma" in " ".join(dataset.notes)
    new = frame(2).assign(whole=["1,234", "7"])
    new.to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=",")
    assert dataset.read(tmp_path / "new.csv")[:, -1].tolist() == [1.234, 7]
    new.assign(whole=["1.234", "7"]).to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=",")
    with pytest.raises(UserError, match=r"line 2: 'whole' must be a number, .*, not '1\.234'"):
        dataset.read(tmp_path / "new.csv")
    assert dataset.read(new.assign(whole=[1.234, 7]))[:, -1].tolist() == [1.234, 7]
