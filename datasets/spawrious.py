"""Spawrious: breeds of dogs in front of backgrounds that agree with the breed in training only."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from oodbench.data.pictures.folders import Listing, image_metadata
from oodbench.data.pictures.pixels import image_files
from oodbench.data.pictures.published import Published
from oodbench.datasets import register
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.tasks import Task

BREEDS = ("bulldog", "corgi", "dachshund", "labrador")
BACKGROUNDS = ("beach", "desert", "dirt", "jungle", "mountain", "snow")
TOTAL = 3168
"""The number of images of a breed in front of a background in one of the two folders."""
SHARES = (0.97, 0.87)
"""The share of a breed's images in front of its background in each training environment (`O2O`)."""
GROUPS = {
    "O2O_easy": ("desert jungle dirt snow", "dirt snow desert jungle", "beach"),
    "O2O_medium": ("mountain beach dirt jungle", "jungle dirt beach snow", "desert"),
    "O2O_hard": ("jungle mountain snow desert", "mountain snow desert jungle", "beach"),
    "M2M_easy": ("desert mountain dirt jungle", "dirt jungle mountain desert", ""),
    "M2M_medium": ("beach snow mountain desert", "desert mountain beach snow", ""),
    "M2M_hard": ("dirt jungle snow beach", "snow beach dirt jungle", ""),
}
"""The backgrounds in training, in the test, and of the other training images."""
ORDER = ("bulldog", "dachshund", "labrador", "corgi")
"""The breeds to which the backgrounds belong, in turn."""
SWAPPED = (1, 0, 3, 2)
"""By breed, the index of the breed whose background it has in the second training environment (`M2M`)."""


@register(
    "Spawrious",
    image_metadata(
        paper="arXiv:2303.05470",
        licence="CC BY 4.0 (not checked)",
        shift="the background that goes with a breed",
        folder="spawrious224",
    ),
)
class Spawrious(Published):
    """Four breeds of dogs in front of six backgrounds, in generated pictures; six variants.

    `O2O`: in training 97 % (first environment) or 87 % (second) of a breed have one background and the
    rest one that all share; in the test each breed has another's. `M2M`: pairs of breeds share two
    backgrounds, swapped between the environments; in the test the pairs exchange them. The background
    is the attribute. This is the authors' code in DomainBed, except that a folder's files are taken by
    name, not in the order of the disk. Layout: spawrious224/{0,1}/BACKGROUND/BREED/.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Published.Options):
        """The variant."""

        variant: str = hparam("O2O_easy", options=tuple(GROUPS))

    options: Options
    source = "https://github.com/aengusl/spawrious"
    environments = ("Test", "SC_group_1", "SC_group_2")
    test_environments = ("Test",)
    task = Task("multiclass", len(BREEDS))
    classes = BREEDS
    attributes = BACKGROUNDS

    @cached_property
    def listing(self) -> Listing:
        """All files of the variant; raises UserError for a folder with too few files."""
        training, test, filler = GROUPS[self.options.variant]
        seen, unseen = training.split(), test.split()
        listing: Listing = {name: [] for name in self.environments}
        for half, environment in enumerate(self.environments[1:]):
            folder = half if filler else 0
            for k, breed in enumerate(ORDER):
                pair = k if filler or half == 0 else SWAPPED[k]
                count = int(SHARES[half] * TOTAL) if filler else TOTAL
                listing[environment] += self._files(folder, seen[pair], breed, count)
                listing["Test"] += self._files(folder, unseen[pair], breed, None)
                if filler:
                    listing[environment] += self._files(folder, filler, breed, TOTAL - count)
        return listing

    def attribute_numbers(self, files: Sequence[Path]) -> Tensor:
        """The backgrounds (N,), by the folders around those of the breeds."""
        return torch.tensor([BACKGROUNDS.index(file.parents[1].name) for file in files])

    def _files(
        self, folder: int, background: str, breed: str, count: int | None
    ) -> list[tuple[Path, int]]:
        at = self.root / str(folder) / background / breed
        files = image_files(at)[:count]
        if len(files) < (count or 1):
            raise UserError(f"Spawrious: {at} holds {len(files)} images of {count or TOTAL}")
        return [(file, BREEDS.index(breed)) for file in files]
