"""A user's images, listed in a file."""

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from glob import escape
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any
from unicodedata import normalize
from urllib.parse import unquote

from oodbench.columns import Reading
from oodbench.data.pictures.folders import Listing, OwnImages, image_metadata
from oodbench.datasets import Environment, register
from oodbench.errors import UserError

from .listed import Listed

PATHS = (
    *("path", "file_name", "filename", "filepath", "file_path", "image_path", "img_path"),
    *("image_file", "image_name", "image", "img", "picture", "file"),
)
"""Names of the column of images; the first one found is used."""


@register("Manifest", image_metadata(paper="none", licence="the file's", shift="the file's"))
class Manifest(Listed, OwnImages):
    """Image files that a column such as `path` names, absolute or relative to the file's folder."""

    @dataclass(frozen=True, kw_only=True)
    class Options(Listed.Options, OwnImages.Options):
        """The file, what its columns mean, and how images are read."""

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self._roles[self.image_column] = Reading(self.image_column, "image", "the images")
        self.input_shape = (3, self.size, self.size)

    @property
    def image_column(self) -> str:
        """The column of images: `path`, or another tool's name for it."""
        return next((name for name in PATHS if name in self.rows.columns), PATHS[0])

    @property
    def root(self) -> Path:
        """The folder of the file that lists the images."""
        folder: Path = self.path.parent
        return folder

    @cached_property
    def files(self) -> list[Path]:
        """The image of each row; raises UserError, with the line, for a missing image."""
        files = []
        for row, text in enumerate(self.rows.texts(self.image_column)):
            plain = [text, text.replace("\\", "/"), unquote(text)]
            forms = [text, *(normalize(form, each) for each in plain for form in ("NFC", "NFD"))]
            file = next((at for form in forms if (at := self.root / form).is_file()), None)
            if file is None:
                where = "" if Path(text).is_absolute() else f" in {self.root}"
                what = f"{self.rows.place(row)}: there is no image '{text}'{where}"
                near = self._nearest(text)
                raise UserError(f"{what}; did you mean '{near}'?" if near else what)
            files.append(file)
        return files

    def _nearest(self, text: str) -> str:
        """A file here: the end of another computer's path, the name in a folder, or one like it."""
        path = PureWindowsPath(text)  # it accepts slashes, too
        folders, name = path.parts, path.name
        ends = ("/".join(folders[i:]) for i in range(1, len(folders)))
        if found := next((end for end in ends if (self.root / end).is_file()), ""):
            return found
        if inside := next(filter(Path.is_file, self.root.glob(f"*/{escape(name)}")), None):
            return inside.relative_to(self.root).as_posix()
        place = PurePath(*folders).parent
        there = filter(Path.is_file, (self.root / place).glob("*"))
        names = {each.lower(): p.name for p in there for each in (p.stem, p.name)}
        near = get_close_matches(name.lower(), names, 1)
        return str(place / names[near[0]]) if near else ""

    @property
    def files_read(self) -> list[Path]:
        """The file and the images that it lists."""
        return [*super().files_read, *self.files]

    @cached_property
    def listing(self) -> Listing:
        """All images with their targets, by environment."""
        targets = self.targets.flatten().tolist()
        return {
            name: [(self.files[row], targets[row]) for row in places.tolist()]
            for name, places in self.places.items()
        }

    def check(self) -> None:
        """Raise UserError, with the line, for a missing or unreadable image."""
        try:
            super().check()
        except UserError as error:
            for row, file in enumerate(self.files):
                if f"{file} cannot be read" in str(error):
                    raise UserError(f"{self.rows.place(row)}: {error}") from error
            raise

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments in the order of the file, the same in every trial."""
        return self.examples({name: e.x for name, e in super().load(trial).items()})
