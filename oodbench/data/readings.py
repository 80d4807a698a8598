"""What each column of a user's table is read as, and why."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oodbench.data.cells import Cells
from oodbench.errors import UserError

MARKS = (
    "",
    "NA",
    "N/A",
    "#N/A",
    "n/a",
    "NaN",
    "nan",
    "-nan",
    "NULL",
    "null",
    "None",
    "?",
    "-",
    ".",
)
"""The cells of a column of numbers that are taken for empty, as programs and people write them."""
MOST = 100
"""The most categories of a column: more are rather names or dates."""
GROUPED = r"[ \x{00A0}\x{202F}\x{2019}']"
"""What else separates thousands than a point or a comma."""
EXPONENT = r"([eE][+-]?\d+)?"
DATE = (
    r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2}(\d{2})?)"
    r"([ T]\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?(Z|[+-]\d{2}:?\d{2}|[AaPp][Mm]))?)?$"
)
NAMELESS = re.compile(r"Unnamed: \d+(_level_\d+)?")
OR_ELSE = (
    "; write numbers without their unit, leave the cell empty if the number is missing, or name a "
    "column of categories in the option `categorical`"
)


@dataclass(frozen=True)
class Form:
    """A way to write numbers."""

    decimal: str
    thousands: str
    """A class of characters as in a regular expression; empty if thousands are not separated."""
    said: str

    @cached_property
    def pattern(self) -> str:
        """The regular expression of a number."""
        point = re.escape(self.decimal)
        if not self.thousands:
            return rf"^[+-]?(\d+({point}\d*)?|{point}\d+){EXPONENT}$"
        return rf"^[+-]?(\d{{1,3}}|[1-9]\d{{0,2}}({self.thousands}\d{{3}})+)({point}\d+)?$"

    def numbers(self, cells: pa.Array) -> npt.NDArray[np.float64]:
        """Return the numbers of cells (N,) of this form; NaN where one is null."""
        if self.thousands:
            cells = pc.replace_substring_regex(cells, self.thousands, "")
        if self.decimal != ".":
            cells = pc.replace_substring(cells, self.decimal, ".")
        plain = pc.utf8_ltrim(cells, "+")
        found: npt.NDArray[np.float64] = plain.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return found


POINT = Form(".", "", "numbers")
COMMA = Form(",", "", "numbers with a decimal comma")
FORMS = {
    ".": (POINT, Form(".", ",", "numbers with a comma between thousands")),
    ",": (COMMA, Form(",", r"\.", "numbers with a decimal comma and a point between thousands")),
}
BLANKS = {d: Form(d, GROUPED, "numbers with a blank or ' between thousands") for d in FORMS}


@dataclass(frozen=True)
class Reading:
    """What a column is read as."""

    column: str
    kind: str
    """`number`, `category`, `date`, `index`, `left out`, or an option's name such as `target`."""
    why: str
    values: str = ""
    empty: int = 0
    unusual: bool = False
    """Whether a plan says it."""


@dataclass(frozen=True)
class Numbers:
    """A column of numbers."""

    values: npt.NDArray[np.float64]
    """The numbers (N,), NaN in gaps."""
    form: Form
    marks: tuple[str, ...]
    """The cells that were taken for empty, but for empty ones."""
    codes: bool
    """Whether some begin with a 0 that another digit follows, as postal codes do."""


class Reader:
    """Reads the columns of a table as numbers, dates or texts."""

    def __init__(self, cells: Cells, decimal: str = "") -> None:
        """Take `decimal`, `.` or `,`; it is found from all columns unless it is given."""
        self.table, self.given = cells, decimal
        self.decimal = decimal or self._found_decimal()

    def forms(self) -> list[Form]:
        """Return the forms of numbers, the first that fits first."""
        others = [] if self.given else [f for d in FORMS if d != self.decimal for f in FORMS[d]]
        return [*FORMS[self.decimal], BLANKS[self.decimal], *others]

    def numbers(self, name: str) -> Numbers | None:
        """Return a column as numbers; None if some filled cell is none."""
        cells = self.table.cells(name)
        filled = _filled(cells)
        given = pc.drop_null(filled)
        for form in self.forms() if len(given) else ():
            if pc.all(pc.match_substring_regex(given, form.pattern)).as_py():
                if form is COMMA and not pc.any(pc.match_substring(given, ",")).as_py():
                    form = POINT
                values = form.numbers(filled)
                if np.isinf(values).any():
                    row = int(np.flatnonzero(np.isinf(values))[0])
                    raise UserError(
                        f"{self.table.place(row)}: '{name}' is too large a number, {cells[row]}"
                    )
                marks = pc.unique(cells.filter(pc.is_null(filled))).to_pylist()
                codes = pc.any(pc.match_substring_regex(given, r"^0\d")).as_py()
                return Numbers(values, form, tuple(m for m in marks if m), codes)
        return None

    def required_numbers(self, name: str, *, gaps: bool) -> Numbers:
        """Return a column as numbers; raises UserError, with the line, for another cell.

        An empty one is one unless there may be `gaps`.
        """
        numbers = self.numbers(name)
        if not gaps:
            self.table.texts(name)
        if numbers is None or not (gaps or np.isfinite(numbers.values).all()):
            row, cell = self._odd(name, marks=gaps)
            raise UserError(
                f"{self.table.place(row)}: '{name}' must be a number, not '{cell}'{OR_ELSE}"
            )
        return numbers

    def has_numbers(self, name: str) -> bool:
        """Return whether some cell of a column is a number."""
        given = pc.unique(pc.drop_null(_filled(self.table.cells(name))))
        return any(
            pc.any(pc.match_substring_regex(given, form.pattern)).as_py() for form in self.forms()
        )

    def _odd(self, name: str, *, marks: bool) -> tuple[int, str]:
        """Return the first row whose cell is no number, and the cell."""
        cells = self.table.cells(name)
        best: tuple[int, str] = (-1, "")
        for form in self.forms():
            fits = pc.match_substring_regex(cells, form.pattern).to_numpy(zero_copy_only=False)
            if marks:
                fits = fits | pc.is_null(_filled(cells)).to_numpy(zero_copy_only=False)
            row = int(np.flatnonzero(~fits)[0])
            if row > best[0]:
                best = row, cells[row].as_py()
        return best

    def is_date(self, name: str) -> bool:
        """Return whether all filled cells of a column are dates."""
        given = pc.drop_null(_filled(self.table.cells(name)))
        return bool(len(given)) and pc.all(pc.match_substring_regex(given, DATE)).as_py() is True

    def _found_decimal(self) -> str:
        """Return a comma if some column has numbers with a comma that separates no thousands,
        else a point.
        """
        _, thousands = FORMS["."]
        for cells in self.table.texts_of_columns:
            if not pc.any(pc.match_substring(cells, ",")).as_py():
                continue
            given = pc.drop_null(_filled(cells))
            is_comma = any(
                pc.all(pc.match_substring_regex(given, form.pattern)).as_py()
                for form in (*FORMS[","], BLANKS[","])
            )
            is_grouped = pc.all(pc.match_substring_regex(given, thousands.pattern)).as_py()
            if is_comma and (self.table.separator == ";" or not is_grouped):
                return ","
        return "."


def one_spelling(cells: Sequence[str]) -> tuple[npt.NDArray[np.object_], str]:
    """Return texts (N,) in which one number is written in one way (1 and 1.0), and a note on others."""
    texts = np.array(cells, dtype=object)
    distinct = sorted({*cells} - {""}, key=lambda text: (len(text), text))
    same: dict[float, list[str]] = {}
    if all(re.fullmatch(r"-?(0|[1-9]\d*)(\.\d*)?", text) for text in distinct):
        for text in distinct:
            same.setdefault(float(text), []).append(text)
    if len(same) in (0, len(distinct)):
        return texts, ""
    first = {text: written[0] for written in same.values() for text in written}
    several = next(written for written in same.values() if len(written) > 1)
    note = f"{' and '.join(several)} are the same number"
    return np.array([first.get(text, text) for text in cells], dtype=object), note


def _filled(cells: pa.Array) -> pa.Array:
    """Return the cells of a column of numbers, null where one is empty."""
    is_mark = pc.is_in(cells, pa.array(MARKS))
    return pc.if_else(is_mark, pa.scalar(None, pa.string()), cells)


def reading_of_numbers(name: str, numbers: Numbers, separator: str) -> Reading:
    """Describe a column of numbers."""
    filled = numbers.values[~np.isnan(numbers.values)]
    empty = len(numbers.values) - len(filled)
    why = [numbers.form.said]
    unusual = numbers.form is not POINT
    if numbers.form is FORMS["."][1]:
        why.append("`decimal=,` if it is a decimal one")
    if numbers.marks:
        why.append(f"{', '.join(numbers.marks)} taken for empty")
        unusual = True
    if numbers.codes:
        why.append("some begin with 0: `categorical` if they are codes")
        unusual = True
    if separator != "," and numbers.form is POINT and _looks_grouped(filled):
        why.append("all have three digits after the point: `decimal=,` if it separates thousands")
        unusual = True
    if counts_rows(numbers.values):
        why.append("it counts the rows: `features` leaves it out")
        unusual = True
    values = f"{filled.min():.5g} to {filled.max():.5g}"
    return Reading(name, "number", "; ".join(why), values, empty, unusual)


def counts_rows(values: npt.NDArray[np.float64]) -> bool:
    """Return whether numbers are those of the rows, from 0 or 1 on."""
    start = values[0] if len(values) > 2 else np.nan
    return start in (0, 1) and bool((values == np.arange(start, start + len(values))).all())


def _looks_grouped(filled: npt.NDArray[np.float64]) -> bool:
    """Return whether numbers may be thousands whose point was taken for a decimal one."""
    thousands = filled * 1000
    whole = np.abs(thousands - thousands.round()) < 1e-6
    return bool(whole.all() and (filled >= 1).all() and (filled != filled.round()).any())


def shown(texts: Sequence[str]) -> str:
    """List some distinct texts, and how many there are."""
    some = ", ".join(texts[:4])
    return some if len(texts) <= 4 else f"{len(texts)}: {some}, ..."


def class_notes(
    classes: Mapping[str, Mapping[str, int]], test_environments: Sequence[str]
) -> list[str]:
    """Return sentences on the classes that not all environments have.

    `classes` has the number of examples of each class by environment and class.
    """
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
        if len(of_here) == 1:
            (one,) = of_here
            notes.append(f"environment '{name}' has one class only, '{one}'")
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
