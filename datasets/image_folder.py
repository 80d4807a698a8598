"""A user's images, in folders."""

import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from pathlib import Path
from unicodedata import normalize

import torch
from torch import Tensor

from oodbench.data.pictures.folders import Listing, OwnImages, files_of, image_metadata
from oodbench.data.pictures.pixels import class_folders, image_files, left_out
from oodbench.data.tables.readings import look_alikes
from oodbench.datasets import Environment, in_order, register
from oodbench.errors import UserError, some
from oodbench.files import nearest
from oodbench.hparams import hparam
from oodbench.tasks import Task

from .listed import SPLIT, class_notes, one_name, split_note

WRAPPER = re.compile(r"(images?|imgs?|pictures?|photos?|data|jpe?gs?|pngs?)", re.IGNORECASE)
"""The names of folders between environments and classes that mean nothing."""
VALIDATION = ("dev", "eval")
"""Other names of `val`."""
SUBJECT = re.compile(
    r"(?!(img|image|dsc[nf]?|frame|pic|picture|photo|crop|tile|patch|page|file)[-_]?\d)[a-z]+[-_]?\d+(?=[-_])",
    re.IGNORECASE,
)
"""The beginning of a name that may be of a patient or a thing, and not a camera's number of a picture."""
DOMAIN = re.compile(
    r"(real([-_ ]?world)?|photo(graph)?s?|sketch(es)?|art([-_ ]?painting)?s?|clip[-_ ]?art|cartoons?"
    r"|info(graph)?s?|quick[-_ ]?draw|paintings?|products?|webcam|dslr|amazon|caltech(101)?|labelme"
    r"|sun(09)?|voc(2007)?"
    r"|(domain|env(ironment)?|site|hospital|camera|location|source|cent(er|re))[-_ ]?\d+)",
    re.IGNORECASE,
)
"""The names of folders that mean an environment."""
STRAYS = ("raw", "new folder", "untitled folder", "tmp", "temp", "backup", "unsorted")
"""Lower-case names of folders that are rarely meant as a class or an environment."""
Names = dict[Path, tuple[str, ...]]
"""The names of the folders around a picture: the environment, the class and further ones."""


@register(
    "ImageFolder",
    image_metadata(
        paper="none", licence="the owner's", shift="any word that tells the folders apart"
    ),
)
class ImageFolder(OwnImages):
    """Images in ROOT/ENVIRONMENT/CLASS/; by default the last environment is the test environment.

    Environments are in natural order (2 before 10). `root` is under the data directory unless it is
    absolute. It belongs to a run's identity: keep it relative if the data may move. With `attributes` the
    images are in ROOT/ENVIRONMENT/CLASS/ATTRIBUTE/. Links are followed.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(OwnImages.Options):
        """Where the images are."""

        root: str = hparam("")
        attributes: bool = hparam(False, neutral=False)
        """Whether each class's folder has a subfolder for every attribute value."""
        splits: str = hparam("", options=("", "merge", "train", "val", "test", "keep"), neutral="")
        """Which of the folders `train`, `val`, `test` inside or around environments are read: one, or all
        with `merge`; `keep` takes them as classes or environments."""
        group: str = hparam("", neutral="")
        r"""A regular expression for the part of a path below the root that names a picture's group, such as
        a patient, which stays on one side of drawn splits: `P\d+`, or the parentheses in `scan_(\d+)_`."""
        group_across: str = hparam("keep", options=("keep", "drop"), neutral="keep")
        """Whether training keeps or drops pictures whose group also occurs in a test environment."""

    options: Options

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.given = (data_dir or Path()) / options.root
        is_there = (options.root != "" or data_dir is not None) and self.given.is_dir()
        self.folder = _unwrapped(self.given) if is_there and not options.attributes else self.given
        self._found = self._names() if is_there else Names()
        names = self._found.values()
        self.environments = tuple(in_order({environment for environment, *_ in names}))
        self.classes = tuple(sorted({name for _, name, *_ in names}))
        if options.attributes:
            found = {normalize("NFC", name) for _, _, *rest in names for name in rest[:1]}
            self.attributes = tuple(sorted(found))
        if not self.environments:
            self.size = options.size
        self.input_shape = (3, self.size, self.size)
        self.test_environments = self.environments[-1:]
        self.task = Task("multiclass", max(2, len(self.classes)))
        self.separates_clusters = options.group_across == "drop"
        if self.separates_clusters and not options.group:
            raise UserError("ImageFolder: `group_across: drop` needs the option `group`")

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments, with the groups of pictures as clusters if the option `group` is given."""
        environments = super().load(trial)
        if not self.options.group:
            return environments
        numbers = {name: number for number, name in enumerate(self.cluster_names)}
        return {
            name: replace(environments[name], clusters=torch.tensor([numbers[g] for g in groups]))
            for name, groups in self._groups.items()
        }

    @cached_property
    def cluster_names(self) -> Sequence[str]:  # type: ignore[override]
        """The names of the groups, sorted."""
        return sorted({name for names in self._groups.values() for name in names})

    @cached_property
    def _groups(self) -> dict[str, list[str]]:
        """The group of each picture, by environment; raises UserError for a picture without one."""
        if not self.options.group:
            return {}
        try:
            pattern = re.compile(self.options.group)
        except re.error as error:
            raise UserError(f"ImageFolder: `group` is not a regular expression: {error}") from error
        found = []
        for file in files_of(self.listing):
            match = pattern.search(file.relative_to(self.root).as_posix())
            if match is None or match[pattern.groups and 1] is None:
                raise UserError(f"ImageFolder: `group: {pattern.pattern}` is not in {file}")
            found.append(match[pattern.groups and 1])
        names = iter(one_name(found)[0])
        return {name: [*islice(names, len(files))] for name, files in self.listing.items()}

    @cached_property
    def listing(self) -> Listing:
        """All pictures by name; raises UserError unless environments have the same class folders."""
        root, found = self.root, self._found
        numbers = {name: number for number, name in enumerate(self.classes)}
        listing: Listing = {name: [] for name in self.environments}
        for file, (environment, name, *_) in found.items():
            if environment in listing and name in numbers:
                listing[environment].append((file, numbers[name]))
        for environment, files in listing.items():
            files.sort(key=lambda each: each[1])
            seen, at = {self.classes[label] for _, label in files}, root / environment
            why = f"ImageFolder: environment '{environment}' has "
            others = left_out(at, [file for file, _ in files]) if len(seen) < 2 else ""
            if others or len(self.classes) < 2:
                why += f"only images of '{''.join(seen)}' in {at}; {others}"
                raise UserError(why.removesuffix("; "))
            for name in () if self.options.splits else sorted({*self.classes} - seen):
                if not (at / name).is_dir():
                    odd = next(file for file, folders in found.items() if folders[1] == name)
                    beside = {of[1] for of in found.values() if of[0] == found[odd][0]}
                    digits = re.findall(r"\d+", name)  # which tell numbered classes apart
                    close = [n for n in seen - beside if re.findall(r"\d+", n) == digits]
                    near = get_close_matches(name, close, 1, 0.8)
                    like = look_alikes([name, *seen]) or " and ".join(
                        map(repr, near and [name, *near])
                    )
                    hint = f"move it if '{name}' is not a class, or else make an empty folder"
                    hint = f"{like}: name the folders of one class alike" if like else hint
                    raise UserError(f"{why}no folder {at / name}, but there is {odd}: {hint}")
        return listing

    @property
    def _inside(self) -> list[str]:
        names = {f[2] for f in self._found.values() if len(f) > 2 and not self.options.attributes}
        return in_order(names)[:9]

    def _names(self) -> Names:
        """The names of each picture's folders, without those of splits."""
        written: dict[str, str] = {}  # the first spelling on disk of each name in NFC
        names, start = Names(), len(self.folder.parts)
        for file in image_files(self.folder):
            if len(folders := file.parts[start:-1]) > 1:
                names[file] = tuple(written.setdefault(normalize("NFC", f), f) for f in folders)
        if odd := [name for name in written if name != name.encode("utf-8", "ignore").decode()]:
            raise UserError(
                f"ImageFolder: the name of a folder is not UTF-8, {odd[0]!r}: rename it"
            )
        for name in sorted({*class_folders(self.folder)} - {file.parts[start] for file in names}):
            if others := left_out(at := self.folder / name, ()):
                form = f"it takes {self.folder}/ENVIRONMENT/CLASS/IMAGE"
                raise UserError(
                    f"ImageFolder: {at} has no images in folders of classes ({form}); {others}"
                )
        names = self._without_splits(names)
        between = [folders[1] if len(folders) > 2 else "" for folders in names.values()]
        if all(map(WRAPPER.fullmatch, between)) and not self.options.attributes:
            # as in amazon/images/mug/1.jpg of Office-31
            return {file: (folders[0], *folders[2:]) for file, folders in names.items()}
        return names

    def _without_splits(self, names: Names) -> Names:
        option, least = self.options.splits, 2 + self.options.attributes
        for level, what in enumerate(("environments", "classes") if option != "keep" else ()):
            here = {folders[level] for folders in names.values()}
            splits = sorted(filter(SPLIT.fullmatch, here))
            if (
                not splits
                or len(splits) < min(2, len(here))
                or (level == 0 and any(len(folders) <= least for folders in names.values()))
            ):
                continue
            if not option:
                raise UserError(
                    f"ImageFolder: the folders {' and '.join(splits)} in {self.folder} are rather splits "
                    f"than {what}: the option `splits: merge` reads all of them, `splits: train` "
                    f"(or val, test) one, and `splits: keep` takes them as {what}"
                )
            read = {
                file: folders[:level] + folders[level + 1 :]
                for file, folders in names.items()
                if (split := SPLIT.fullmatch(folders[level])) and len(folders) > 2
                if option in ("merge", split[1].lower())
                or (option == "val" and split[1].lower() in VALIDATION)
            }
            other = {f[1 - level] for f in names.values()} - {f[0] for f in read.values()}
            if other:
                raise UserError(f"ImageFolder: no `splits: {option}` of {', '.join(sorted(other))}")
            return read
        if option not in ("", "keep"):
            why = "has no folders such as train and test with folders of environments or classes"
            raise UserError(f"ImageFolder: {self.folder} {why}")
        return names

    def attribute_numbers(self, files: Sequence[Path]) -> Tensor | None:
        """The attributes (N,), by the folders in class folders; raises UserError for other files."""
        if not self.options.attributes:
            return None
        depth = len(self.root.parts) + 2 + (self.options.splits not in ("", "keep"))
        folders = [normalize("NFC", file.parts[depth]) for file in files]
        for file, folder in zip(files, folders, strict=True):
            if folder not in self.attributes:
                raise UserError(
                    f"ImageFolder: {file} is in no folder of an attribute "
                    f"(with `attributes` it takes {self.root}/ENVIRONMENT/CLASS/ATTRIBUTE/IMAGE)"
                )
        return torch.tensor([self.attributes.index(folder) for folder in folders])

    @property
    def files_read(self) -> Collection[Path]:
        """The images and all folders; the folders in the root are the environments."""
        files = super().files_read
        places = [self.root / name for name in self.environments]
        folders = {os.path.dirname(file) for file in files}  # noqa: PTH120 (fast)
        return [*files, *places, *map(Path, folders), self.root]

    @property
    def root(self) -> Path:
        """The folder of the option `root`, or the only folder in it."""
        if self.options.root == "" and self.data_dir is None:
            raise UserError("ImageFolder needs its option `root`, or --data-dir DIR")
        if not self.environments:
            state = "holds no folders with images" if self.given.is_dir() else "is not there"
            state = "is not a folder" if self.given.is_file() else state
            near = "" if self.given.exists() else nearest(self.given)
            raise UserError(
                f"ImageFolder: {self.given} {state} (it takes ENVIRONMENT/CLASS/IMAGE){near}"
            )
        return self.folder

    @property
    def notes(self) -> Sequence[str]:
        """How pictures are read, which files are ignored, and which folders may be mistakes."""
        root, listing = self.root, self.listing
        at = [root / name for name in class_folders(root)]
        at += [folder / name for folder in at for name in class_folders(folder)]
        empty = ", ".join(str(folder) for folder in at if not image_files(folder))
        each = {n: Counter(self.classes[c] for _, c in images) for n, images in listing.items()}
        classes = sum(each.values(), Counter[str]())
        sizes = {name: len(images) for name, images in listing.items()}
        inside = ", ".join(self._inside)
        are_domains = [all(map(DOMAIN.fullmatch, n)) for n in (self.classes, self.environments)]
        notes = {
            left_out(root, files_of(listing)): True,
            f"without images, and so no class or environment: {empty}": empty,
            f"pictures in folders below a class's are of that class: {inside}": inside,
            f"environments are the folders of {root}, alone in {self.given}": root != self.given,
            f"the classes {some(self.classes, 4)} are called like environments: folders are "
            "ENVIRONMENT/CLASS/IMAGE, not CLASS/ENVIRONMENT/IMAGE": are_domains == [True, False],
        }
        for what, names in (("environments", self.environments), ("classes", self.classes)):
            notes[f"{what} {look_alikes(names)}"] = look_alikes(names)
        if not self.options.group:
            below = {} if self.options.attributes else self._found
            notes |= {_same_subjects(listing, below): True}
        said = [note for note, is_so in notes.items() if note and is_so]
        of_classes = class_notes(each, self.test_environments)
        said += split_note(self.environments)
        return [*of_classes, *super().notes, *said, *_strays(sizes), *_strays(classes)]


def _unwrapped(root: Path) -> Path:
    """Enter a lone folder whose folders, the environments, all have the same folders, the classes."""
    inside = class_folders(root)
    at = root / inside[0] if len(inside) == 1 else root
    classes = {class_folders(at / name) for name in class_folders(at)}
    return _unwrapped(at) if at != root and len(classes) == 1 and len(*classes) > 1 else root


def _same_subjects(listing: Listing, below: Names) -> str:
    """A note if all names are like `P012_3.png` or `P012/3.png`, and environments share such beginnings."""

    def named(file: Path) -> str:
        return "_".join([*below.get(file, ())[2:3], file.name])

    begun = {
        name: [match[0].lower() for file, _ in files if (match := SUBJECT.match(named(file)))]
        for name, files in listing.items()
    }
    if any(len(begun[name]) < len(files) for name, files in listing.items()):
        return ""
    counts = Counter(subject for subjects in begun.values() for subject in {*subjects})
    shared = sorted(subject for subject, count in counts.items() if count > 1)
    if not shared or sum(map(len, begun.values())) == counts.total():
        return ""
    return (
        f"pictures of {len(shared)} names such as '{shared[0]}' are in several environments: if each name "
        "is of one patient or thing, the option `group` (a regular expression) keeps it on one side of a "
        "split, and `group_across: drop` out of training where it is tested on"
    )


def _strays(sizes: Mapping[str, int]) -> list[str]:
    total = sum(sizes.values())
    few = [name for name, size in sizes.items() if size * 100 < total]
    return [
        f"'{name}' may be a stray folder: it has {size:,} of {total:,} images"
        for name, size in sizes.items()
        if name.casefold() in STRAYS or few == [name]
    ]
