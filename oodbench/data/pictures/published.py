"""Published datasets of pictures: their folders, and checks that no picture is missing."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from oodbench.data.pictures.folders import Images, Listing, files_of
from oodbench.data.pictures.pixels import class_folders, image_files, left_out
from oodbench.errors import MissingError, UserError
from oodbench.hparams import hparam
from oodbench.tasks import Task


class Place(NamedTuple):
    """The folder of an environment's images."""

    environment: str
    folder: str
    """The path of the folder, relative to the root."""
    images: int | tuple[int, ...] | None = None
    """The published number of images, in total or by class."""


class Published(Images):
    """A published dataset in a folder under the data directory.

    Pictures are not turned upright by EXIF, as in the code of the papers.
    """

    upright = False

    source: ClassVar[str]
    """The address of the download."""

    @property
    def root(self) -> Path:
        """The folder of the dataset under the data directory; raises UserError for a missing folder."""
        folder = self.metadata.folder
        if self.data_dir is None:
            raise UserError(f"{self.name} needs --data-dir DIR with the folder {folder} in it")
        root = self.data_dir / folder
        if not root.is_dir():
            command = f"python -m oodbench.data download {self.name} --from FOLDER"
            command += f" --data-dir {self.data_dir}"
            raise MissingError(
                f"{self.name}: there is no folder {root}; get it from {self.source} and unpack it there, "
                f"or make it from a copy of Hugging Face's hub by `{command}`",
                command,
            )
        return root

    def download(self, data_dir: Path) -> None:
        """Raise UserError with the address, as the user has to accept the licence there."""
        folder = data_dir / self.metadata.folder
        raise UserError(f"{self.name} is at {self.source}; unpack it to {folder}")


class Suite(Published):
    """A published dataset in its original layout: images in ROOT/FOLDER/CLASS/, at any depth.

    Classes are numbered in alphabetical order.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Images.Options):
        """The size of the inputs, whether they are augmented, and whether images may be missing."""

        subset: bool = hparam(False)
        """Accept fewer or more images than were published; tables mention it."""

    places: tuple[Place, ...]
    num_classes: ClassVar[int]
    total: ClassVar[int | None] = None
    """The published number of images if the numbers by environment are unknown."""

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.environments = tuple(place.environment for place in self.places)
        self.test_environments = self.environments[:1]
        self.task = Task("multiclass", self.num_classes)

    @property
    def root(self) -> Path:
        """The dataset's folder, or the one in it that holds the environments, such as `kfold` of PACS."""
        root, first = super().root, self.places[0].folder
        at = (root, *(root / name for name in class_folders(root)))
        return next((folder for folder in at if (folder / first).is_dir()), root)

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the class folders."""
        first = self.root / self.places[0].folder
        folders = class_folders(first) if first.is_dir() else ()
        if len(folders) > self.num_classes:
            folders = tuple(name for name in folders if image_files(first / name))
        if folders and len(folders) != self.num_classes:
            raise UserError(
                f"{self.name} has {self.num_classes} classes, and {first} holds {len(folders)} folders"
            )
        return folders

    @cached_property
    def listing(self) -> Listing:
        """All files, sorted; raises UserError unless all environments have the same class folders."""
        listing: Listing = {}
        root, classes = self.root, self.classes  # each access lists folders
        for environment, folder, _ in self.places:
            at = root / folder
            if not at.is_dir():
                raise UserError(f"{self.name}: environment '{environment}' has no folder {at}")
            present = {n for n in class_folders(at) if n in classes or image_files(at / n)}
            for name in sorted(present ^ {*classes}):
                state = "a folder" if name in present else "no folder"
                raise UserError(
                    f"{self.name}: environment '{environment}' has {state} of the class '{name}' "
                    f"in {at}, unlike other environments (an empty one would do)"
                )
            numbered = enumerate(classes)
            files = [(file, label) for label, name in numbered for file in image_files(at / name)]
            seen = sorted({label for _, label in files})
            if len(seen) < 2:
                what = f"only images of '{classes[seen[0]]}'" if seen else "no images"
                raise UserError(f"{self.name}: environment '{environment}' has {what} in {at}")
            listing[environment] = files
        return listing

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on how unusual pictures are read, and on files that are left out."""
        others = left_out(self.root, files_of(self.listing))
        return [note for note in (*super().notes, others) if note]

    @cached_property
    def files_read(self) -> Collection[Path]:
        """The images and the folders that contain them."""
        files = files_of(self.listing)
        folders = {os.path.dirname(file) for file in files}  # noqa: PTH120 (fast)
        return [*files, *(self.root / place.folder for place in self.places), *map(Path, folders)]

    def check(self) -> None:
        """Check all files and, unless `subset`, that their number is the published one."""
        for place in self.places:
            labels = [label for _, label in self.listing[place.environment]]
            self.require_published(place.images, labels, f"{self.name}: {self.root / place.folder}")
        super().check()

    def require_published(
        self, published: int | tuple[int, ...] | None, labels: Sequence[int], at: str
    ) -> None:
        """Raise UserError if the number of `labels` is not the published one, in total or by class.

        The option `subset` accepts any number.
        """
        each = tuple(labels.count(label) for label in range(self.num_classes))
        if not self.options.subset and published not in (None, len(labels), each):
            raise UserError(
                f"{at} holds {len(labels)} images ({each} by class), not the published {published}; "
                "with its option `subset` it is taken as it is"
            )
