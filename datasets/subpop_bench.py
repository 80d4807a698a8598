"""Data in the folders that SubpopBench's scripts write (arXiv:2302.12254).

For each set DATA_DIR has files and a table that SubpopBench has written: an example a row, with the columns
`filename`, `split` (0, 1, 2: train, validation, test), `y` (the class) and `a` (the attribute). Splits are
environments: all of `train` is trained on, `validation` selects, and groups of class and attribute shift.
`--rule val_env:worst_group_accuracy` and a sweep's key `attributes` give its three settings.

Networks and steps are SubpopBench's, except that BERT is DistilBERT here, with the same vocabulary.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from oodbench.data import encodings
from oodbench.data.pictures.pixels import opened
from oodbench.data.streams import Prepared
from oodbench.data.tables.cells import Cells
from oodbench.datasets import IMAGENET, Environment, Metadata, SampledDataset, register
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.tasks import Task

SPLITS = {"0": "train", "1": "validation", "2": "test"}
"""The environments by the numbers of the column `split`."""
SOURCE = "the scripts of https://github.com/YyzHarry/SubpopBench make it"


class SubpopBench(SampledDataset):
    """A dataset of SubpopBench; see the module."""

    @dataclass(frozen=True, kw_only=True)
    class Options(SampledDataset.Options):
        """The size of an input, and whether the network is pretrained."""

        size: int = hparam(0, low=0)
        """Pixels of a side, or words; 0: SubpopBench's."""
        from_scratch: bool = hparam(False)
        """Whether the network has no pretrained weights; texts then get a small network."""

    table: ClassVar[str]
    """The table, in the folder of the set."""
    usual_size: ClassVar[int]

    options: Any
    environments = tuple(SPLITS.values())
    test_environments = ("test",)
    validation_environments = ("validation",)
    evaluation_environments = ("validation", "test")
    """The splits that are never trained on."""

    @property
    def root(self) -> Path:
        """The folder of the set; raises UserError if it is not there."""
        if self.data_dir is None:
            raise UserError(f"{self.name} needs --data-dir DIR with SubpopBench's data; {SOURCE}")
        root = self.data_dir / self.metadata.folder
        if not root.is_dir():
            raise UserError(f"{self.name}: there is no folder {root}; {SOURCE}")
        return root

    @property
    def size(self) -> int:
        """The size of an input."""
        return int(self.options.size or self.usual_size)

    @cached_property
    def rows(self) -> Cells:
        """The table's rows; raises UserError if it is not there."""
        return _rows(self._there(self.table))

    def _there(self, name: str) -> Path:
        file = self.root / name
        if not file.is_file():
            raise UserError(f"{self.name}: {file} is missing; {SOURCE}")
        return file

    @property
    def files_read(self) -> list[Path]:
        """The table."""
        return [self._there(self.table)]

    @abstractmethod
    def items(self) -> Sequence[Any]:
        """The item of each row, for `prepare`; raises UserError, with the line, for a missing file."""

    @abstractmethod
    def prepare(self) -> Callable[[Any], Tensor]:
        """The function from an item to an input."""

    def load(self, trial: int) -> dict[str, Environment]:
        """The three splits, the same in every trial; inputs other than texts stay on disk."""
        splits = torch.tensor([int(n) for n in self._numbers("split", len(SPLITS))])
        y, a = (
            torch.tensor(self._numbers(column, len(names)))
            for column, names in (("y", self.classes), ("a", self.attributes))
        )
        if self.task.kind == "binary":
            y = y.float()
        items, prepare = self.items(), self.prepare()
        environments = {}
        for number, name in SPLITS.items():
            index = (splits == int(number)).nonzero().squeeze(1)
            if not len(index):
                raise UserError(f"{self.rows.path} has no row of the split {number} ({name})")
            chosen = [items[i] for i in index.tolist()]
            x = Prepared(chosen, prepare, self.input_shape)
            environments[name] = Environment(x, y[index], attributes=a[index])
        return environments

    def download(self, data_dir: Path) -> None:
        """Raise UserError with the scripts that make the folder."""
        raise UserError(f"{self.name} is in {data_dir / self.metadata.folder}: {SOURCE}")

    def _numbers(self, column: str, count: int) -> list[int]:
        """A column of integers below `count`; raises UserError, with the line, for another value."""
        texts, known = self.rows.texts(column), {str(n): n for n in range(count)}
        for row, text in enumerate(texts):
            if text not in known:
                place = self.rows.place(row)
                raise UserError(f"{place}: '{column}' must be 0 to {count - 1}, not '{text}'")
        return [known[text] for text in texts]


class SubpopImages(SubpopBench):
    """Photographs or radiographs, without augmentation."""

    images: ClassVar[str] = ""
    """The folder of the images, inside the folder of the dataset."""
    margin: ClassVar[float] = 1.0
    """The factor by which images are larger than their centre, which is the input."""
    crop: ClassVar[bool] = False
    """Whether the largest central square is taken first."""
    usual_size = 224
    normalization = IMAGENET

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.input_shape = (3, self.size, self.size)

    @property
    def network_hparams(self) -> Mapping[str, Any]:
        """Random weights if the option `from_scratch` is set."""
        return {"weights": "none"} if self.options.from_scratch else {}

    def place(self, name: str) -> str:
        """The path, in the folder of the images, of a file that the table names."""
        return name

    @property
    def files_read(self) -> list[Path]:
        """The table and the images."""
        return [*super().files_read, *self.items()]

    def items(self) -> list[Path]:
        """The images."""
        folder, files = self.root / self.images, []
        for row, text in enumerate(self.rows.texts("filename")):
            file = folder / self.place(text)
            if not file.is_file():
                raise UserError(f"{self.rows.place(row)}: there is no image {file}")
            files.append(file)
        return files

    def prepare(self) -> Callable[[Path], Tensor]:
        """A function that decodes and crops an image to bytes (3, size, size)."""

        def prepared(file: Path) -> Tensor:
            with opened(file) as image:
                return encodings.image(image, self.size, margin=self.margin, crop=self.crop)

        return prepared

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Map bytes (N, 3, H, W) to floats, standardised by ImageNet's channels."""
        mean, std = IMAGENET.on(x.device)
        return x.float().div_(255).sub_(mean).div_(std)


class SubpopTexts(SubpopBench):
    """Texts as ids of word pieces, which DistilBERT takes."""

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.input_shape = (self.size,)

    @property
    def network(self) -> str:
        """DistilBERT, or a small network from scratch."""
        return "TextCNN" if self.options.from_scratch else "DistilBERT"

    def numbered(self, texts: Sequence[Any]) -> Sequence[Any]:
        """The item of each row, whose `filename` is its number among `texts`."""
        return [texts[i] for i in self._numbers("filename", len(texts))]


@lru_cache(maxsize=2)
def _rows(path: Path) -> Cells:
    return Cells(path)


def about(shift: str, licence: str, steps: int, folder: str, family: str = "images") -> Any:
    """The metadata of a set, as keywords."""
    network = "ResNet50" if family == "images" else "DistilBERT"
    known = {"family": family, "shift": shift, "network": network}
    return known | {"licence": licence, "steps": steps, "folder": folder}


NON_COMMERCIAL = "non-commercial research"


@register(
    "SubpopWaterbirds",
    Metadata(
        paper="arXiv:2302.12254",
        **about("groups of bird and place", NON_COMMERCIAL, 5001, "waterbirds"),
    ),
)
class SubpopWaterbirds(SubpopImages):
    """Land birds and water birds in front of land or water, from SubpopBench's folder."""

    table, images = "metadata_waterbirds.csv", "waterbird_complete95_forest2water2"
    classes, attributes = ("landbird", "waterbird"), ("land", "water")
    task, margin = Task("binary"), 256 / 224


@register(
    "SubpopCelebA",
    Metadata(
        paper="arXiv:2302.12254", **about("groups of hair and sex", NON_COMMERCIAL, 30001, "celeba")
    ),
)
class SubpopCelebA(SubpopImages):
    """Celebrities with and without blond hair, from SubpopBench's folder."""

    table, images = "metadata_celeba.csv", "img_align_celeba"
    classes, attributes = ("not blond", "blond"), ("female", "male")
    task, crop = Task("binary"), True


@register(
    "SubpopCheXpert",
    Metadata(
        paper="arXiv:2302.12254",
        **about(
            "groups of finding, sex and ethnicity", "Stanford's research use", 20001, "chexpert"
        ),
    ),
)
class SubpopCheXpert(SubpopImages):
    """Radiographs of chests with and without a finding, from SubpopBench's folder."""

    table = "subpop_bench_meta/metadata_no_finding.csv"
    classes = ("finding", "no finding")
    attributes = tuple(
        f"{sex} {race}" for race in ("white", "black", "other") for sex in ("male", "female")
    )
    task, crop, margin = Task("binary"), True, 256 / 224

    def place(self, name: str) -> str:
        """The path below the folder `chexpert`, as SubpopBench writes absolute paths."""
        return name.rpartition("chexpert/")[2]


@register(
    "SubpopCivilComments",
    Metadata(
        paper="arXiv:2302.12254",
        **about("groups of toxicity and who is mentioned", "CC0", 30001, "civilcomments", "text"),
    ),
)
class SubpopCivilComments(SubpopTexts):
    """Toxic comments that mention one of eight groups, from SubpopBench's folder (its "fine" table).

    The table repeats a comment for each group that it mentions, and leaves out the other comments.
    """

    table, usual_size = "metadata_civilcomments_fine.csv", 220
    classes = ("not toxic", "toxic")
    attributes = (
        *("male", "female", "LGBTQ", "christian", "muslim", "other religions", "black", "white"),
    )
    task = Task("binary")

    @property
    def files_read(self) -> list[Path]:
        """The table and the comments."""
        return [*super().files_read, self._there("civilcomments_fine.csv")]

    def items(self) -> Sequence[str]:
        """The comments."""
        comments = _rows(self._there("civilcomments_fine.csv")).cells("comment_text")
        return self.numbered(comments.to_pylist())

    def prepare(self) -> Callable[[str], Tensor]:
        """A function from a text to its word pieces, or to hashed words."""
        if self.options.from_scratch:
            return partial(encodings.hashed_words, length=self.size)
        return encodings.word_pieces(self.size)


FEATURES = tuple(
    f"glue_data/MNLI/cached_{part}"
    for part in (
        "train_bert-base-uncased_128_mnli",
        "dev_bert-base-uncased_128_mnli",
        "dev_bert-base-uncased_128_mnli-mm",
    )
)
"""The files of word pieces; examples are numbered through all of them."""
InputFeatures = type("InputFeatures", (), {"__module__": "utils_glue"})
"""The class of the objects in FEATURES, the only one that is loaded from these files."""


@register(
    "SubpopMultiNLI",
    Metadata(
        paper="arXiv:2302.12254",
        **about("groups of relation and negation", "OANC and others", 30001, "multinli", "text"),
    ),
)
class SubpopMultiNLI(SubpopTexts):
    """The relation of two sentences, with and without a negation, from SubpopBench's folder.

    Inputs are BERT's word pieces of both sentences (128); a piece does not say which sentence it is from.
    """

    table, usual_size = "metadata_multinli.csv", 128
    classes = ("contradiction", "entailment", "neutral")
    attributes = ("no negation", "negation")
    task = Task("multiclass", 3)

    @property
    def files_read(self) -> list[Path]:
        """The table and the word pieces."""
        return [*super().files_read, *map(self._there, FEATURES)]

    def items(self) -> Sequence[Tensor]:
        """The word pieces of each example."""
        return self.numbered(_pieces(tuple(map(self._there, FEATURES))))

    def prepare(self) -> Callable[[Tensor], Tensor]:
        """A function to the first `size` word pieces; it raises UserError if there are fewer."""

        def prepared(ids: Tensor) -> Tensor:
            if len(ids) < self.size:
                raise UserError(f"{self.name} has {len(ids)} word pieces each, not {self.size}")
            return ids[: self.size]

        return prepared


@lru_cache(maxsize=1)
def _pieces(files: Sequence[Path]) -> list[Tensor]:
    """The word pieces in SubpopBench's pickled objects; objects of other classes are refused."""
    pieces = []
    for file in files:
        try:
            with torch.serialization.safe_globals([InputFeatures]):
                features = torch.load(file, weights_only=True)
            pieces += [torch.tensor(one.input_ids) for one in features]
        except Exception as error:  # for a damaged file torch raises errors of any type
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{file} holds no word pieces: {reason}") from error
    return pieces
