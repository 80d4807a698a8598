"""A user's table of inputs, targets and environments, in a file."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import torch
from torch import Tensor

from oodbench.columns import EMPTY, IMPUTATIONS, Columns, Reading
from oodbench.data.tables.audit import APART, in_several
from oodbench.data.tables.readings import (
    MOST,
    NAMELESS,
    Numbers,
    counts_rows,
    look_alikes,
    one_spelling,
    shown,
    units,
)
from oodbench.datasets import Environment, Metadata, in_order, register
from oodbench.errors import UserError, unknown
from oodbench.hparams import hparam

from .listed import SEVERAL, Listed

if TYPE_CHECKING:
    import pandas as pd

FILL = (
    "the option `missing: median` (or mean) fills such cells with a statistic of the training rows, and "
    "marks them in an additional input; or leave the row out"
)
NUMBERED = ("row", "no", "nr", "lfd. nr.", "x")
"""Names of columns that are left out if they number the rows, in total or within environments."""
IDENTIFIERS = ("id", "index", "level_0", "idx", "rowname", "rownames")
"""Names of columns that are left out if they hold whole numbers, all distinct in each environment."""


@register(
    "Table",
    Metadata(
        paper="none",
        licence="the file's",
        family="tabular",
        shift="the file's",
        network="MLP",
        steps=2000,
    ),
)
class Table(Listed):
    """Columns of numbers and categories: numbers are standardised, categories one-hot.

    `oodbench.data check Table` prints how each column is read, and why. Columns without a name, row numbers
    and dates are not inputs unless `features` names them.

    Empty numbers are filled by `missing`, and an additional input for each such column is 1 where they were
    empty; an empty category is a category. All estimates are from the rows that a run trains on.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Listed.Options):
        """The file and what its columns mean."""

        features: tuple[str, ...] = hparam(())
        """The columns of inputs; by default all columns that no other option names."""
        categorical: tuple[str, ...] = hparam((), neutral=())
        """The columns of numbers that are categories, such as codes; columns of texts are always
        categories."""
        missing: str = hparam("", options=("", *IMPUTATIONS), neutral="")
        """The statistic that fills empty cells of numbers, the `median` or `mean` of the rows that a run
        trains on; without one, an empty cell is an error."""

    columns: Columns

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        for name in options.features:
            self.rows.cells(name)
            if name in self._roles:
                raise UserError(
                    f"{self.path}: `features` names '{name}', which is the {self._roles[name].kind}; "
                    "leave it out, or have a copy of the column under another name"
                )
        unused = [n for n in self.rows.columns if n not in self._roles]
        given = [n for n in unused if not options.features or n in options.features]
        for name in options.categorical:
            if name not in given:
                raise unknown("column", name, given, f"`categorical`, {self.path}")
        table: dict[str, npt.NDArray[Any]] = {}
        for name in unused:
            if name in given:
                self._roles[name], values = self._read(name)
                if values is not None:
                    table[name] = values
            else:
                self._roles[name] = Reading(name, "left out", "`features` does not name it")
        if options.features:
            table = {name: table[name] for name in options.features if name in table}
        if not table:
            others = [f"'{n}': {self._roles[n].kind}, {self._roles[n].why}" for n in unused]
            listed = "; ".join(["", *others])
            raise UserError(f"{options.file} has no column of inputs{listed}")
        numbers = [name for name in table if table[name].dtype != object]
        self.columns = Columns(
            numbers=tuple(numbers),
            gaps=tuple(name for name in numbers if np.isnan(table[name]).any()),
            categories={n: tuple(sorted(set(table[n]))) for n in table if n not in numbers},
            imputation=options.missing or IMPUTATIONS[0],
        )
        self.input_shape = (len(self.columns.inputs),)
        self.x = self.columns.encoded(table)

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments in the order of the file, as `Columns` encodes them, the same in every trial."""
        return self.examples({name: self.x[places] for name, places in self.places.items()})

    def read(self, new: "pd.DataFrame | str | PathLike[str]") -> Tensor:
        """The inputs (N, columns) of new rows, a data frame or a file with the columns of inputs.

        Other columns are ignored. Raises UserError for a missing column, for a cell that is not a number,
        and for a category, or a gap in a column, that the dataset's file does not have.
        """
        rows = self.further(new)
        table: dict[str, npt.NDArray[Any]] = {}
        for name in self.columns.numbers:
            table[name] = self.reader.more_numbers(name, rows)
            gaps = np.flatnonzero(np.isnan(table[name]))
            if len(gaps) and name not in self.columns.gaps:
                what = f"{rows.place(int(gaps[0]))}: '{name}' is empty"
                raise UserError(
                    f"{what}, and nothing fills it, as no cell of it is empty in {self.path}"
                )
        for name, known in self.columns.categories.items():
            texts = np.array([text or EMPTY for text in rows.cells(name).to_pylist()], dtype=object)
            for row in np.flatnonzero(~np.isin(texts, known))[:1]:
                raise unknown(f"value of '{name}'", texts[row], known, rows.place(int(row)))
            table[name] = texts
        return self.columns.encoded(table)

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """The map to inputs that the columns estimate, see `Columns.fitted`."""
        return self.columns.fitted(torch.cat([e.x for e in training.values()]))

    def _read(self, name: str) -> tuple[Reading, npt.NDArray[Any] | None]:
        """How a column is read and, if it is an input, its texts, or floats with NaN in gaps."""
        options, cells = self.options, self.rows.cells(name)
        if name in options.categorical:
            return self._category(name, "the option `categorical`")
        if self.reader.is_empty(name):
            return Reading(name, "left out", "all its cells are empty", empty=len(cells)), None
        is_named = name in options.features
        if NAMELESS.fullmatch(name) and not is_named:
            why = "it has no name; `features` may name it"
            return Reading(name, "index", why, unusual=True), None
        if self.reader.is_date(name) and not is_named:
            why = "dates are not inputs unless `features` names them"
            distinct = in_order(filter(None, pc.unique(cells).to_pylist()))
            return Reading(name, "date", why, shown(distinct), unusual=True), None
        if (found := self.reader.numbers(name)) is not None:
            return self._number(*found, is_named)
        if self.reader.has_numbers(name):
            self.reader.required_numbers(name, gaps=True)
        return self._category(name, "texts")

    def _number(
        self, numbers: Numbers, reading: Reading, is_named: bool
    ) -> tuple[Reading, Numbers | None]:
        name = reading.column
        of_environments = [numbers[at.numpy()] for at in self.places.values()]
        counts = counts_rows(numbers, of_environments)
        is_index = (counts and name.lower() in NUMBERED) or _identifies(name, of_environments)
        if is_index and not is_named:
            why = f"it {'counts' if counts else 'names'} the rows; `features` may name it"
            if name.lower() == "id" and not counts and len(shared := in_several(of_environments)):
                why += f"; {len(shared)} values are in several environments: {APART}"
            return replace(reading, kind="index", why=why, unusual=True), None
        if counts and not is_named:
            why = f"{reading.why}; it counts the rows: `features` leaves it out"
            reading = replace(reading, why=why, unusual=True)
        gaps = np.flatnonzero(np.isnan(numbers))
        if len(gaps) and not self.options.missing:
            raise UserError(f"{self.rows.place(int(gaps[0]))}: '{name}' is empty; {FILL}")
        return reading, numbers

    def _category(self, name: str, why: str) -> tuple[Reading, npt.NDArray[Any]]:
        cells = self.rows.cells(name).to_pylist()
        texts, (_, note) = np.array(cells, dtype=object), one_spelling(cells)
        empty = int((texts == "").sum())
        alike = look_alikes(texts)
        texts[texts == ""] = EMPTY
        distinct = in_order(set(texts))
        filled = [text for text in distinct if text != EMPTY]
        measured = units(filled) or _odd_numbers(filled)
        if len(distinct) > MOST:
            raise UserError(
                f"{self.path}: '{name}' has {len(distinct):,} categories, and a column may have {MOST}; "
                "name the columns of inputs in the option `features`, or this one in `group` if equal ones "
                f"belong together, such as a patient's{f' ({measured})' * bool(measured)}"
            )
        if name == "group":
            why += "; the option `group` keeps its rows on one side of a split"
        odd = [f"{note}, and not one category: write it alike" if note else ""]
        odd += [alike, measured]
        why = "; ".join([why, *filter(None, odd)])
        is_unusual = any(odd) or name == "group"
        return Reading(name, "category", why, shown(distinct), empty, is_unusual), texts


def _odd_numbers(texts: Sequence[str]) -> str:
    """A clause if many texts hold digits and no letter, such as 120/80; otherwise empty."""
    if len(texts) <= SEVERAL or any(re.search(r"[^\W\d_]|^\D*$", text) for text in texts):
        return ""
    return f"{len(texts)} texts such as {texts[0]} count as words, not as numbers"


def _identifies(name: str, of_environments: Sequence[npt.NDArray[np.float64]]) -> bool:
    return name.lower() in IDENTIFIERS and all(
        (values == values.round()).all() and len(np.unique(values)) == len(values)
        for values in of_environments
    )
