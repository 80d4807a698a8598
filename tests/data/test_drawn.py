"""Pictures that are made from packages, and how a trial deals their identities out."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from oodbench.data.drawn import DrawnPictures, Picture, outlines, rendered
from oodbench.data.packages import Files
from oodbench.datasets import Normalization, datasets
from oodbench.errors import UserError
from oodbench.identity import md5
from oodbench.tasks import Task
from tests.helpers.data import archives
from tests.helpers.data.pictures import font

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><{} fill="{}"/></svg>'
COLOURS = ("#104010", "#a02060")
COUNT = 20


def shape(i: int) -> str:
    """A disk or a bar, of the size `i`."""
    if i % 2:
        return f'circle cx="8" cy="8" r="{2 + i / 4}"'
    return f'rect x="0" y="0" width="16" height="{1 + i / 2}"'


FILES: dict[str, Files] = {
    colour: {f"{i:02}.svg": SVG.format(shape(i), colour).encode() for i in range(COUNT)}
    for colour in COLOURS
}


class Shapes(DrawnPictures):
    """Disks and bars in two colours."""

    name = "Shapes"
    metadata = replace(
        datasets.get("LetterFonts").metadata,
        folder="Shapes",
        checksums={
            "Shapes/16/pictures.npy": "0413b14569149e3bbb6db0c9139b86aa",
            "Shapes/pictures.csv": "eb0a70b9148e578fe0e6e781c92bb038",
        },
    )
    environments = COLOURS
    test_environments = COLOURS[1:]
    task = Task("multiclass", 2)
    normalization = Normalization((0.5,) * 3, (0.5,) * 3)
    packages = tuple(archives.package("npm", *each) for each in FILES.items())

    def pictures(self, files: Mapping[str, Files]) -> list[Picture]:
        return [
            Picture(
                colour,
                int(path[:2]) % 2,
                path[:2],
                partial(rendered, svg.decode(), self.options.size, f"Shapes: {path} of {colour}"),
            )
            for colour, of_colour in files.items()
            for path, svg in of_colour.items()
        ]


def shapes(data_dir: Path | None = None, **options: Any) -> Shapes:
    return Shapes(Shapes.Options(**options), data_dir)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    for package in Shapes.packages:
        archives.write(package, FILES[package.name], folder)
    return folder


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the pictures."""
    folder = tmp_path_factory.mktemp("data")
    shapes().make(folder, source, 1)
    return folder


def test_the_bytes_are_those_of_every_machine(made: Path) -> None:
    dataset = shapes(made)
    dataset.check()
    assert {p: md5(made / p) for p in dataset.checksums} == dict(Shapes.metadata.checksums)


def test_only_what_is_damaged_is_made_again(made: Path, source: Path, tmp_path: Path) -> None:
    file = made / "Shapes" / "16" / "pictures.npy"
    before = file.stat().st_mtime_ns
    shapes(made).make(made, tmp_path, 1)  # a folder without packages
    assert file.stat().st_mtime_ns == before
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"?")
    with pytest.raises(UserError, match="is damaged"):
        shapes(made).check()
    shapes(made).make(made, source, 1)
    assert file.read_bytes() == content


def test_half_of_the_identities_are_unseen_and_a_fifth_of_each_half_is_out(made: Path) -> None:
    for environment in shapes(made).load(0).values():
        assert environment.x.dtype == torch.uint8
        assert environment.out is not None and environment.unseen is not None
        assert environment.unseen.double().mean() == 0.5
        for half in (environment.unseen, ~environment.unseen):
            assert environment.out[half].double().mean() == 0.2


def test_identities_are_dealt_out_alike_everywhere_and_anew_in_every_trial(made: Path) -> None:
    first, again, other = (shapes(made).load(trial) for trial in (0, 0, 1))
    for one, two in ((first, first), (first, again)):
        for field in ("unseen", "out", "y"):
            values = [getattr(e[c], field) for e, c in zip((one, two), COLOURS, strict=True)]
            assert torch.equal(*values)
    assert not torch.equal(*(torch.as_tensor(e[COLOURS[0]].unseen) for e in (first, other)))


def test_the_ceiling_shows_the_tests_pictures_everywhere(made: Path) -> None:
    plain, ceiling = (shapes(made, as_test=name).load(0) for name in ("", COLOURS[1]))
    for environment in ceiling.values():
        assert torch.equal(environment.x, plain[COLOURS[1]].x)
        assert torch.equal(environment.y, plain[COLOURS[1]].y)
    with pytest.raises(UserError, match="unknown environment 'red'"):
        shapes(made, as_test="red")


@pytest.mark.parametrize(
    ("svg", "problem"),
    [
        ("<svg", "Shapes: 03.svg of #104010 cannot be drawn: "),
        (SVG.format('rect width="0" height="0"', "red"), "Shapes: 03 of #104010 shows nothing"),
    ],
)
def test_nothing_is_left_of_a_set_with_a_picture_that_cannot_be_drawn(
    svg: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {**FILES[COLOURS[0]], "03.svg": svg.encode()}
    broken = archives.package("npm", COLOURS[0], files)
    monkeypatch.setattr(Shapes, "packages", (broken, Shapes.packages[1]))
    archives.write(broken, files, tmp_path)
    archives.write(Shapes.packages[1], FILES[COLOURS[1]], tmp_path)
    with pytest.raises(UserError) as caught:
        shapes().make(tmp_path / "data", tmp_path, 1)
    assert str(caught.value).startswith(problem) and "\n" not in str(caught.value)
    assert not [*(tmp_path / "data").rglob("*.npy")]
    with pytest.raises(UserError, match=r"missing; get it with `python -m oodbench.data make Shap"):
        shapes(tmp_path / "data").load(0)


def test_a_character_is_as_large_as_fits_and_in_the_middle() -> None:
    drawings = outlines(font("AB"), "AB", "it")
    assert drawings is not None
    for width, svg in zip((120, 140), drawings.values(), strict=True):
        ink = rendered(svg, 64, "it")[0] < 128
        columns, rows = ink.any(0).nonzero()[0], ink.any(1).nonzero()[0]
        assert len(rows) == pytest.approx(64 / 1.1, abs=1)
        assert len(columns) == pytest.approx(64 / 1.1 * width / 900, abs=1)
        assert rows.mean() == pytest.approx(31.5, abs=0.6)
        assert columns.mean() == pytest.approx(31.5, abs=0.6)


def test_a_slanted_bar_leans_to_the_right() -> None:
    drawings = outlines(font("A", slant=300), "A", "it")
    assert drawings is not None
    ink = rendered(drawings["A"], 32, "it")[0] < 128
    assert ink[5].nonzero()[0].mean() > ink[26].nonzero()[0].mean() + 3


def test_a_font_that_lacks_a_character_has_none() -> None:
    assert outlines(font("AB"), "ABC", "it") is None
    assert outlines(font("ABC", blank="C"), "ABC", "it") is None
    assert outlines(font("ABC"), "ABC", "it") is not None
