import unicodedata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from oodbench.data.audit import audit_of
from oodbench.data.preparation import inspect
from oodbench.datasets import Dataset, make
from oodbench.errors import UserError
from tests.helpers.commands import type_in


def listed(count: int = 24) -> pd.DataFrame:
    """Rows of images in three environments; the class is whether red is brighter than blue."""
    rows = pd.DataFrame({"path": [f"images/{i}.png" for i in range(count)]})
    rows["environment"] = np.array(["day", "dusk", "night"])[np.arange(count) % 3]
    rows["target"] = np.where(rows.index // 3 % 2, "red", "blue")
    return rows


def manifest(folder: Path, rows: pd.DataFrame, **options: Any) -> Dataset:
    (folder / "images").mkdir(exist_ok=True)
    for i, row in enumerate(listed(len(rows)).itertuples()):
        pixels = np.full((10, 8, 3), 4 * i, np.uint8)
        pixels[..., 0 if row.target == "red" else 2] = 255
        Image.fromarray(pixels).save(folder / "images" / f"{i}.png")
    rows.to_csv(folder / "mine.csv", index=False)
    return opened(folder, **options)


def opened(folder: Path, **options: Any) -> Dataset:
    return make("Manifest", {"file": "mine.csv", "size": 6, **options}, folder)


def test_images_and_targets(tmp_path: Path) -> None:
    rows = listed().assign(group=lambda d: d.index // 6, split="in")
    rows.loc[:5, "split"] = "out"
    dataset = manifest(tmp_path, rows, group="group")
    dataset.check()
    assert dataset.environments == ("day", "dusk", "night")
    assert (dataset.input_shape, dataset.task.kind) == ((3, 6, 6), "binary")
    dusk = dataset.load(0)["dusk"]
    images = dusk.x.read(torch.arange(8))
    assert images.shape == (8, 3, 6, 6) and images.dtype == torch.uint8
    for i, image in enumerate(images):
        red = bool(dusk.y[i])
        assert (image[0 if red else 2] == 255).all() and (image[1] == 4 * (3 * i + 1)).all()
    assert dusk.out is not None and dusk.out.tolist() == [True, True] + [False] * 6
    assert dusk.clusters is not None and len(set(dusk.clusters.tolist())) == 4


def test_check_reads_everything(tmp_path: Path) -> None:
    manifest(tmp_path, listed())
    images = tmp_path / "images"
    (images / "7.png").write_bytes((images / "2.png").read_bytes())
    (images / "9.png").write_bytes((images / "9.png").read_bytes()[:45])
    command = ("data", "check", "Manifest", "--data-dir", tmp_path, "--set", "file=mine.csv")
    result = type_in(*command, code=2)
    assert "of 'night' share the inputs of examples of 'dusk': copies" in result.stdout
    assert f"{images / '9.png'} cannot be read as an image" in result.stdout
    assert "1 example of mine cannot be read" in result.stderr


def test_equal_pictures_may_have_several_numbers(tmp_path: Path) -> None:
    dataset = manifest(tmp_path, listed().assign(target=range(24)), kind="real")
    images = tmp_path / "images"
    (images / "7.png").write_bytes((images / "2.png").read_bytes())
    kinds = {finding.kind for finding in audit_of(dataset, inspect(dataset))}
    assert "several classes" not in kinds


def test_absolute_paths_are_files_wherever_the_data_directory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    manifest(inner, listed())
    rows = listed().assign(path=lambda d: [str(inner / path) for path in d["path"]])
    rows.to_csv(tmp_path / "mine.csv", index=False)
    monkeypatch.chdir(inner)
    dataset = opened(Path(".."))
    dataset.check()
    assert len(dataset.load(0)["dusk"].x.read(torch.arange(8))) == 8
    (inner / "images" / "4.png").unlink()
    with pytest.raises(UserError, match=rf"line 6: there is no image '{inner}/images/4\.png'$"):
        opened(Path("..")).check()


@pytest.mark.parametrize(
    "written",
    ["images\\{}.png", ".\\images\\{}.png", "images\\../images/{}.png", "%69mages/{}%2Epng"],
)
@pytest.mark.parametrize("column", ["path", "file_name", "image"])
def test_paths_as_programs_write_them(column: str, written: str, tmp_path: Path) -> None:
    plain = manifest(tmp_path, listed())
    rows = listed().assign(path=[written.format(i) for i in range(24)])
    other = manifest(tmp_path, rows.rename(columns={"path": column}))
    other.check()
    assert {file.resolve() for file in plain.files_read} == {f.resolve() for f in other.files_read}


@pytest.mark.parametrize(
    "written",
    [
        *("C:\\Users\\me\\images\\{}.png", "/home/me/images/{}.png"),
        *("images/{}.PNG", "images/{}", "{}.png"),
    ],
)
def test_a_path_that_is_elsewhere_here_is_shown(written: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 2: .*; did you mean 'images/0\.png'\?$"):
        manifest(tmp_path, listed().assign(path=[written.format(i) for i in range(24)])).check()


@pytest.mark.parametrize("written", [".", "..", "images", "C:\\"])
def test_a_folder_is_no_image(written: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 2: there is no image '.*' in [^?]*$"):
        manifest(tmp_path, listed().assign(path=written)).check()


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_paths_are_found_in_both_forms_of_unicode(
    forms: tuple[Literal["NFC", "NFD"], ...], tmp_path: Path
) -> None:
    listed_as, on_disk = (unicodedata.normalize(form, "für\\x.png") for form in forms)
    rows = listed()
    manifest(tmp_path, rows)
    (tmp_path / "images" / on_disk[:-6]).mkdir()
    (tmp_path / "images/0.png").rename(tmp_path / "images" / on_disk.replace("\\", "/"))
    rows.loc[0, "path"] = f"images\\{listed_as}"
    rows.to_csv(tmp_path / "mine.csv", index=False)
    opened(tmp_path).check()


def test_scans_in_a_list_are_named(tmp_path: Path) -> None:
    manifest(tmp_path, listed())
    (tmp_path / "images/3.png").write_bytes(b"\0" * 128 + b"DICM" + b"x" * 99)
    with pytest.raises(UserError, match=r"line 5: .*3.png cannot .*unknown; pydicom.dcmread reads"):
        opened(tmp_path).check()
