import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder as TorchvisionFolder

from oodbench.data.pictures.pixels import Look
from oodbench.data.streams import MemoryMapped
from oodbench.datasets import IMAGENET, make, require_files
from oodbench.errors import UserError
from tests.helpers.commands import type_in
from tests.helpers.data.pictures import draw, picture

CLASSES = ("cat", "dog", "rat")
VALUES: dict[str, object] = {"root": "set", "size": 24}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    draw(tmp_path / "set", ("a", "b", "c"), CLASSES)
    return tmp_path / "set"


@pytest.fixture
def dataset(root: Path) -> Any:
    return make("ImageFolder", VALUES, root.parent)


def odd_modes(at: Path) -> None:
    """Files in every mode that an image may have."""
    image = picture(1, 0)
    names = {"L": "grey.png", "LA": "grey_alpha.png", "RGBA": "opaque.png", "P": "palette.png"}
    for mode, name in (names | {"CMYK": "cmyk.jpg", "1": "bits.tif"}).items():
        image.convert(mode).save(at / name)
    (at / "deep").mkdir()
    image.save(at / "deep" / "NAME.JPG")


def test_it_is_domainbeds_evaluation_pipeline(root: Path) -> None:
    """Files, classes and pixels are those of torchvision's ImageFolder and DomainBed's transforms."""
    odd_modes(root / "b" / "dog")
    dataset: Any = make("ImageFolder", VALUES, root.parent)
    assert dataset.environments == ("a", "b", "c") and dataset.test_environments == ("c",)
    assert dataset.input_shape == (3, 24, 24) and dataset.task.num_outputs == 3
    steps = [transforms.Resize((24, 24)), transforms.ToTensor(), transforms.Normalize(*IMAGENET)]
    for name, environment in dataset.load(0).items():
        theirs = TorchvisionFolder(str(root / name), transforms.Compose(steps))
        wanted = {path: (x, y) for (path, _), (x, y) in zip(theirs.samples, theirs, strict=True)}
        files = [str(file) for file, _ in dataset.listing[name]]
        assert sorted(files) == sorted(wanted) and len(files) == len(environment.y)
        found = dataset.transform(environment.x.read(torch.arange(len(files))), None)
        torch.testing.assert_close(found, torch.stack([wanted[f][0] for f in files]))
        assert environment.y.tolist() == [wanted[f][1] for f in files]


@pytest.mark.parametrize("augment", [True, False])
def test_augmentation_is_for_training_and_can_be_left_out(augment: bool, root: Path) -> None:
    dataset = make("ImageFolder", VALUES | {"augment": augment}, root.parent)
    x = dataset.load(0)["a"].x.read(torch.arange(6))
    before, floats = x.float(), x.float()
    assert torch.equal(dataset.transform(floats, None), dataset.transform(x, None))
    assert torch.equal(floats, before)  # the user's tensor is not changed
    trained_on = dataset.transform(x, torch.Generator().manual_seed(0))
    assert torch.equal(trained_on, dataset.transform(x, None)) == (not augment)


def cached(root: Path, **values: object) -> bool:
    """Whether the images are read from the cache."""
    dataset = make("ImageFolder", VALUES | values, root.parent)
    return isinstance(dataset.load(0)["a"].x, MemoryMapped)


def test_the_cache_holds_the_same_bytes_and_is_made_once(dataset: Any, root: Path) -> None:
    direct = dataset.load(0)
    command = ["data", "cache", "ImageFolder", "--set", f"root={root}", "--set", "size=24"]
    result = type_in(*command, code=0)
    assert "36 examples, 6.22e-05 GB, into" in result.output
    made = [file.stat().st_mtime_ns for file in sorted(dataset.cache_folder.iterdir())]
    assert len(made) == 3 and cached(root)
    for name, environment in dataset.load(0).items():
        index = torch.randperm(len(environment.y))
        assert torch.equal(environment.x.read(index), direct[name].x.read(index))
        assert torch.equal(environment.y, direct[name].y)
    type_in(*command, code=0)
    assert [f.stat().st_mtime_ns for f in sorted(dataset.cache_folder.iterdir())] == made
    assert dataset.environments == make("ImageFolder", VALUES, root.parent).environments


def test_changed_and_new_files_and_another_size_are_not_cached(dataset: Any, root: Path) -> None:
    dataset.cache(1)
    assert cached(root) and not cached(root, size=25)
    picture(99, 0).save(root / "a" / "cat" / "new.png")
    assert not cached(root)
    (root / "a" / "cat" / "new.png").unlink()
    assert cached(root)
    os.utime(next((root / "b" / "dog").iterdir()), ns=(1, 1))
    assert not cached(root)


def test_a_cache_that_breaks_off_leaves_nothing(root: Path) -> None:
    file = next((root / "c" / "rat").iterdir())
    good = file.read_bytes()
    file.write_bytes(good[: len(good) // 2])
    with pytest.raises(UserError, match=f"{file.name} cannot be read as an image"):
        require_files(make("ImageFolder", VALUES, root.parent)).cache(2)
    assert not [*(root / ".oodbench").glob("upright-*")]
    file.write_bytes(good)
    require_files(make("ImageFolder", VALUES, root.parent)).cache(2)
    names = {p.name.partition("-")[0] for p in (root / ".oodbench").iterdir()}
    assert names == {"lock", "upright", "survey"} and cached(root)


def refusal(root: Path) -> str:
    with pytest.raises(UserError) as caught:
        make("ImageFolder", VALUES, root.parent).check()
    return str(caught.value)


def test_files_that_cannot_be_read_are_found_before_training(dataset: Any, root: Path) -> None:
    dataset.check()
    torn = root / "a" / "dog" / "torn.jpg"
    Image.effect_noise((64, 64), 50).save(torn)
    torn.write_bytes(torn.read_bytes()[:-200])
    text, empty = root / "b" / "rat" / "text.png", root / "c" / "rat" / "empty.bmp"
    text.write_text("hello")
    empty.touch()
    assert re.search(r"torn.jpg cannot be read .*; 2 others cannot either", refusal(root))
    torn.unlink()
    empty.unlink()
    assert re.search(r"^ImageFolder: \S+text.png .* \(its format is unknown\)", refusal(root))
    text.write_text("<html>Log in")
    assert "a web page, perhaps a login" in refusal(root)
    text.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n")
    said = r"text.png .*unknown; a pointer of Git LFS: `git lfs pull`"
    assert re.search(said, refusal(root))


def test_files_are_seen_once(dataset: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset.check()
    monkeypatch.setattr(
        "oodbench.data.pictures.pixels._look", lambda file, *s: Look(f"{file} was looked at")
    )
    make("ImageFolder", VALUES, root.parent).check()
    os.utime(next((root / "a" / "cat").iterdir()), ns=(1, 1))
    assert "was looked at" in refusal(root)


def test_hidden_folders_and_other_files_do_not_count(dataset: Any, root: Path) -> None:
    before = dataset.load(0)["a"].y
    (root / ".git").mkdir()
    (root / "a" / ".thumbnails").mkdir()
    (root / "readme.txt").write_text("hello")
    (root / "a" / "cat" / "notes.txt").write_text("hello")
    (root / "a" / "cat" / "photo.heic").write_text("hello")
    (root / "a" / "cat" / "._0.png").write_text("hello")
    draw(root / "a" / "cat", (".ipynb_checkpoints", ".deep", "@eaDir"), ("x",))
    draw(root, ("__MACOSX",), CLASSES)
    dataset = make("ImageFolder", VALUES, root.parent)
    assert dataset.notes == [
        f"3 files of {root} left out: 2 .txt, 1 .heic (pillow_heif.open_heif reads them; save them as PNG)"
    ]
    assert dataset.environments == ("a", "b", "c")
    assert torch.equal(dataset.load(0)["a"].y, before)
