"""The base of tables, manifests and texts: a file that lists examples, one in each row."""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import torch
from torch import Tensor

from oodbench.columns import Reading
from oodbench.data.tables.audit import APART, FEW_EXAMPLES, NAMED
from oodbench.data.tables.cells import Cells
from oodbench.data.tables.readings import (
    MARKS,
    MOST,
    Reader,
    bare,
    look_alikes,
    one_spelling,
    several_labels,
    shown,
)
from oodbench.data.tables.typed import table_files, table_of_frame
from oodbench.datasets import Dataset, Environment, in_order, labelled, md5
from oodbench.errors import UserError, some, unknown
from oodbench.hparams import hparam
from oodbench.notes import SHOWN
from oodbench.tasks import Task

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("in", "out")
SEVERAL = 10
"""More numeric names than this may be meant as numbers."""
SPLIT = re.compile(
    r"(?:\d+[-_. ]+|images?[-_ ])?(train|val|test|dev|eval|fold)(ing|id|idation|uation)?"
    r"([-_ ]?(set|split|data|images))?([-_ ]?\d{1,4})?",
    re.IGNORECASE,
)
"""The names of folders and environments that mean a split."""


class Listed(Dataset):
    """Examples that a file lists, one in each row, with a target and an environment.

    The file is CSV, JSON, Parquet or Arrow, or a folder of Parquet files or of `Dataset.save_to_disk`.

    A column `split` (`in` or `out`) replaces the drawn split. Environments are in natural order. All trials
    have the same data. Real targets are standardised in training only.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Dataset.Options):
        """The file and what its columns mean."""

        file: str = hparam("")
        """The path of the file or folder under the data directory, or else the working directory."""
        md5: str = hparam("")
        """The md5 of the file, so that other contents give other runs; computed by default."""
        encoding: str = hparam("", neutral="")
        """The file's encoding; by default detected."""
        separator: str = hparam("", neutral="")
        """The separator of columns, detected by default: a character, `comma`, `semicolon`, `tab`, `bar` or
        `blank`."""
        decimal: str = hparam("", options=("", ".", ","), neutral="")
        """The decimal sign of numbers; by default detected."""
        target: str = hparam(
            "target", no_list="several labels an example need a dataset with the task `multilabel`"
        )
        """The column of targets."""
        kind: str = hparam("class", options=("class", "real"))
        """Whether targets are names of classes or real numbers."""
        environment: str = hparam("environment")
        """The column of the environments' names."""
        attribute: str = hparam("", neutral="")
        """The column of the examples' attribute, if any."""
        group: str = hparam("", neutral="")
        """The column, if any, whose equal values (a patient, a day) stay on one side of a drawn split."""
        group_across: str = hparam("keep", options=("keep", "drop"), neutral="keep")
        """Whether training keeps or drops examples whose group also occurs in a held-out environment."""
        test_environments: tuple[str, ...] = hparam(())
        """The default test environments; the last one with at least 30 examples if none are given."""

    options: Any

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        """Read the file; raises UserError, with the line, for values that cannot be used."""
        if not options.file:
            raise UserError(f"{self.name} needs a file: give the dataset's option `file`")
        self.path = (data_dir or Path()) / options.file
        sums = [md5(file) for file in table_files(self.path)]
        checksum = sums[0] if len(sums) == 1 else hashlib.md5("".join(sums).encode()).hexdigest()
        if options.md5 not in ("", checksum):
            raise UserError(
                f"{self.path} has changed since these runs were planned (its md5 was {options.md5} "
                f"and is {checksum}); use another file name, or plan again with another --out"
            )
        super().__init__(replace(options, md5=checksum), data_dir)
        self.rows = _cells(self.path, checksum, options.encoding, options.separator)
        self._roles: dict[str, Reading] = {}
        """How columns with a role are read, by name."""
        self._refuse_a_second_header()
        names = self._words("environment", options.environment)
        self.places = {
            name: torch.from_numpy(np.flatnonzero(names == name)) for name in in_order(set(names))
        }
        """The rows of each environment, in the order of the file."""
        if len(self.places) > max(SEVERAL, len(names) // 2):
            raise UserError(
                f"{self.path}: the environment '{options.environment}' has {len(self.places)} different "
                f"values in {len(names)} rows; name a column of fewer"
            )
        rows = {name: at.tolist() for name, at in self.places.items()}
        self.reader = Reader(self.rows, options.decimal, rows)
        self.environments = tuple(self.places)
        self.test_environments = self._test_environments()
        self.standardises_targets = options.kind == "real"
        self.task, self.targets, self.classes = self._targets()
        self.split = self._split()
        self.attribute_of_rows: Tensor | None = None
        if options.attribute:
            texts = self._words("attribute", options.attribute)
            self.attributes = tuple(sorted(set(texts)))
            self.attribute_of_rows = _numbered(texts)
        self.clusters: Tensor | None = None
        self.separates_clusters = options.group_across == "drop"
        if options.group:
            texts = self._words("group", options.group)
            self.cluster_names = sorted(set(texts))
            self.clusters = _numbered(texts)
        elif self.separates_clusters:
            raise UserError(f"{self.path}: `group_across: drop` needs the option `group`, a column")

    @property
    def files_read(self) -> Collection[Path]:
        """The file, or those of the folder."""
        return table_files(self.path)

    @property
    def label(self) -> str:
        """The file's name and the options that differ from their defaults."""
        unsaid = ("file", "md5", "test_environments", "encoding", "separator", "decimal")
        changed = {k: v for k, v in self.changed_options.items() if k not in unsaid}
        said = {k: f"[{', '.join(v)}]" if isinstance(v, tuple) else v for k, v in changed.items()}
        return labelled(Path(self.options.file).stem, said)

    @property
    def readings(self) -> Sequence[Reading]:
        """What each column is read as, in the order of the file."""
        unused = Reading("", "left out", "no option names it")
        return [self._roles.get(n, replace(unused, column=n)) for n in self.rows.columns]

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on unusual readings of the file, and on how environments differ."""
        read: dict[tuple[str, str], list[str]] = {}
        for r in self.readings:
            if r.unusual:
                read.setdefault((r.kind, r.why), []).append(f"'{r.column}'")
        said = [f"{', '.join(names)} read as {kind}: {why}" for (kind, why), names in read.items()]
        counts: dict[str, dict[str, int]] = {}
        if self.classes:
            for name, places in self.places.items():
                found = Counter(self.targets[places].long().tolist())
                counts[name] = {self.classes[c]: found[c] for c in sorted(found)}
        of_classes = class_notes(counts, self.test_environments)
        others = super().notes
        of_classes += split_note(self.environments)
        return [*of_classes, *self.rows.notes, *said, *self._ungrouped(), *others]

    def _ungrouped(self) -> Iterator[str]:
        for r in () if self.options.group else self.readings:
            if r.kind != "left out" or not NAMED.fullmatch(r.column):
                continue
            with suppress(UserError):  # for lists
                cells = self.rows.cells(r.column)
                distinct = pc.count_distinct(cells).as_py()
                parts = (cells.take(at.numpy()).unique().to_pylist() for at in self.places.values())
                counts = Counter(text for part in parts for text in part if text)
                shared = [text for text, count in counts.items() if count > 1]
                if shared and distinct > SEVERAL:
                    many = f"{len(shared)} of its {distinct:,} values"
                    yield f"'{r.column}' is not read, and {many} are in several environments: {APART}"
                elif 2 * distinct <= len(cells):
                    yield (
                        f"'{r.column}' is not read: if its equal values are of one patient or thing, the "
                        "option `group` keeps them on one side of a split"
                    )

    def examples(self, inputs: Mapping[str, Any]) -> dict[str, Environment]:
        """The environments with these `inputs`, by name."""
        return {
            name: Environment(
                inputs[name],
                self.targets[index],
                None if self.clusters is None else self.clusters[index],
                None if self.split is None else self.split[index],
                None if self.attribute_of_rows is None else self.attribute_of_rows[index],
            )
            for name, index in self.places.items()
        }

    def further(self, new: "pd.DataFrame | str | PathLike[str]") -> Cells:
        """The cells of new rows in a data frame or a file; raises UserError for anything else."""
        import pandas as pd

        if isinstance(new, pd.DataFrame):
            called = "the data frame"
            return Cells(Path(called), table=table_of_frame(new, called))
        if not isinstance(new, str | PathLike):
            kind = type(new).__name__
            raise UserError(f"{self.name} reads new rows of a data frame or a file, not of {kind}")
        return Cells(Path(new), self.options.encoding, self.options.separator)

    def _words(self, role: str, column: str) -> npt.NDArray[np.object_]:
        """The texts (N,) in the column of a role; raises UserError for an empty one."""
        words, note = one_spelling(self.rows.texts(column))
        note = f"{note} and count as one" if note else ""
        if role == "group":  # so that no patient is on both sides of a split
            names, alike = one_name(words.tolist())
            words, note = np.array(names, dtype=object), note or alike
        distinct = set(words)
        marks = [text for text in in_order(distinct) if text.lower() in MARKS]
        labels = several_labels(in_order(distinct)) if role == "target" else ""
        if role == "group" and len(distinct) == len(words):
            note = "each row has another group"
        odd = [
            note,
            look_alikes(distinct),
            labels,
            *(f"{m} is a name here, not a gap" for m in marks),
        ]
        why = "; ".join([f"the option `{role}`", *filter(None, odd)])
        values = shown(in_order(distinct))
        self._roles[column] = Reading(column, role, why, values, unusual=any(odd))
        return words

    def _refuse_a_second_header(self) -> None:
        """Raise UserError for a row that repeats the header, as in concatenated files."""
        names = self.options.environment, self.options.target
        environment, target = (pc.equal(self.rows.cells(name), name) for name in names)
        row = pc.index(pc.and_(environment, target), True).as_py()
        if row >= 0:
            raise UserError(f"{self.rows.place(row)} repeats the header; leave it out")

    def _test_environments(self) -> tuple[str, ...]:
        if not self.options.test_environments:
            large = tuple(name for name, rows in self.places.items() if len(rows) >= FEW_EXAMPLES)
            return (large or self.environments)[-1:]
        names = [name.strip() for name in self.options.test_environments]
        for name in names:
            if name not in self.environments:
                place = f"test_environments, {self.path}"
                hint = " (a sweep's own `test_environments: each` holds out one after the other)"
                raise unknown("environment", name, self.environments, place, hint)
        return tuple(names)

    def _targets(self) -> tuple[Task, Tensor, tuple[str, ...]]:
        column = self.options.target
        if column in self._roles:
            raise UserError(f"{self.path}: '{column}' is both `environment` and `target`")
        if self.options.kind == "real":
            numbers, reading = self.reader.required_numbers(column, gaps=False)
            if np.ptp(numbers) == 0:
                raise UserError(
                    f"{self.path}: the target '{column}' is {numbers[0]:g} in every row"
                )
            self._roles[column] = replace(reading, kind="target")
            return Task("regression"), torch.from_numpy(numbers.copy()).unsqueeze(1), ()
        words = self._words("target", column)
        classes, names = _numbered(words), tuple(sorted(set(words)))
        self._check_classes(names)
        if len(names) == 2:
            return Task("binary"), classes.float(), names
        return Task("multiclass", len(names)), classes, names

    def _check_classes(self, names: Sequence[str]) -> None:
        """Raise UserError for a single class, and for classes that look like real numbers."""
        where = f"{self.path}: the target '{self.options.target}'"
        if len(names) == 1:
            raise UserError(f"{where} has one class only, '{names[0]}'")
        found = self.reader.numbers(self.options.target)
        if found is not None and len(names) > SEVERAL:
            numbers, _ = found
            if (numbers != numbers.round()).any() or len(names) > MOST:
                raise UserError(
                    f"{where} has {len(names)} different numbers, which would be classes; for a "
                    "regression give the option `kind: real`"
                )
            reading = self._roles[self.options.target]
            are_indices = numbers.min() in (0, 1) and len(names) > np.ptp(numbers)
            if not are_indices:
                why = f"{reading.why}; its {len(names)} numbers are classes: `kind: real` if they measure"
                self._roles[reading.column] = replace(reading, why=why, unusual=True)

    def _split(self) -> Tensor | None:
        if "split" not in self.rows.columns:
            return None
        texts = self.rows.texts("split")
        for row, text in enumerate(texts):
            if text not in SPLITS:
                hint = " (rename the column if it means something else)"
                raise unknown("split", text, SPLITS, self.rows.place(row), hint)
        out, why = torch.tensor([text == "out" for text in texts]), "it replaces the drawn split"
        trained = {n: at for n, at in self.places.items() if n not in self.test_environments}
        lacking = [repr(name) for name, at in trained.items() if not out[at].any()]
        if lacking:
            need = "and rules that select by `out` need some"
            why += f"; no row of {some(lacking, 4)} is `out`, {need}"
        values = shown(sorted({*texts}))
        self._roles["split"] = Reading("split", "split", why, values, unusual=bool(lacking))
        return out


def split_note(environments: Sequence[str]) -> list[str]:
    """A sentence if all of several environments are called like splits."""
    if len(environments) < 2 or not all(map(SPLIT.fullmatch, environments)):
        return []
    text = f"environments are called like splits ({', '.join(environments)}), and splits of one data set "
    return [f"{text}differ by chance alone"]


def one_name(texts: Sequence[str]) -> tuple[list[str], str]:
    """The texts (N,) with one spelling for those that look alike, such as P07 and p07, and a note on it."""
    first = dict[str, str]()
    known = {text: first.setdefault(bare(text), text) for text in sorted({*texts})}
    odd = next(((name, text) for text, name in known.items() if text != name), None)
    note = f"{' and '.join(map(repr, odd))} count as one" if odd else ""
    return [known[text] for text in texts], note


@lru_cache(maxsize=2)
def _cells(path: Path, md5: str, encoding: str, separator: str) -> Cells:
    return Cells(path, encoding, separator)  # `md5` distinguishes other contents


def class_notes(
    classes: Mapping[str, Mapping[str, int]], test_environments: Sequence[str]
) -> list[str]:
    """Sentences on classes that some environments lack, from counts by environment and class."""
    notes = []
    for name, of_here in classes.items():
        size = sum(of_here.values())
        elsewhere = {c for other, them in classes.items() if other != name for c in them}
        only = [c for c in of_here if c not in elsewhere]
        if only and len(classes) > 1:
            count = sum(of_here[c] for c in only)
            notes.append(
                f"only environment '{name}' has the class{'es' * (len(only) > 1)} "
                f"{', '.join(map(repr, only[:5]))}: where it is held out, {count} of its {size} examples "
                "can't be right, as no training environment has them"
            )
    ones = [(name, *of_here) for name, of_here in classes.items() if len(of_here) == 1]
    notes += [f"environment '{n}' has one class only, '{one}'" for n, one in ones[:SHOWN]]
    if len(ones) > SHOWN:
        notes.append(f"{len(ones) - SHOWN} more environments have one class only")
    held_out = [n for n in test_environments if n in classes]
    trained = {c for name, them in classes.items() if name not in held_out for c in them}
    if len(held_out) > 1:
        for name in held_out:
            lost = {c: n for c, n in classes[name].items() if c not in trained}
            if lost:
                which = ", ".join(map(repr, lost))
                notes.append(
                    f"with {', '.join(held_out)} held out, no training environment has {which}: "
                    f"{sum(lost.values())} examples of '{name}' can't be right"
                )
    return notes


def _numbered(texts: Sequence[str] | npt.NDArray[Any]) -> Tensor:
    """Indices (N,) of the texts among the sorted distinct ones."""
    return torch.from_numpy(np.unique(np.asarray(texts, dtype=object), return_inverse=True)[1])
