"""The datasets of WILDS, through the package `wilds` (arXiv:2012.07421), with its splits and metrics.

How the package's notions become ours:

- The training environments are the groups of its split `train` by its own grouper, under the names
  that it gives them (`hospital:0`). They are never scored, and have no `out` split.
- Its other splits (`val`, `test`, `id_val`, `id_test`) are environments of their own that are never
  trained on. `test` is the test environment, `val` the validation environment; all are scored.
- Its official metrics of a split are recorded under their official names, in addition to ours. The one
  that its paper reports is the dataset's metric: selection `val_env` takes it of all of `val`,
  as the package's leaderboard does. Name `id_val` as the validation environment to select in
  distribution. There is no `train_val`.
- The attribute is the metadata field that defines its worst group: the region (FMoW), town or land
  (PovertyMap), `black` (CivilComments, as its group methods), sex (CelebA), the background (Waterbirds).
- `group_by` takes other metadata fields, or `all` for one environment; how many groups a step
  stacks is the hyperparameter `environments_per_step`, drawn uniformly as by its group loader.

Defaults (network, input size, optimizer, group sampling) are those of the package's examples
(configs/datasets.py and configs/model.py of its repository), and `steps` their epochs. Left out:
its augmentation except RxRx1's, warm-up, gradient clipping for text.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from torch.nn.utils.rnn import pad_sequence

from oodbench.data import encodings as inputs
from oodbench.datasets import (
    IMAGENET,
    Environment,
    Metadata,
    Normalization,
    SampledDataset,
    register,
)
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.tasks import Task

from . import wilds_package as official
from .wilds_table import SETS, Set

FETCHED = {"DistilBERT": ("DistilBertTokenizerFast", "DistilBertModel"), "CodeGPT": ("GPT2Model",)}
"""The weights and tokenizers that networks take from the package transformers, by its classes."""


class WILDS(SampledDataset):
    """A dataset of the package; see the module."""

    row: ClassVar[Set]

    def __init_subclass__(cls) -> None:
        cls.row = SETS[cls.__name__]

    @dataclass(frozen=True, kw_only=True)
    class Options(SampledDataset.Options):
        """The set that is read, and its default network."""

        split_scheme: str = hparam("official")
        """The package's split scheme."""
        group_by: tuple[str, ...] = hparam(())
        """Metadata fields whose groups are the training environments; none: the package's."""
        from_scratch: bool = hparam(False)
        """Whether the network has no pretrained weights; texts are then hashed words for a small one."""
        size: int = hparam(0, low=0)
        """The size of an input: pixels of a side, words or atoms; 0: the package's size."""

    options: Options
    test_environments = ("test",)
    validation_environments = ("val",)
    higher_is_better = True
    """Whether higher is better: true for every official metric that a paper reports."""

    def __init__(self, options: Options, data_dir: Path | None) -> None:
        super().__init__(options, data_dir)
        row = self.row
        size = options.size or row.size
        shapes = {
            "image": (3, size, size),
            "bands": (8, size, size),
            "molecule": (size, inputs.ROW),
        }
        self.input_shape = shapes.get(row.modality, (size,))

    @cached_property
    def task(self) -> Task:  # type: ignore[override]
        """The task that the table names; the vocabulary of code is that of the package's tokenizer."""
        if self.row.kind == "tokens":
            return Task("tokens", int(self.data.n_classes), *self.input_shape)
        return Task(self.row.kind, self.row.outputs)

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names that the table has, or those in the package's own list."""
        names = self.row.classes
        if isinstance(names, tuple):
            return names
        cls = type(self.data)
        owner = cls if hasattr(cls, names) else sys.modules[cls.__module__]
        return tuple(getattr(owner, names))

    @property
    def metric(self) -> str:
        """The official metric that the paper reports."""
        return self.row.metric

    @property
    def normalization(self) -> Normalization | None:
        """ImageNet's for photographs; RxRx1's images are standardised one by one."""
        photographs = self.row.modality == "image" and self.row.package != "rxrx1"
        return IMAGENET if photographs else None

    @property
    def network(self) -> str:
        """The network of the package's example; a small one for texts from scratch."""
        small = self.row.modality == "text" and self.options.from_scratch
        return "TextCNN" if small else self.row.network

    @property
    def network_hparams(self) -> Mapping[str, Any]:
        """Hyperparameters for pretrained or random weights; nothing is frozen or dropped out."""
        weights = self.row.weights
        if weights == "-" or self.network == "TextCNN":
            return {}
        hparams = {"weights": "none" if self.options.from_scratch else weights}
        if self.network.startswith(("ResNet", "DenseNet")):
            return hparams | {"freeze_batch_norm": False, "dropout": 0.0}
        return hparams

    @cached_property
    def data(self) -> Any:
        """The package's object; raises UserError for missing or damaged files, or another version's."""
        if self.data_dir is None:
            self.file("")  # raises MissingError
        assert self.data_dir is not None
        row, root = self.row, self.data_dir
        release = () if row.by_hand else (f"RELEASE_v{row.version}.txt",)
        try:
            folder = root / self.metadata.folder
            official.check_folder(folder, row.package, row.version, (*row.files, *release))
        except UserError as error:
            source = f"get it with `{self.command(root)}`"
            if row.by_hand:
                source = f"it is from {row.by_hand}"
            raise UserError(f"{self.name}: {error}; {source}") from error
        try:
            return official.read(row.package, self._version(), root, self._settings())
        except UserError as error:
            raise error.at(self.name) from error

    def _version(self) -> str | None:
        """The version that the package's class takes; None if another package keeps the data."""
        return None if self.row.folder else self.row.version

    def _settings(self) -> tuple[tuple[str, Any], ...]:
        settings = {"split_scheme": self.options.split_scheme} | dict(self.row.settings)
        return tuple(settings.items())

    @cached_property
    def places(self) -> dict[str, Tensor]:
        """Indices (n,) of every environment's examples among all of the package's."""
        codes = torch.as_tensor(np.asarray(self.data.split_array, dtype=np.int64))
        every = {n: (codes == c).nonzero().squeeze(1) for n, c in self.data.split_dict.items()}
        splits = {name: index for name, index in every.items() if len(index)}
        fields = self.options.group_by or self.row.group_by
        try:
            groups = official.groups(
                self.data, () if fields == ("all",) else fields, splits.pop("train")
            )
        except UserError as error:
            raise UserError(f"the option `group_by` of {self.name}: {error}") from error
        return groups | splits

    @property
    def environments(self) -> tuple[str, ...]:  # type: ignore[override]
        """The groups of `train`, then the other splits; raises UserError without the data."""
        return tuple(self.places)

    @property
    def evaluation_environments(self) -> tuple[str, ...]:
        """The splits other than `train`."""
        return tuple(name for name in self.data.split_dict if name in self.places)

    @property
    def attributes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The values of the field that the table names, if any; raises UserError without the data."""
        if not (field := self.row.attribute):
            return ()
        names = (self.data.metadata_map or {}).get(field, (f"not {field}", field))
        return tuple(str(name).strip() for name in names)

    def load(self, trial: int) -> dict[str, Environment]:
        """All environments, the same in every trial; inputs stay on disk."""
        prepare, y, field = self._prepare(), self._targets(), self.row.attribute
        attributes = None
        if field:
            attributes = self.data.metadata_array[:, self.data.metadata_fields.index(field)].long()
        return {
            name: Environment(
                official.prepared(self.data, index, prepare, self.input_shape, self.name),
                y[index],
                attributes=None if attributes is None else attributes[index],
            )
            for name, index in self.places.items()
        }

    def download(self, data_dir: Path) -> None:
        """Fetch the set with the package, and for texts and code weights with transformers."""
        row = self.row
        if row.by_hand:
            raise UserError(f"{self.name} has to be fetched by hand: it is from {row.by_hand}")
        try:
            settings = self._settings()
            official.read(row.package, self._version(), data_dir, settings, download=True)
            if not self.options.from_scratch:
                for kind in FETCHED.get(row.network, ()):
                    inputs.pretrained(kind, row.weights, download=True)
        except UserError as error:
            raise error.at(self.name) from error

    def split_metrics(self, environment: str, index: Tensor, logits: Tensor) -> dict[str, float]:
        """The package's own evaluation of the examples at `index` of an environment."""
        row, places = self.row, self.places[environment][index]
        if row.kind == "boxes":
            logits = torch.cat([logits[..., :4] / self._zoom, logits[..., 4:]], -1)
        return official.evaluate(self.data, places, logits, row.prediction, row.metric)

    @property
    def _zoom(self) -> float:
        """The factor from pixels of the package's images to pixels of ours."""
        return float(self.input_shape[-1] / self.data.original_resolution[0])

    def _targets(self) -> Tensor:
        """The package's targets (n, ...); boxes are in pixels of our images and padded with NaN."""
        y = self.data.y_array
        if self.row.kind != "boxes":
            y = torch.as_tensor(y)
            return y.float() if y.is_floating_point() else y
        boxes = [torch.as_tensor(one["boxes"], dtype=torch.float) for one in y]
        return pad_sequence(boxes, batch_first=True, padding_value=torch.nan) * self._zoom

    def _prepare(self) -> Callable[[Any], Tensor]:
        row, size = self.row, self.options.size or self.row.size
        if row.modality == "image":
            shape = self.data.original_resolution or (1, 1)
            is_square = min(shape) == max(shape)
            return partial(inputs.image, size=size, margin=row.margin, crop=not is_square)
        if row.modality == "text":
            if self.options.from_scratch:
                return partial(inputs.hashed_words, length=size)
            return inputs.word_pieces(size)
        if row.modality == "molecule":
            return partial(inputs.molecule, size=size)
        if row.modality == "bands":  # of any number of channels
            return partial(adaptive_avg_pool2d, output_size=size)
        return lambda x: x

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Map bytes to floats, standardised by ImageNet's channels; RxRx1 by each image's own.

        In training, RxRx1's images are rotated by multiples of 90 degrees and mirrored.
        """
        if self.row.modality != "image":
            return x
        x = x.float() / 255
        if self.row.package != "rxrx1":
            mean, std = IMAGENET.on(x.device)
            return (x - mean) / std
        if generator is not None:
            turns = torch.randint(4, (len(x),), generator=generator).tolist()
            flips = torch.randint(2, (len(x),), generator=generator).tolist()
            turned = [torch.rot90(i, k, (1, 2)) for i, k in zip(x, turns, strict=True)]
            x = torch.stack([i.flip(2) if f else i for i, f in zip(turned, flips, strict=True)])
        std, mean = torch.std_mean(x, (2, 3), keepdim=True)
        return (x - mean) / torch.where(std == 0, 1.0, std)


def known(name: str) -> dict[str, Any]:
    """The metadata of a set, as keywords from the tables."""
    row = SETS[name]
    hparams = {k: getattr(row, k) for k in ("optimizer", "lr", "weight_decay", "lr_schedule")}
    return {
        "licence": row.licence,
        "family": row.family,
        "shift": row.shift,
        "network": row.network,
        "steps": row.epochs * row.train // row.batch,
        "folder": row.folder or f"{row.package}_v{row.version}",
        "hparams": hparams | {"environments_per_step": row.groups, "batch_size": row.each},
    }


@register("Camelyon17", Metadata(paper="arXiv:2012.07421", **known("Camelyon17")))
class Camelyon17(WILDS):
    """Tumours in patches of lymph nodes, in hospitals without training data."""


@register("iWildCam", Metadata(paper="arXiv:2012.07421", **known("iWildCam")))
class iWildCam(WILDS):
    """Animals seen by camera traps, at locations without training data."""


@register("FMoW", Metadata(paper="arXiv:2012.07421", **known("FMoW")))
class FMoW(WILDS):
    """Land use in satellite images of later years; by the worst region."""


@register("RxRx1", Metadata(paper="arXiv:2012.07421", **known("RxRx1")))
class RxRx1(WILDS):
    """Which RNA was silenced in cells, in experiments without training data."""


@register("PovertyMap", Metadata(paper="arXiv:2012.07421", **known("PovertyMap")))
class PovertyMap(WILDS):
    """Wealth of villages in satellite images of other countries; by the worse of urban and rural areas."""


@register("CivilComments", Metadata(paper="arXiv:2012.07421", **known("CivilComments")))
class CivilComments(WILDS):
    """Toxic comments; by the worst of the groups that they mention."""


@register("Amazon", Metadata(paper="arXiv:2012.07421", **known("Amazon")))
class Amazon(WILDS):
    """Stars of reviews by users without training data; by the 10th percentile of users."""


@register("Yelp", Metadata(paper="arXiv:2012.07421", **known("Yelp")))
class Yelp(WILDS):
    """Stars of reviews in later years."""


@register("Py150", Metadata(paper="arXiv:2012.07421", **known("Py150")))
class Py150(WILDS):
    """The next token of Python code, in repositories without training data; by classes and methods."""


@register("MolPCBA", Metadata(paper="arXiv:2012.07421", **known("MolPCBA")))
class MolPCBA(WILDS):
    """In which of 128 assays molecules are active, with scaffolds without training data."""


@register("GlobalWheat", Metadata(paper="arXiv:2012.07421", **known("GlobalWheat")))
class GlobalWheat(WILDS):
    """Boxes around heads of wheat, in sessions without training data."""


@register("CelebA", Metadata(paper="arXiv:2012.07421", **known("CelebA")))
class CelebA(WILDS):
    """Blond hair on portraits; by the worst of the groups of sex and hair."""


@register("Waterbirds", Metadata(paper="arXiv:2012.07421", **known("Waterbirds")))
class Waterbirds(WILDS):
    """Land birds and water birds in front of land or water; by the worst of the four groups."""


@register("WILDSDomainNet", Metadata(paper="arXiv:2012.07421", **known("WILDSDomainNet")))
class WILDSDomainNet(WILDS):
    """Photographs to sketches: DomainNet with the splits of WILDS 2.0."""


@register("BDD100K", Metadata(paper="arXiv:2012.07421", **known("BDD100K")))
class BDD100K(WILDS):
    """Which of nine kinds of objects a driver sees, at other times of the day."""


@register("SQF", Metadata(paper="arXiv:2012.07421", **known("SQF")))
class SQF(WILDS):
    """Weapons found by stops in New York; by the precision at a recall of 60 %."""
