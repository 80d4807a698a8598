"""Pictures in typed tables; `saved_images` was written by Hugging Face's `datasets` 5.2.0."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from oodbench.data.tables.typed import arrow_table
from oodbench.datasets import make
from oodbench.errors import UserError

SAVED = Path(__file__).parent / "saved_images"
OPTIONS = {"size": 8, "test_environments": ["e2"]}


@pytest.fixture(params=["saved", "saved.parquet", "shards"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same twelve pictures as a folder, as a file and as shards."""
    path: Path = tmp_path / request.param
    whole = pa.ipc.open_stream((SAVED / "data-00000-of-00001.arrow").read_bytes()).read_all()
    if path.name == "shards":
        (path / "data").mkdir(parents=True)
        for i, part in enumerate((whole.slice(0, 5), whole.slice(5))):
            pq.write_table(part, path / "data" / f"train-{i:05}-of-00002.parquet")
    elif path.suffix:
        pq.write_table(whole, path)
    else:
        shutil.copytree(SAVED, path)
    return path


def listed(folder: Path) -> Any:
    """A manifest of the pictures, as files."""
    lines = ["path,target,environment"]
    for row, each in enumerate(arrow_table(SAVED).to_pylist()):
        (folder / f"{row}.png").write_bytes(each["image"]["bytes"])
        lines.append(f"{row}.png,{each['target']},{each['environment']}")
    (folder / "list.csv").write_text("\n".join(lines))
    return make("Manifest", {"file": "list.csv", **OPTIONS}, folder)


def test_examples_are_those_of_a_manifest_and_unpacked_once(saved: Path, tmp_path: Path) -> None:
    found: Any = make("HuggingFace", {"file": saved.name, **OPTIONS}, tmp_path)
    wanted = listed(tmp_path)
    assert (found.classes, found.environments) == (("cat", "dog"), ("e0", "e1", "e2"))
    loaded = found.load(0)
    for name, examples in wanted.load(0).items():
        rows = torch.arange(4)
        assert torch.equal(loaded[name].x.read(rows), examples.x.read(rows))
        assert torch.equal(loaded[name].y, examples.y)
    assert [r.kind for r in found.readings] == ["image", "target", "environment"]
    times = [file.stat().st_mtime_ns for file in found.files]
    again: Any = make("HuggingFace", {"file": saved.name, **OPTIONS}, tmp_path)
    assert again.files == found.files
    assert [file.stat().st_mtime_ns for file in again.files] == times
    (folder,) = {file.parent for file in found.files}
    assert [*folder.parent.glob("tmp*")] == [] and len([*folder.iterdir()]) == 12


def test_a_path_is_under_the_folder_of_the_table(tmp_path: Path) -> None:
    listed(tmp_path)
    images = [{"bytes": None, "path": f"{row}.png"} for row in range(12)]
    table = arrow_table(SAVED).set_column(
        0, "picture", pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    )
    pq.write_table(table, tmp_path / "mine.parquet")
    options = {"file": "mine.parquet", "image": "picture", **OPTIONS}
    found: Any = make("HuggingFace", options, tmp_path)
    assert found.files == [tmp_path / f"{row}.png" for row in range(12)]
    with pytest.raises(UserError, match=r"unknown column 'pictures' .* did you mean picture"):
        make("HuggingFace", {**options, "image": "pictures"}, tmp_path)
