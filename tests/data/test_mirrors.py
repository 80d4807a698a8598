"""Files of datasets from mirrors and folders: digests are compared, and only whole files are kept."""

import gzip
import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pandas as pd
import pytest
import torch

from oodbench.data.copies import fetch
from oodbench.datasets import Environment, FileDataset, datasets, make, require_files
from oodbench.errors import UserError
from tests.helpers.commands import type_in
from tests.helpers.data.wilds_copies import COPIES

CONTENTS = {"Sketches/a.npy": b"a" * 3000, "Sketches/b.csv": b"b\n"}


class Sketches(FileDataset):
    """Two files with checksums."""

    name = "Sketches"
    metadata = replace(
        datasets.get("Spirals").metadata,
        checksums={path: hashlib.md5(file).hexdigest() for path, file in CONTENTS.items()},
    )

    def load(self, trial: int) -> dict[str, Environment]:
        raise NotImplementedError


def sketches(data_dir: Path) -> Sketches:
    return Sketches(Sketches.Options(), data_dir)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of files: one under its path, one packed under its name."""
    folder = tmp_path / "source"
    (folder / "Sketches").mkdir(parents=True)
    (folder / "Sketches" / "a.npy").write_bytes(CONTENTS["Sketches/a.npy"])
    (folder / "b.csv.gz").write_bytes(gzip.compress(CONTENTS["Sketches/b.csv"]))
    return folder


@pytest.fixture(params=["folder", "mirror"])
def source(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The folder, or the address of a server that has its files."""
    if request.param == "folder":
        yield str(folder)
        return
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def refusal(dataset: Any, source: str, data_dir: Path) -> str:
    with pytest.raises(UserError) as caught:
        fetch(dataset, source, data_dir)
    assert "\n" not in str(caught.value)
    assert not [*data_dir.rglob(".*")]
    return str(caught.value)


def test_files_are_taken_by_path_or_name_packed_or_not(source: str, tmp_path: Path) -> None:
    fetch(sketches(tmp_path), source, tmp_path)
    for path, content in CONTENTS.items():
        assert (tmp_path / path).read_bytes() == content


def test_only_what_is_damaged_is_replaced(source: str, folder: Path, tmp_path: Path) -> None:
    fetch(sketches(tmp_path), source, tmp_path)
    (tmp_path / "Sketches" / "a.npy").write_bytes(b"?")
    (folder / "b.csv.gz").unlink()
    fetch(sketches(tmp_path), source, tmp_path)
    sketches(tmp_path).check()


@pytest.mark.parametrize("content", [b"", b"a" * 2999, b"a" * 3001])
def test_another_file_is_refused(content: bytes, source: str, folder: Path, tmp_path: Path) -> None:
    (folder / "Sketches" / "a.npy").write_bytes(content)
    sentence = refusal(sketches(tmp_path), source, tmp_path)
    assert f"Sketches: Sketches/a.npy of {source} is another file: its md5 is " in sentence
    assert not (tmp_path / "Sketches" / "a.npy").exists()


@pytest.fixture(params=["in a folder", "bare"])
def archive(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Path:
    """A set of WILDS as an archive, with its folder or without."""
    COPIES["Camelyon17"](tmp_path / "copy")
    path = folder / "camelyon17_v1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        inside = "camelyon17_v1.0" if request.param == "in a folder" else "."
        tar.add(tmp_path / "copy" / "camelyon17_v1.0", inside)
    return path


def test_a_folder_is_unpacked_from_its_archive(archive: Path, source: str, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    archive.with_name(f"{archive.name}.sha256").write_text(f"{digest}  {archive.name}\n")
    command = ("data", "download", "Camelyon17", "--data-dir", data_dir, "--from", source)
    result = type_in(*command, code=0)
    assert f"has the SHA-256 {digest}, as its .sha256 says" in " ".join(result.output.split())
    assert [path.name for path in data_dir.iterdir()] == ["camelyon17_v1.0"]


def test_a_damaged_archive_is_not_unpacked(archive: Path, source: str, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    dataset = require_files(make("Camelyon17", {}, data_dir))
    archive.write_bytes(archive.read_bytes()[:-1000])
    assert "cannot be read (" in refusal(dataset, source, data_dir)
    archive.with_name(f"{archive.name}.sha256").write_text("0" * 64)
    assert "is damaged: its SHA-256 is " in refusal(dataset, source, data_dir)
    assert not [*data_dir.iterdir()]


def parquet_copy(name: str, folder: Path) -> None:
    """Write the small copy of a set as Parquet files, a file a split and in another order."""
    COPIES[name](folder)
    if name == "Camelyon17":
        root = folder / "camelyon17_v1.0"
        rows = pd.read_csv(root / "metadata.csv", index_col=0)
        paths = sorted((root / "patches").rglob("*.png"), key=lambda p: int(p.stem.split("_")[6]))
        held: Any = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
        rows["image"] = held
        rows = rows.rename(columns={"tumor": "label"})
        rows.insert(0, "image_id", range(len(rows)))
        files = {"id_train": rows["split"] == 0, "id_val": rows.pop("split") == 1}
    else:
        file = folder / "civilcomments_v1.0" / "all_data_with_identities.csv"
        rows = pd.read_csv(file, index_col=0)
        files = {split: rows["split"] == split for split in ("val", "test", "train")}
        rows = rows.drop(columns="split").rename(columns={"comment_text": "text"})
    (folder / "parquet").mkdir()
    for split, chosen in files.items():
        rows[chosen].to_parquet(folder / "parquet" / f"{split}-00000-of-00001.parquet", index=False)


@pytest.mark.parametrize(
    ("name", "options"), [("Camelyon17", {}), ("CivilComments", {"from_scratch": True, "size": 12})]
)
def test_parquet_copies_are_equal(name: str, options: dict[str, object], tmp_path: Path) -> None:
    parquet_copy(name, tmp_path / "a")
    copied = tmp_path / "b"
    ours: Any = make(name, options, copied)
    theirs: Any = make(name, options, tmp_path / "a")
    fetch(ours, str(tmp_path / "a" / "parquet"), copied)
    assert ours.environments == theirs.environments
    for one, other in zip(ours.load(0).values(), theirs.load(0).values(), strict=True):
        everything = torch.arange(len(one.y))
        assert torch.equal(one.x.read(everything), other.x.read(everything))
        assert torch.equal(one.y, other.y)
    assert torch.equal(ours.data.metadata_array, theirs.data.metadata_array)
