"""The same emoji in nine sets of drawings: is it an animal, a face, a symbol?"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from oodbench.data.drawn import DrawnPictures, Picture
from oodbench.data.packages import Files, Package
from oodbench.data.pictures.augment import domainbed
from oodbench.datasets import IMAGENET, Environment, Metadata, register
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.tasks import Task

GROUPS = (
    "Smileys & Emotion",
    "People & Body",
    "Animals & Nature",
    "Food & Drink",
    "Travel & Places",
    "Activities",
    "Objects",
    "Symbols",
)
"""Unicode's groups, except flags and components such as skin tones."""
FILES = r"(icons|chars|metadata)\.json"


MIT, APACHE, CC_BY = "MIT", "Apache 2.0", "CC BY 4.0"
ABOUT = {
    "twemoji": ("twemoji", "1.2.5", CC_BY, "Twitter"),
    "noto": ("noto", "1.2.9", APACHE, "Google"),
    "noto-v1": ("noto-v1", "1.2.5", APACHE, "Google"),
    "emojione": ("emojione", "1.2.3", CC_BY, "Emoji One"),
    "emojione-mono": ("emojione-monotone", "1.2.1", CC_BY, "Emoji One"),
    "fluent": ("fluent-emoji", "1.2.7", MIT, "Microsoft"),
    "fluent-flat": ("fluent-emoji-flat", "1.2.6", MIT, "Microsoft"),
    "fluent-mono": ("fluent-emoji-high-contrast", "1.2.6", MIT, "Microsoft"),
    "openmoji": ("openmoji", "1.2.29", "CC BY-SA 4.0", "OpenMoji"),
}
"""The package of npm `@iconify-json/NAME` of each set of emoji, its version, licence and author."""
SHA256 = {
    "twemoji": "5c57469f4c2c2243fa92ffd623ccc2142187e964e1e061f6c41f886b25a6b361",
    "noto": "067f05289aa4cf451228cb895ee489cb4f23aad917ee38e2d8129e617329f623",
    "noto-v1": "b8de1ed774fabd89951de9d7800834e5ae9271432e557a163943406f183c9258",
    "emojione": "f934010461bee12ef23872eb76647816cdbe6fb580463facd7708d8fe2441661",
    "emojione-mono": "d0753375ad8f27daf1b34b2d51d745429622b224ceb4b20db7cbaff0365028ae",
    "fluent": "c1306f64bce2627e08401b2733c3b5a4006cbb5c6e47fc916f89ea9f760684f2",
    "fluent-flat": "719ea2b821f136a2db81fa214df0fcbb0ba4e6e78ce0138bf3cad38c6caafc15",
    "fluent-mono": "c8cb5002fbcaf80490dad7903c488ead38e2f7bf049c20d05c8fbeed736c14bd",
    "openmoji": "23b6324f45517e5f2635c28c76bc0ac190aa6030ef283aa31640df8f7d75081b",
}
SETS = {
    name: Package("npm", f"@iconify-json/{package}", version, FILES, SHA256[name], licence, author)
    for name, (package, version, licence, author) in ABOUT.items()
}
"""The packages. Sets of one author look alike: noto-v1 is Google's older set of blobs,
emojione-mono is emojione in black and white, fluent-flat and fluent-mono are fluent without shades and
without colours. twemoji is flat, openmoji outlined."""
NAMING = "noto"
"""The set whose metadata give the groups."""


@register(
    "EmojiStyles",
    Metadata(
        paper="none",
        licence="Apache 2.0, CC BY 4.0, CC BY-SA 4.0 (openmoji), MIT: see `SETS`",
        family="pictures",
        shift="who draws",
        network="ConvNet",
        steps=400,
        folder="EmojiStyles",
        checksums={
            "EmojiStyles/pictures.csv": "cbba1bfb197b264d51418c09a0fd530e",
            "EmojiStyles/16/pictures.npy": "98801e74488d9fb5c40d1ce6f97d824a",
            "EmojiStyles/32/pictures.npy": "5b6f43c2cc4bf2c44545a962c8572be2",
            "EmojiStyles/64/pictures.npy": "43c09276350f043fb09dc27b8b8105e1",
            "EmojiStyles/224/pictures.npy": "0355fb12227e40a358653a492d5bf2ee",
        },
        hparams={"batch_size": 8},
    ),
)
class EmojiStyles(DrawnPictures):
    """The Unicode group of an emoji, drawn in a style that no training environment has.

    A set is an environment, a group a class. All nine sets show the same code points, without skin tones.
    In every set a trial draws one half for training and the other for testing, and a fifth of each for the
    `out` splits, so that the identity of a drawing is never a cue. The sets are packages of npm, which
    `python -m oodbench.data make EmojiStyles` fetches and draws on white.

    Accuracy on openmoji in the sweep `emoji-styles`: ERM 21.7 ± 1.8 %,
    ceiling 45.4 ± 1.4 %, constant 18.1 %.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(DrawnPictures.Options):
        """The pictures."""

        shared_identities: bool = hparam(False)
        """Whether code points that are trained on are also tested on."""
        augment: bool = hparam(False)
        """Whether pictures are augmented in training; see `oodbench.data.pictures.augment.domainbed`."""

    packages = tuple(SETS.values())
    environments = tuple(SETS)
    test_environments = ("openmoji",)
    task = Task("multiclass", len(GROUPS))
    classes = GROUPS
    normalization = IMAGENET

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Map bytes (N, 3, H, W) to standardised floats, augmented in training if `augment` is set."""
        if generator is not None and self.options.augment:
            x = domainbed(x.float().div_(255), generator).mul_(255)
        return super().transform(x, None)

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial; raises UserError if a file is missing or damaged."""
        environments = super().load(trial)
        if self.options.shared_identities:
            return {name: replace(e, unseen=None) for name, e in environments.items()}
        return environments

    def pictures(self, files: Mapping[str, Files]) -> list[Picture]:
        """Every set's drawings of the code points that all sets have; raises UserError for damage."""
        sets = {name: _Set(name, files[package.name]) for name, package in SETS.items()}
        group = {icon: each for each, icons in sets[NAMING].groups.items() for icon in icons}
        listed = [s for s in sets.values() if s.by_point]
        points = set.intersection(*(set(s.by_point) for s in listed))
        single = (point for point in points if "-" not in point)
        pictures: list[Picture] = []
        used: set[tuple[str, str]] = set()
        for point in sorted(single, key=partial(int, base=16)):
            target = group.get(sets[NAMING].by_point[point])
            names = [name for s in listed for name in s.names(s.by_point[point])]
            icons = {name: s.icon(point, names) for name, s in sets.items()}
            bodies = {(name, sets[name].drawing(icon)) for name, icon in icons.items() if icon}
            # a drawing of two code points could be both trained and tested on
            if target not in GROUPS or None in icons.values() or bodies & used:
                continue
            used |= bodies
            pictures += [
                Picture(name, GROUPS.index(target), point, self.drawing(body, f"{point} of {name}"))
                for name, body in sorted(bodies)
            ]
        return pictures


class _Set:
    """The icons of a package, in Iconify's format."""

    def __init__(self, name: str, files: Files) -> None:
        try:
            icons = json.loads(files["icons.json"])
            self.by_point: dict[str, str] = json.loads(files["chars.json"])
            """The icon of each code point (or several, joined by -), in hexadecimal; empty in old sets."""
            metadata = json.loads(files["metadata.json"])
            self.groups: dict[str, list[str]] = metadata.get("categories", {})
            self._icons, self._aliases = icons["icons"], icons.get("aliases", {})
            self._side = {"width": icons["width"], "height": icons["height"]}
        except (KeyError, ValueError) as error:
            raise UserError(f"EmojiStyles: the package of {name} has no icons: {error}") from error
        self._by_name = {_plain(icon): icon for icon in [*self._aliases, *self._icons]}

    def names(self, icon: str) -> list[str]:
        """The icon's name, then its aliases."""
        return [icon, *(name for name, alias in self._aliases.items() if alias["parent"] == icon)]

    def icon(self, point: str, names: Sequence[str]) -> str | None:
        """The icon of a code point; in an old set, which names none, the first with one of `names`."""
        if self.by_point:
            return self.by_point.get(point)
        return next((self._by_name[n] for n in map(_plain, names) if n in self._by_name), None)

    def drawing(self, icon: str) -> str:
        while icon in self._aliases:
            icon = self._aliases[icon]["parent"]
        body = {"left": 0, "top": 0, **self._side, **self._icons[icon]}
        box = " ".join(str(body[key]) for key in ("left", "top", "width", "height"))
        space = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        return f'<svg {space} viewBox="{box}">{body["body"]}</svg>'


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name)
