"""Letters in five kinds of fonts: text, monospaced, handwriting, pixel and display fonts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from string import ascii_uppercase
from typing import NamedTuple

from oodbench.data.drawn import DrawnPictures, Picture, outlines
from oodbench.data.packages import Files, Package
from oodbench.datasets import IMAGENET, Metadata, Normalization, register
from oodbench.hparams import hparam
from oodbench.tasks import Task

TEXT, MONO, HAND, PIXEL, DISPLAY = "text", "monospaced", "handwriting", "pixel", "display"
FONTSOURCE: Mapping[str, Mapping[str, str]] = {
    HAND: {
        "caveat": "5a7ce598b0b83bae691b4573cdb97d9cc0acb99d6b574e0bfa03f07beb77e857",
        "dancing-script": "74c95313ed495ae3c8e2786b2f6ce92b57c4d727d587d5141587ae9ea8bd9b2d",
        "pacifico": "f4ee970baa6c94601ba512f6aac145ca789d16d853e826aa6fb796728fec0946",
        "indie-flower": "e2c49b86173e416b6a97d0693c2ded166da2841d2a540453cfd39d181ab27ccb",
        "homemade-apple": "a3e4e8f031eeb147f290863056d8471b328c14ff8d675363a8bf392b10ab4735",
        "reenie-beanie": "5f82f16e0e018c5d1f1ed926f7669097e192625d6ed3c29f2425a50db3ec5e85",
        "rock-salt": "f2117b1b9d31d7c006246d7588709e78677c5d8d9cc0c61c1a3332fbb035474f",
        "cedarville-cursive": "62de1ee77bb59a06527a008960ff5b861837c1e1486e48b65443009f58d57583",
        "gloria-hallelujah": "5794fcc190ae443f7a21e06819ee307c8f01dc5de7ebecf5f58cbd21d7e9ce68",
        "kaushan-script": "37f0e4b9193f139ef7a80ba3448cd017aa8e70858632b97fa3bb8facbc941f10",
        "marck-script": "3e34d8de4b372a49286bd39e1b17a04a5abb002170c7e895b1e27e086a6bd8c1",
        "great-vibes": "3cf6aec69f57aa7faf8be0517b89811da11a4da959558800c20480e153f16ad8",
    },
    MONO: {
        "anonymous-pro": "c2c424b7b91b9f56ffbb028cacdea9b7856c8d035568dbbadb3744f2e90f372b",
        "courier-prime": "9b425cf326b09cb32b7e65bfc64762caef2cfc1f88016449edd5dc27d4b2d9bc",
        "dm-mono": "0dc297ff7ceff90f5243f7b7bf6b45fa1ff7a9a10b8d020175ea9275faa6a5cc",
        "fira-mono": "b175a2d894c3bec5eee95d6f8cdb6fd0202ef8286ae3994ce222a78857c4b7af",
        "ibm-plex-mono": "2b5fe6a5b03e9ee727634b9da65ef3656cc6ad2b16ea6b429219290a639351fb",
        "inconsolata": "437603522b96a497756c83d3eb195195456a25f9a4a09f819c0a7a1d0aa8b81b",
        "jetbrains-mono": "1ab3ad8e70e5ea20196b1a566a4ddcddfa5bfc8de653eb74ae39d6ddae8935e3",
        "overpass-mono": "86da6c9775a2fedaab5791190ea076e72ad35812bccda6c6f9d54fa0c3f0f779",
        "pt-mono": "31809f070201754ed36078785110fede4582a9ac3260bd367aa2c912473b9db7",
        "roboto-mono": "d8d04a69cb869ad640d67b36c5563cd1281ec47ac3af014474274db4752a5e7c",
        "azeret-mono": "e309769760828540266e15380521485a05427e042199bc041781a80fc101dbe2",
        "space-mono": "829fb70903aa55537415809f62136edd912260c4ad60049782809b219082f2de",
    },
    PIXEL: {
        "press-start-2p": "0f752abff8c5e35dc4a385ef9d3c34ac7ba233603eda6609bfa87b5cd8b55855",
        "vt323": "0d09611008c644e855950d81dc280b115b169b3da0f67c7d2e04884e4081ce75",
        "silkscreen": "87527faf768618f3d68c46f1ad9320c81fb70036f1a24e7df560c35346f4e5a5",
        "pixelify-sans": "c99e46293fadfcd37a96bf8dff80b1d666c330b9c40db87909c44dfe583e9588",
        "jersey-10": "79e8a5a8ed824b774998f7189b8b84b44711b2d57d7df7be26b1886b0d7f2763",
        "micro-5": "131e7294d3c0171890b813479db98a0135468388607dabf6f66b8f1759492613",
        "tiny5": "ee003215ea1d89146f06ca7b3fa2580403d64d6070d313b682c64a93171967f1",
    },
}
"""The digests of the packages of npm `@fontsource/NAME`, by kind: one family each, regular and bold."""
APACHE = "homemade-apple", "rock-salt"
"""The families under the Apache licence; the others are under the SIL Open Font License."""
MATPLOTLIB = Package(
    "python",
    "matplotlib",
    "3.8 or later",
    r"mpl-data/fonts/ttf/((DejaVu(Sans|Serif|SansMono)|STIXGeneral)(-?(Bold|Oblique|Italic|BoldOblique"
    r"|BoldItalic|BolIta))?|cm(r|b|ss|tt)10)\.ttf",
    "5a418272314262466d4f9304e345c68b8104fd4bfeb508a89c541ef2f424bd6e",
    "Bitstream Vera, SIL OFL 1.1 and Bakoma fonts licence",
    "Bitstream, the STIX fonts' authors, Basil K. Malyshev",
)
AENIGMA = Package(
    "debian",
    "fonts-aenigma",
    "0.0.20080511+dfsg-4",
    r"usr/share/fonts/truetype/aenigma/.*\.ttf",
    "fa31735897c492b7af8c93ca5eb1113bd975e57ec62ee412aedb994c9b7f3b9d",
    "to be used, changed and distributed with attribution",
    "Brian Kent (AEnigma)",
    "usr/share/doc/fonts-aenigma/copyright",
)
DUSTIN = Package(
    "debian",
    "fonts-dustin",
    "20030517-14",
    r"usr/share/fonts/truetype/dustin/.*\.ttf",
    "e6fe871a7078dcba8a7ca13e906c353e17d9019ffa672fb79e851be6c48ef7b0",
    "GPL 2 or later",
    "Dustin Norlander",
    "usr/share/doc/fonts-dustin/copyright",
)
PRETRAINED = 224
"""The side of the pictures for pretrained networks."""
EVERY = 3
"""Every third face of AEnigma, by name, is taken, as many share a family."""
NO_LETTERS = (
    "18holes bin01st binaryt binaryx binx01s bitbttf bloktilt candystr fauxsnow graviseg graze "
    "hdmaker inkswipe lineding mobilize qbicle1 qbicle2 qbicle3 qbicle4 snailets symmetry "
    "tearful weaver wincing"
).split()
"""Faces of AEnigma that show no letters, or hide them in other drawings."""


class Face(NamedTuple):
    """A face of a font, with its drawings of characters as SVG."""

    kind: str
    name: str
    drawings: Mapping[str, str]


def faces(files: Mapping[str, Files], characters: str, who: str) -> list[Face]:
    """The faces that have all characters; prints which faces lack one. Raises UserError for bad fonts."""
    from oodbench.terminal import terminal  # rich draws random numbers as it is imported

    chosen: list[tuple[str, str, bytes]] = []
    for package, contents in files.items():
        fonts = {PurePath(p).stem: c for p, c in contents.items() if p.endswith((".ttf", ".woff"))}
        if package == AENIGMA.name:
            taken = [name for name in sorted(fonts) if name not in NO_LETTERS][::EVERY]
            fonts = {name: fonts[name] for name in taken}
        chosen += [(_kind(package, name), name, content) for name, content in fonts.items()]
    whole, lacking = [], []
    for kind, name, content in chosen:
        drawings = outlines(content, characters, f"{who}: {name}")
        if drawings is None:
            lacking.append(name)
        else:
            whole.append(Face(kind, name, drawings))
    if lacking:
        terminal().say(f"left out, as they lack one of {characters}: {', '.join(lacking)}")
    return whole


def _kind(package: str, face: str) -> str:
    family = package.removeprefix("@fontsource/")
    for kind, families in FONTSOURCE.items():
        if family in families:
            return kind
    if package == MATPLOTLIB.name:
        return MONO if face.startswith(("DejaVuSansMono", "cmtt")) else TEXT
    return TEXT if face.lower().startswith("dustismo") else DISPLAY


def fontsource(kinds: Sequence[str] = tuple(FONTSOURCE)) -> tuple[Package, ...]:
    """The packages of some kinds of Fontsource's fonts."""
    return tuple(
        Package(
            "npm",
            f"@fontsource/{name}",
            "5.3.0",
            r"files/.*-latin-(400|700)-normal\.woff",
            sha256,
            "Apache 2.0" if name in APACHE else "SIL OFL 1.1",
            "the authors that its licence names",
            "LICENSE",
        )
        for kind in kinds
        for name, sha256 in FONTSOURCE[kind].items()
    )


@register(
    "LetterFonts",
    Metadata(
        paper="none",
        licence="free fonts' own: SIL OFL, Apache 2.0, Bitstream Vera, GPL, AEnigma's",
        family="pictures",
        shift="the kind of font",
        network="ConvNet",
        steps=400,
        folder="LetterFonts",
        checksums={
            "LetterFonts/16/pictures.npy": "33719e2fdf3821ca194ce3a61bf757e1",
            "LetterFonts/224/pictures.npy": "ea743ade53c98eaa1978d5d31a36f4a8",
            "LetterFonts/pictures.csv": "628bf164418ae7979e1a98941e0733c1",
        },
        hparams={"batch_size": 16},
    ),
)
class LetterFonts(DrawnPictures):
    """Capital letters in a kind of font without training data.

    Every environment is a kind of font, with the 26 letters of each of its faces, black on white and as
    large as fits: 22 faces of text, 27 monospaced, 14 of handwriting, 9 of pixels and 159 display faces. A
    trial keeps a quarter of the faces of a kind for its test, and a fifth of the others for the `out`
    splits. The faces are from npm, Debian and matplotlib; `python -m oodbench.data make LetterFonts`
    fetches and draws them.

    Accuracy on display fonts in the sweep `letter-fonts`: ERM 35.1 ± 3.0 %,
    ceiling 55.4 ± 0.6 %, constant 3.8 %.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(DrawnPictures.Options):
        """The pictures."""

        size: int = hparam(16, options=(16, 224))
        """The side of the pictures in pixels; those of 224 have three equal channels with ImageNet's
        moments, as pretrained networks take them."""

    packages = (MATPLOTLIB, *fontsource(), DUSTIN, AENIGMA)
    environments = (TEXT, MONO, HAND, PIXEL, DISPLAY)
    test_environments = (DISPLAY,)
    task = Task("multiclass", len(ascii_uppercase))
    classes = tuple(ascii_uppercase)
    channels = 1
    normalization = Normalization((0.5,), (0.5,))
    one_unseen_in = 4

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        if options.size == PRETRAINED:
            self.input_shape = (3, options.size, options.size)
            self.normalization = IMAGENET

    def pictures(self, files: Mapping[str, Files]) -> list[Picture]:
        """Every letter in every face; raises UserError for a font that cannot be read."""
        return [
            Picture(face.kind, target, face.name, self.drawing(svg, f"{letter} of {face.name}"))
            for face in faces(files, ascii_uppercase, self.name)
            for target, (letter, svg) in enumerate(face.drawings.items())
        ]
