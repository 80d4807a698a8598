"""Tables whose columns have types.

`saved` and `saved.parquet` were written by Hugging Face's `datasets` 5.2.0.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from oodbench.datasets import make
from oodbench.errors import UserError

HERE = Path(__file__).parent
SAVED = pd.DataFrame(
    {
        "age": ["41", "25", "33", "58", "", "19"],
        "wage": ["0.1", "1e-07", "3.25", "-0.0", "123456.789", "2.5"],
        "city": ["Bern", "Zürich", "Bern", "Uri", "Bern", "Uri"],
        "member": ["True", "False", "True", "True", "False", "True"],
        "target": ["no", "yes", "no", "yes", "yes", "no"],
        "environment": ["2019", "2019", "2020", "2020", "2021", "2021"],
    }
)
"""What they hold, as a CSV file has it."""


def table(file: Path, **options: Any) -> Any:
    return make("Table", {"file": str(file), "missing": "median", **options})


def save(folder: Path, columns: Mapping[str, Any]) -> Path:
    """Write a folder as `Dataset.save_to_disk` does."""
    folder.mkdir()
    found = pa.table(dict(columns))
    with pa.ipc.new_stream(folder / "data.arrow", found.schema) as stream:
        stream.write_table(found)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return folder


@pytest.mark.parametrize("name", ["saved", "saved.parquet"])
def test_a_saved_table_has_the_examples_of_the_same_csv(name: str, tmp_path: Path) -> None:
    SAVED.to_csv(tmp_path / "saved.csv", index=False)
    found, wanted = table(HERE / name), table(tmp_path / "saved.csv")
    assert (found.classes, found.environments) == (("no", "yes"), ("2019", "2020", "2021"))
    assert (found.readings, found.notes) == (wanted.readings, wanted.notes)
    loaded = found.load(0)
    for environment, examples in wanted.load(0).items():
        np.testing.assert_array_equal(loaded[environment].x, examples.x)
        assert torch.equal(loaded[environment].y, examples.y)


@pytest.mark.parametrize(
    ("values", "cells"),
    [
        (pa.array([0.1, None, np.nan, np.inf], pa.float32()), [np.float32(0.1), "", "", "inf"]),
        (pa.array([1, None, 2**60, -3]), ["1", "", str(2**60), "-3"]),
        (pa.array(["a", "b", "a", None]).dictionary_encode(), ["a", "b", "a", ""]),
        (pa.array([" x ", "", "1e3", "NO"], pa.large_string()), ["x", "", "1e3", "NO"]),
        (pa.array([True, None, False, True]), ["True", "", "False", "True"]),
        (pa.array([9, 0, None, 1], pa.date32()), ["1970-01-10", "1970-01-01", "", "1970-01-02"]),
    ],
)
def test_values_are_cells(values: Any, cells: list[Any], tmp_path: Path) -> None:
    columns = {"x": values, "y": [1, 2, 3, 4], "target": list("abab"), "environment": list("eeff")}
    saved = save(tmp_path / "saved", columns)
    found = table(saved, features=["y"]).rows.cells("x").to_pylist()
    assert [type(c)(f) for c, f in zip(cells, found, strict=True)] == cells


def test_another_part_of_the_folder_is_another_file(tmp_path: Path) -> None:
    columns = {"x": [1.0, 2.0], "target": ["a", "b"], "environment": ["e", "f"]}
    one = save(tmp_path / "one", columns)
    other = save(tmp_path / "other", {**columns, "x": [1.0, 3.0]})
    assert table(one).options.md5 != table(other).options.md5


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """The rows of SAVED as the hub lays them: three shards of one split, and one of another."""
    folder = tmp_path / "hub" / "data"
    folder.mkdir(parents=True)
    names = [*(f"train-{i:05}-of-00003" for i in range(3)), "test-00000-of-00001"]
    for name, row in zip(names, (0, 1, 2, 3), strict=True):
        rows = SAVED[row:] if row == 3 else SAVED[row : row + 1]
        rows.to_parquet(folder / f"{name}.parquet", index=False)
    return folder


def test_shards_are_read_whole(shards: Path) -> None:
    for file in (shards, shards.parent):
        found = table(file)
        assert found.rows.texts("city") == [*SAVED["city"][3:], *SAVED["city"][:3]]
        assert "4 files are read as one table" in " ".join(found.notes)
        assert len(found.files_read) == 4
    split = table(shards / "train")
    assert split.rows.texts("city") == [*SAVED["city"][:3]]
    assert table(shards / "test-00000-of-00001.parquet").environments == ("2020", "2021")


def test_some_of_several_shards_are_refused(shards: Path) -> None:
    second = shards / "train-00001-of-00003.parquet"
    with pytest.raises(UserError, match=r"one of 3 shards; give .*data for all .*data/train for"):
        table(second)
    second.rename(shards / "train.bak")
    for file in (shards.parent, shards, shards / "train"):
        with pytest.raises(UserError, match=r"train-00001-of-00003\.parquet is missing"):
            table(file)
    SAVED.to_parquet(shards / "train-00000-of-00001.parquet", index=False)
    with pytest.raises(UserError, match="train is there in 1 and in 3 shards: remove the older"):
        table(shards)
    (shards / "train-00000-of-00001.parquet").unlink()
    SAVED.drop(columns="age").to_parquet(second, index=False)
    with pytest.raises(UserError, match=r"00001-of.* has no column 'age', but other files of"):
        table(shards)


def test_folders_without_a_table_of_their_own(tmp_path: Path) -> None:
    for place in ("hub/default/train", "hub/default/test"):
        (tmp_path / place).mkdir(parents=True)
        SAVED.to_parquet(tmp_path / place / "0000.parquet", index=False)
    with pytest.raises(UserError, match=r"which holds \S+default/test, \S+train: name one of them"):
        table(tmp_path / "hub")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/part-0.csv").touch()
    with pytest.raises(
        UserError, match=r"which holds \S+part-0.csv: name one file, or a folder of"
    ):
        table(tmp_path / "parts")
    with pytest.raises(UserError, match=r"there is no file \S+; did you mean part-0.csv\?"):
        table(tmp_path / "parts/prat-0.csv")


def test_shards_may_differ_in_order_and_in_types_that_are_one(shards: Path) -> None:
    """A column without fractions, or without any value, has another type than in other shards."""
    ages: list[float | None] = [41, 2.5, None]
    for i, age in enumerate(ages):
        city = SAVED["city"].astype("category" if i else object)
        row = SAVED.assign(age=age, city=city)[i : i + 1]
        row = row[[*SAVED.columns][:: 1 - 2 * (i % 2)]]
        row.to_parquet(shards / f"train-{i:05}-of-00003.parquet", index=False)
    found = table(shards / "train")
    assert found.x[:, 0].tolist() == [41, 2.5, 0] and found.columns.gaps == ("age",)
    assert found.rows.texts("city") == [*SAVED["city"][:3]]
    row.assign(age="old").to_parquet(shards / "train-00001-of-00003.parquet", index=False)
    with pytest.raises(UserError, match=r"cannot be read: .*\bage\b"):
        table(shards / "train")


def test_folders_that_name_values_are_columns(tmp_path: Path) -> None:
    data = SAVED.assign(city=np.array(["Bern", "Zürich/1", None] * 2, object))
    data.to_parquet(tmp_path / "f", partition_cols=["environment", "city"], index=False)
    found = table(tmp_path / "f")
    assert found.environments == ("2019", "2020", "2021") and len(found.files_read) == 6
    assert found.rows.cells("city").to_pylist() == ["Bern", "Zürich/1", "Bern", "", "Zürich/1", ""]
    assert found.rows.cells("wage").to_pylist()[:2] == ["0.1", "1e-07"]


@pytest.mark.parametrize("ending", ["feather", "arrow", "pq"])
def test_further_endings(ending: str, tmp_path: Path) -> None:
    (SAVED.to_parquet if ending == "pq" else SAVED.to_feather)(tmp_path / f"f.{ending}")
    assert table(tmp_path / f"f.{ending}").readings == table(HERE / "saved").readings


def test_several_targets_are_refused_with_what_they_need() -> None:
    with pytest.raises(UserError, match=r"'target' in .* must be one: several .* `multilabel`"):
        table(HERE / "saved", target=["target", "city"])
