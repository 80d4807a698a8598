"""Small copies of all sets of WILDS, as they lie on disk, and how tests read them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oodbench.datasets import Dataset, make
from tests.helpers.data import wilds_images as images
from tests.helpers.data.transformers_copies import small_codegpt
from tests.helpers.data.wilds_others import amazon, civilcomments, molpcba, py150, sqf, yelp

COPIES: dict[str, Callable[[Path], None]] = {
    "Camelyon17": images.camelyon17,
    "iWildCam": images.iwildcam,
    "FMoW": images.fmow,
    "RxRx1": images.rxrx1,
    "PovertyMap": images.poverty,
    "CivilComments": civilcomments,
    "Amazon": amazon,
    "Yelp": yelp,
    "CelebA": images.celeba,
    "Waterbirds": images.waterbirds,
    "WILDSDomainNet": images.domainnet,
    "BDD100K": images.bdd100k,
    "SQF": sqf,
    "MolPCBA": molpcba,
    "GlobalWheat": images.globalwheat,
    "Py150": py150,
}

SMALL: dict[str, dict[str, object]] = {
    name: {"from_scratch": True, "size": size}
    for name, size in (
        *(("CivilComments", 12), ("Amazon", 12), ("Yelp", 12)),
        *(("GlobalWheat", 32), ("Py150", 16)),
    )
}
"""Options with which the copies can be read."""


def write(root: Path) -> None:
    """Write a copy of every set, and of CodeGPT under its name."""
    for copy in COPIES.values():
        copy(root)
    small_codegpt(root)


def opened(name: str, root: Path, **options: object) -> Any:
    return make(name, {**SMALL.get(name, {}), **options}, root)


def right(dataset: Any, y: Tensor) -> Tensor:
    """Outputs that are right, in the shape of the task's."""
    task = dataset.task
    if task.kind == "boxes":
        return torch.cat([y, torch.full((*y.shape[:2], 1), 0.9)], 2)
    if task.kind in ("multiclass", "tokens"):
        sure = torch.nn.functional.one_hot(y.nan_to_num().long(), task.num_outputs) * 9.0
        return sure + 0.1 * torch.rand(sure.shape)  # no two scores are equal
    return (2 * y - 1).nan_to_num() if task.kind == "multilabel" else y


def logits(dataset: Dataset, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, dataset.task.num_outputs, generator=generator)


def rows(dataset: Any, environment: str) -> tuple[Tensor, Any, Any]:
    """The rows of an environment, its targets and its metadata by field."""
    index = dataset.places[environment]
    table = dataset.data.metadata_array[index].numpy()
    fields = dict(zip(dataset.data.metadata_fields, table.T, strict=True))
    return index, dataset.load(0)[environment].y.numpy(), fields
