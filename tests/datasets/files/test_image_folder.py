"""Folders as people have them: links, splits, strays, other files, archives, names in two forms."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
import torch

from oodbench.data.preparation import group_names, load_checked
from oodbench.datasets import make
from oodbench.errors import UserError
from oodbench.train.loading import load_data, spec_of_data
from oodbench.train.settings import TrainSettings
from tests.helpers.data.pictures import draw, greys, picture

links = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


def folder(root: Path, **options: object) -> Any:
    return make("ImageFolder", {"root": str(root), "size": 8, **options})


def sizes(dataset: Any) -> dict[str, int]:
    return {name: len(environment.y) for name, environment in dataset.load(0).items()}


def said(dataset: Any) -> str:
    return "\n".join(dataset.notes)


@links
@pytest.mark.parametrize("level", ["", "a", "a/cat", "a/cat/more", "a/cat/0.png"])
def test_links_are_followed_at_every_level(level: str, tmp_path: Path) -> None:
    draw(tmp_path / "set", "ab", ("cat", "dog"), suffixes=(".png",))
    draw(tmp_path / "set/a/cat", ("more",), ("deep",), suffixes=(".png",))
    plain = folder(tmp_path / "set")
    (tmp_path / "set" / level).rename(tmp_path / "elsewhere")
    (tmp_path / "set" / level).symlink_to(tmp_path / "elsewhere")
    linked = folder(tmp_path / "set")
    linked.check()
    assert sizes(linked) == sizes(plain) == {"a": 12, "b": 8}
    assert linked.listing == {**plain.listing}
    assert linked.notes == ["pictures in folders below a class's are of that class: more"]


@links
@pytest.mark.parametrize(
    ("link", "to"), [("a/cat/up", "."), ("a/up", "a"), ("up", "."), ("a/cat/x", "a/cat")]
)
def test_a_circle_of_links_is_refused_by_name(link: str, to: str, tmp_path: Path) -> None:
    draw(tmp_path, "ab", ("cat", "dog"))
    (tmp_path / link).symlink_to(tmp_path / to)
    with pytest.raises(UserError, match=f"{Path(link).name} is a link to a folder that holds it"):
        folder(tmp_path)


def test_folds_are_no_classes(tmp_path: Path) -> None:
    for domain in ("art", "photo"):
        for fold in ("fold1", "fold2"):
            draw(tmp_path / domain, (fold,), ("cat", "dog"), count=2)
    with pytest.raises(UserError, match=r"the folders fold1 and fold2 in .* are rather splits"):
        folder(tmp_path)
    assert folder(tmp_path, splits="merge").classes == ("cat", "dog")


@pytest.mark.parametrize(
    "names",
    [
        *(("train", "test"), ("Training", "VALID"), ("val", "Testing")),
        *(("training_set", "dev"), ("train2017", "val2017"), ("0_train", "1_test")),
    ],
)
@pytest.mark.parametrize("around", [True, False])
def test_splits_are_no_environments(names: tuple[str, ...], around: bool, tmp_path: Path) -> None:
    for i, split in enumerate(names):
        for domain in ("art", "photo"):
            at = tmp_path / (split if around else domain)
            draw(at, (domain if around else split,), ("cat", "dog"), count=2 + i)
    with pytest.raises(UserError, match=r"are rather splits than .*`splits: merge`"):
        folder(tmp_path)
    merged = folder(tmp_path, splits="merge")
    assert merged.classes == ("cat", "dog") and sizes(merged) == {"art": 10, "photo": 10}
    one = "test" if "test" in names[1].lower() else "val" if names[0] != "train" else "test"
    assert sizes(folder(tmp_path, splits=one)) == {"art": 6, "photo": 6}
    kept = folder(tmp_path, splits="keep")
    assert set(kept.environments if around else kept.classes) == set(names)
    shutil.rmtree(tmp_path / (f"{names[1]}/art" if around else f"art/{names[1]}"))
    with pytest.raises(UserError, match=f"no `splits: {one}` of art"):
        folder(tmp_path, splits=one)


def test_environments_and_a_class_may_be_called_like_splits(tmp_path: Path) -> None:
    draw(tmp_path / "one", ("train", "val", "test"), ("cat", "dog"))
    one = folder(tmp_path / "one")
    assert one.environments == ("test", "train", "val")
    assert "called like splits (test, train, val), and splits of one data set" in said(one)
    draw(tmp_path / "two", ("day", "night"), ("bus", "car", "train"))
    assert folder(tmp_path / "two").classes == ("bus", "car", "train")
    for name in ("one", "two"):
        with pytest.raises(UserError, match="has no folders such as train and test with folders"):
            folder(tmp_path / name, splits="merge")


def test_attributes_are_folders_in_those_of_the_classes(tmp_path: Path) -> None:
    for environment in ("north", "south"):
        draw(tmp_path / environment, ("cat", "dog"), ("indoors", "outdoors"), count=2)
    plain = folder(tmp_path)
    assert not plain.attributes and all(e.attributes is None for e in plain.load(0).values())
    dataset = folder(tmp_path, attributes=True)
    groups = "cat, indoors; cat, outdoors; dog, indoors; dog, outdoors"
    assert "; ".join(group_names(dataset)) == groups
    loaded: Any = load_checked(dataset, 0)
    for found in loaded.values():
        assert found.attributes.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    picture(0, 0).save(tmp_path / "north" / "dog" / "stray.png")
    with pytest.raises(UserError, match=r"stray.png is in no folder of an attribute"):
        folder(tmp_path, attributes=True).load(0)
    for place in ("art/train", "art/test", "photo/train", "photo/test"):
        draw(tmp_path / "splits" / place, ("cat", "dog"), ("day", "night"), count=1)
    found = folder(tmp_path / "splits", splits="merge", attributes=True)
    assert found.attributes == ("day", "night")
    assert found.load(0)["art"].attributes.tolist() == [0, 1] * 4


@pytest.mark.parametrize("where", ["ab", "b", "a"])
def test_a_folder_without_pictures_is_no_class_and_named(where: str, tmp_path: Path) -> None:
    draw(tmp_path, "ab", ("cat", "dog"))
    for name in where:
        (tmp_path / name / "raw").mkdir()
        (tmp_path / name / "raw" / "notes.txt").touch()
    (tmp_path / "new").mkdir()
    found = folder(tmp_path)
    assert found.classes == ("cat", "dog") and found.environments == ("a", "b")
    named = [str(tmp_path / name / "raw") for name in where]
    assert all(name in said(found) for name in [*named, str(tmp_path / "new")])


def test_what_may_be_a_stray_is_said(tmp_path: Path) -> None:
    draw(tmp_path, "ab", ("cat", "dog"), count=1)
    draw(tmp_path, ("New folder",), ("cat", "dog"), count=1)
    assert "'New folder' may be a stray folder: it has 2 of 6 images" in said(folder(tmp_path))
    picture(0, 0).save(tmp_path / "a" / "few.png")
    for i in range(210):
        (tmp_path / "a/cat" / f"x{i}.png").write_bytes((tmp_path / "a/few.png").read_bytes())
    draw(tmp_path / "a", ("dust",), ("x",), count=1)
    with pytest.raises(UserError, match=r"b/dust, but there is \S+a/dust/x/0.* if 'dust' is not"):
        assert folder(tmp_path).listing


@pytest.mark.parametrize("domains", [("photo", "art_painting", "sketch"), ("site1", "site 2")])
def test_classes_that_are_called_like_environments(domains: Sequence[str], tmp_path: Path) -> None:
    draw(tmp_path / "turned", ("cat", "dog"), domains, count=1)
    assert "are called like environments: folders are ENV" in said(folder(tmp_path / "turned"))
    draw(tmp_path / "right", domains, ("cat", "dog"), count=1)
    draw(tmp_path / "fakes", ("web", "phone"), ("real", "fake"), count=1)
    for name in ("right", "fakes"):
        assert "called like" not in said(folder(tmp_path / name))


def test_an_archives_own_level_is_found(tmp_path: Path) -> None:
    draw(tmp_path / "set/scans/scans", "ab", ("cat", "dog"))
    found = folder(tmp_path / "set")
    assert found.environments == ("a", "b") and found.classes == ("cat", "dog")
    assert "alone in" in said(found)
    draw(tmp_path / "one/a", ("cat", "dog"), ("monday",))
    assert folder(tmp_path / "one", splits="").classes == ("cat", "dog")
    draw(tmp_path / "office", ("amazon/images", "dslr/images"), ("mug", "pen"))
    office = folder(tmp_path / "office")
    assert office.environments == ("amazon", "dslr") and office.classes == ("mug", "pen")
    draw(tmp_path / "cats", ("a/cat", "b/cat"), ("s1", "s2"))
    with pytest.raises(UserError, match="has only images of 'cat'"):
        folder(tmp_path / "cats").check()
    assert sizes(office) == {"amazon": 8, "dslr": 8}
    styles = ("art_painting", "cartoon", "photo", "sketch")
    draw(tmp_path / "PACS/kfold", styles, [f"c{i}" for i in range(7)], count=1)
    (tmp_path / "PACS/kfold/photo/raw").mkdir()
    pacs: Any = make("PACS", {"subset": True, "size": 8}, tmp_path)
    assert sizes(pacs) == dict.fromkeys("ACPS", 7)


def test_names_in_two_forms_of_unicode_are_one(tmp_path: Path) -> None:
    draw(tmp_path, ("a",), map(lambda n: normalize("NFC", n), ("für", "über")))
    draw(tmp_path, ("b",), map(lambda n: normalize("NFD", n), ("für", "über")))
    draw(tmp_path, (normalize("NFD", "Zürich"),), ("für",))
    draw(tmp_path, (normalize("NFC", "Zürich"),), ("über",))
    found = folder(tmp_path)
    assert len(found.classes) == 2 and sizes(found) == {"a": 8, "b": 8, found.environments[2]: 8}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("1.dcm", b"x", ["20 .dcm", "pydicom"]),
        ("scan.nii.gz", b"x", ["20 .nii.gz", "nibabel"]),
        ("x.mat", b"x", ["20 .mat", "scipy.io.loadmat"]),
        ("x.npz", b"x", ["20 .npz", "numpy.load"]),
        ("x.heic", b"x", ["20 .heic", "pillow_heif"]),
        ("IM1", b"\0" * 128 + b"DICM", ["20 without an ending", "pydicom"]),
        ("1.2.840.5", b"\0" * 128 + b"DICM", ["20 without an ending", "pydicom"]),
        ("scan", b"\x89PNG", ["20 without an ending", "PNG; add the ending"]),
    ],
)
@pytest.mark.parametrize("beside", [True, False])
def test_files_that_are_no_pictures_are_named(
    name: str, content: bytes, words: list[str], beside: bool, tmp_path: Path
) -> None:
    if beside:
        draw(tmp_path, "ab", ("sick", "well"))
    if content == b"\x89PNG":
        picture(0, 0).save(tmp_path / "x", "PNG")
        content = (tmp_path / "x").read_bytes()
        (tmp_path / "x").unlink()
    for i in range(20):
        at = tmp_path / "ab"[i % 2 and beside] / ("sick", "well")[i // 10] / f"{i}"
        at.mkdir(parents=True)
        (at / name).write_bytes(content)
    if beside:
        text = said(folder(tmp_path))
    else:
        with pytest.raises(UserError) as error:
            assert folder(tmp_path).listing
        text = str(error.value)
    assert all(word in text for word in words)


@pytest.mark.parametrize("name", ["{}_mask", "{}_mask_1", "{}-seg", "{}_Segmentation"])
def test_masks_beside_pictures_are_no_pictures(name: str, tmp_path: Path) -> None:
    draw(tmp_path, "ab", ("sick", "well"), suffixes=(".png",))
    for file in sorted(tmp_path.rglob("*.png")):
        shutil.copy(file, file.with_stem(name.format(file.stem)))
    shutil.copy(file, file.with_stem("theatre_mask"))
    dataset = folder(tmp_path)
    assert sizes(dataset) == {"a": 8, "b": 9}
    assert "16 .png named after a picture in the same folder, such as a mask" in said(dataset)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have Unicode names alone")
def test_folders_whose_names_are_no_texts_are_refused(tmp_path: Path) -> None:
    draw(tmp_path, ["a", os.fsdecode(b"caf\xe9")], ("cat", "dog"))
    with pytest.raises(UserError, match=r"is not UTF-8, 'caf\\udce9': rename it"):
        folder(tmp_path)


@links
def test_a_dead_link_is_said(tmp_path: Path) -> None:
    draw(tmp_path, "ab", ("cat", "dog"))
    (tmp_path / "a" / "cat" / "session2").symlink_to(tmp_path / "nowhere")
    assert "1 without an ending (a dead link)" in said(folder(tmp_path))
    (tmp_path / "a" / "cat" / "9.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(UserError, match=r"cat/9\.png: a dead link$"):
        folder(tmp_path).check()


def up_to(white: int) -> Callable[[np.ndarray], np.ndarray]:
    """Stretches grey values, so that this one is the largest."""
    return lambda grey: (grey * (white / grey.max())).astype(np.uint16)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("other", [1023, 4095, 16383])
def test_each_environment_has_its_own_white(other: int, suffix: str, tmp_path: Path) -> None:
    greys(tmp_path, {"a": up_to(other), "b": up_to(65535)}, suffix)
    found = folder(tmp_path)
    assert found.whites == {"a": other, "b": 65535} and "white" not in found.resolved_options(False)
    assert f"white is {other} in a, 65535 in b" in said(found)
    for environment in found.load(0).values():
        assert environment.x.read(torch.arange(8)).flatten(1).max(1).values.min() > 150
    before = {name: e.x.read(torch.arange(8)) for name, e in found.load(0).items()}
    found.cache(1)
    again = folder(tmp_path)
    assert all(torch.equal(before[n], e.x.read(torch.arange(8))) for n, e in again.load(0).items())
    one = folder(tmp_path, white=65535)
    assert one.load(0)["a"].x.read(torch.arange(8)).max() < 70
    with pytest.raises(UserError, match="the option `white` says it"):
        found.read([tmp_path / "a" / "x" / f"0{suffix}"])
    assert one.read([tmp_path / "a" / "x" / f"0{suffix}"]).max() < 70


def test_pictures_of_8_bits_among_deeper_ones_are_said(tmp_path: Path) -> None:
    greys(tmp_path / "deep", dict.fromkeys("ab", up_to(4095)))
    assert "8 bits" not in said(folder(tmp_path / "deep"))
    draw(tmp_path / "deep", "c", ("x", "y"), suffixes=(".png",))
    found = folder(tmp_path / "deep")
    assert "other pictures have 8 bits, whose white is 255: 8 in c" in said(found)
    assert found.load(0)["c"].x.read(torch.arange(8)).max() > 150
    draw(tmp_path / "plain", "ab", ("x", "y"))
    assert "8 bits" not in said(folder(tmp_path / "plain"))


def test_what_holds_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "pictures/new").mkdir(parents=True)
    (tmp_path / "pictures.zip").touch()
    for name, words in {
        "pictures/new": "holds no folders with images",
        "pictures": "holds no folders with images",
        "nowhere": "is not there",
        "pictures.zip": r"pictures\.zip is not a folder",
        "picturs": r"picturs is not there .*; did you mean pictures\?$",
    }.items():
        with pytest.raises(UserError, match=words):
            assert folder(tmp_path / name).listing


def test_classes_that_some_environment_lacks(tmp_path: Path) -> None:
    draw(tmp_path, "ab", ("cat", "dog"))
    draw(tmp_path, "c", ("cat",))
    with pytest.raises(UserError, match=r"no folder \S+c/dog, .* or else make an empty folder$"):
        assert folder(tmp_path).listing
    (tmp_path / "c" / "dog").mkdir()
    assert sizes(folder(tmp_path)) == {"a": 8, "b": 8, "c": 4}
    assert "environment 'c' has one class only, 'cat'" in said(folder(tmp_path))
    draw(tmp_path / "c", ("Dog",), ("x",))
    with pytest.raises(UserError, match=r"folder \S+a/Dog, .*: 'Dog' and 'dog' count as different"):
        assert folder(tmp_path).listing
    for name in "ab":
        (tmp_path / name / "Dog").mkdir()
    assert "classes 'Dog' and 'dog' count as different" in said(folder(tmp_path))
    assert "only environment 'c' has the class 'Dog': where it is held" in said(folder(tmp_path))


@pytest.mark.parametrize(
    ("pair", "hint"),
    [
        (("elephant", "elefant"), "name the folders of one class alike$"),
        (("class 1", "class 2"), "or else make an empty folder$"),
    ],
)
def test_classes_with_nearly_the_same_name(
    pair: tuple[str, ...], hint: str, tmp_path: Path
) -> None:
    for environment, name in zip("ab", pair, strict=True):
        draw(tmp_path, environment, ("dog", name))
    with pytest.raises(UserError, match=hint):
        assert folder(tmp_path).listing


def scans(root: Path, name: str) -> None:
    """Pictures of three subjects in each of two environments, of which one subject is in both."""
    for environment, subjects in (("a", (1, 2, 3)), ("b", (3, 4, 5))):
        for label, kind in enumerate(("ill", "well")):
            for subject in subjects:
                for visit in range(3):
                    file = root / environment / kind / name.format(subject=subject, visit=visit)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    picture(visit, label).save(file)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("P{subject:02}_{visit}.png", r"P\d+"),
        ("scan_{subject}-{visit}.png", r"scan_(\d+)"),
        ("{visit}.s{subject}.jpg", r"\.(s\d)\."),
    ],
)
def test_groups_are_clusters_and_may_be_kept_apart(name: str, pattern: str, tmp_path: Path) -> None:
    scans(tmp_path, name)
    options = {"root": str(tmp_path), "size": 8, "group": pattern, "group_across": "drop"}
    grouped: Any = make("ImageFolder", options)
    a, b = (grouped.load(0)[e].clusters for e in "ab")
    assert len(grouped.cluster_names) == 5 and {*a.tolist()} & {*b.tolist()} == {2}
    about: dict[str, Any] = {"trial": 0, "holdout": 0.5, "test_environments": ("b",)}
    data = load_data(spec_of_data("ImageFolder", options=options, **about), TrainSettings())
    used = {e: sum(map(len, data.splits[e].values())) for e in "ab"}
    assert used == {"a": 12, "b": 18}
    assert not any("several environments" in note for note in grouped.notes)


@pytest.mark.parametrize(
    ("name", "is_said"),
    [
        ("P{subject:02}_{visit}.png", True),
        ("subject-{subject}_{visit}.png", True),
        ("P{subject:02}/{visit}.png", True),
        ("DSC_{subject}_{visit}.png", False),
        ("{subject}{visit}.png", False),
        ("IMG_{subject}{visit}.png", False),
    ],
)
def test_subjects_in_several_environments_are_said_by_the_names_of_pictures(
    name: str, is_said: bool, tmp_path: Path
) -> None:
    scans(tmp_path, name)
    assert ("in several environments" in said(folder(tmp_path))) == is_said


def test_numbers_that_begin_again_in_each_environment_are_no_subjects(tmp_path: Path) -> None:
    for environment in "ab":
        for label, kind in enumerate(("ill", "well")):
            (at := tmp_path / environment / kind).mkdir(parents=True)
            for number in range(3):
                picture(number, label).save(at / f"pic{3 * label + number}_x.png")
    assert not folder(tmp_path).notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "("}, "`group` is not a regular expression"),
        ({"group": r"Q\d"}, r"`group: Q\\d` is not in .*P01_0.png"),
        ({"group_across": "drop"}, "needs the option `group`"),
    ],
)
def test_mistakes_in_groups(options: dict[str, str], message: str, tmp_path: Path) -> None:
    scans(tmp_path, "P{subject:02}_{visit}.png")
    with pytest.raises(UserError, match=message):
        folder(tmp_path, **options).load(0)
