"""A user's images, in folders."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from oodbench.data.images import ImageFolders, OwnImages, Place, class_folders, image_metadata
from oodbench.datasets import in_order, register
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.tasks import Task


@register(
    "ImageFolder",
    image_metadata(
        paper="none",
        licence="the owner's",
        shift="whatever tells the folders apart",
    ),
)
class ImageFolder(OwnImages, ImageFolders):
    """Images in ROOT/ENVIRONMENT/CLASS/; the last environment is the test one by default.

    Environments are in the order in which people count (2, 10). `root` is under the data directory
    unless it is absolute. It belongs to a run's identity: keep it relative where the data may move. With
    `attributes` the images are in ROOT/ENVIRONMENT/CLASS/ATTRIBUTE/.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(OwnImages.Options):
        """Where the images are."""

        root: str = hparam("")
        attributes: bool = hparam(False, neutral=False)
        """Whether each class's folder has a subfolder for every attribute value."""

    options: Options

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        root = (data_dir or Path()) / options.root
        given = options.root != "" or data_dir is not None
        names = in_order(class_folders(root)) if given and root.is_dir() else []
        self.places = tuple(Place(name, name) for name in names)
        self.classes = tuple(sorted({c for name in names for c in class_folders(root / name)}))
        if options.attributes:
            classes = [folder for name in names for folder in (root / name).iterdir()]
            folders = {a for folder in classes if folder.is_dir() for a in class_folders(folder)}
            self.attributes = tuple(sorted(folders))
        super().__init__(options, data_dir)
        if self.places:
            self.fit_size()
        self.test_environments = self.environments[-1:]
        self.task = Task("multiclass", max(2, len(self.classes)))

    def attribute_numbers(self, files: Sequence[Path]) -> Tensor | None:
        """The attributes, by the folders in the classes' folders; raises UserError for a file in none."""
        if not self.options.attributes:
            return None
        folders = [file.relative_to(self.root).parts[2] for file in files]
        for file, folder in zip(files, folders, strict=True):
            if folder == file.name:
                raise UserError(
                    f"ImageFolder: {file} is in no folder of an attribute "
                    f"(with `attributes` it takes {self.root}/ENVIRONMENT/CLASS/ATTRIBUTE/IMAGE)"
                )
        return torch.tensor([self.attributes.index(folder) for folder in folders])

    @property
    def files_read(self) -> Collection[Path]:
        """The images and all folders; those in the root are the environments."""
        return [*super().files_read, self.root]

    @property
    def root(self) -> Path:
        """The folder of the option `root`."""
        if self.options.root == "" and self.data_dir is None:
            raise UserError("ImageFolder needs its option `root`, or --data-dir DIR")
        root = (self.data_dir or Path()) / self.options.root
        if not self.places:
            state = "holds no folders" if root.is_dir() else "is not there"
            raise UserError(
                f"ImageFolder: {root} {state} (it takes {root}/ENVIRONMENT/CLASS/IMAGE)"
            )
        return root
