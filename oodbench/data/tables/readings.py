"""What each column of a user's table is read as, and why."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oodbench.data.tables.cells import Cells
from oodbench.errors import UserError

MARKS = ("", *"NA N/A #N/A n/a NaN nan -nan NULL null None ? - .".split())
"""The cells of a column of numbers that are taken for empty, as programs and people write them."""
MOST = 100
"""The most categories of a column: more are rather names or dates."""
GROUPED = r"[ \x{00A0}\x{202F}\x{2019}']"
"""What else separates thousands than a point or a comma."""
EXPONENT = r"([eE][+-]?\d+)?"
MONTH = (
    r"(?i:jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|"
    r"oct(ober)?|nov(ember)?|dec(ember)?)\.?"
)
DATE = (
    r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2}(\d{2})?"
    r"|(19|20)\d{2}(0[1-9]|1[0-2])([0-2]\d|3[01])"
    rf"|(\d{{1,2}}\.?[- ])?{MONTH}[-, ]+(\d{{1,2}},? +)?\d{{2,4}}|\d{{4}}[- ]{MONTH}([- ]\d{{1,2}})?)"
    r"([ T]\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?(Z|[+-]\d{2}:?\d{2}|[AaPp][Mm]))?)?$"
)
NAMELESS = re.compile(r"(Unnamed: \d+(_level_\d+)?|__index_level_\d+__|\.\.\.\d+)(\.\d+)?")
"""What pandas and readr call columns without a name."""
AFFIXED = re.compile(
    r"([+-]?)([$€£¥]? ?)([+-]?[\d.,'\u2019\u00a0\u202f ]*\d)( ?(?:[%‰°$€£¥]|[^\W\d_])\D*)?"
)
"""A number with a sign of currency before it, or a unit behind it."""
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
        """The numbers of cells (N,) of this form; NaN where one is null."""
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
    doubts: tuple[str, ...]
    """What else the cells could be, as postal codes begin with a 0 that another digit follows."""


class Reader:
    """Reads the columns of a table as numbers, dates or texts."""

    def __init__(self, cells: Cells, decimal: str = "") -> None:
        """Take `decimal`, `.` or `,`; it is found from all columns unless it is given."""
        self.table, self.given = cells, decimal
        self.decimal = decimal or self._found_decimal()

    def forms(self) -> list[Form]:
        """The forms of numbers, the first that fits first."""
        others = [] if self.given else [f for d in FORMS if d != self.decimal for f in FORMS[d]]
        return [*FORMS[self.decimal], BLANKS[self.decimal], *others]

    def numbers(self, name: str) -> Numbers | None:
        """A column as numbers; None if a filled cell is not a number."""
        cells, unit = self.table.cells(name), ""
        filled = _filled(cells)
        form = self._form_of(filled)
        if form is None:
            filled, unit = _without_unit(filled)
            form = self._form_of(filled) if unit else None
        if form is None:
            return None
        values = form.numbers(filled)
        if np.isinf(values).any():
            row = int(np.flatnonzero(np.isinf(values))[0])
            raise UserError(
                f"{self.table.place(row)}: '{name}' is too large a number, {cells[row]}"
            )
        marks = pc.unique(cells.filter(pc.is_null(filled))).to_pylist()
        doubts = [f"all are in '{unit}'"] if unit else []
        if form is POINT:
            doubts += _doubts(pc.drop_null(filled), self.table.separator)
        doubts += _far_nines(values[~np.isnan(values)])
        return Numbers(values, form, tuple(m for m in marks if m), tuple(doubts))

    def _form_of(self, filled: pa.Array) -> Form | None:
        given = pc.drop_null(filled)
        for form in self.forms() if len(given) else ():
            if pc.all(pc.match_substring_regex(given, form.pattern)).as_py():
                has_comma = pc.any(pc.match_substring(given, ",")).as_py()
                return POINT if form is COMMA and not has_comma else form
        return None

    def required_numbers(self, name: str, *, gaps: bool) -> Numbers:
        """A column as numbers; raises UserError, with the line, for another cell.

        An empty one is one unless there may be `gaps`.
        """
        numbers = self.numbers(name)
        if not gaps:
            self.table.texts(name)
        if numbers is None or not (gaps or np.isfinite(numbers.values).all()):
            row, cell = self._odd(name, marks=gaps)
            if numbers is not None:
                row = int(np.flatnonzero(np.isnan(numbers.values))[0])
                cell = self.table.cells(name)[row].as_py()
            raise UserError(
                f"{self.table.place(row)}: '{name}' must be a number, not '{cell}'{OR_ELSE}"
            )
        return numbers

    def has_numbers(self, name: str) -> bool:
        """Whether some cell of a column is a number."""
        given = pc.unique(pc.drop_null(_filled(self.table.cells(name))))
        return any(
            pc.any(pc.match_substring_regex(given, form.pattern)).as_py() for form in self.forms()
        )

    def _odd(self, name: str, *, marks: bool) -> tuple[int, str]:
        cells = self.table.cells(name)
        empty = pc.and_(pc.is_null(_filled(cells)), marks)
        plain = _with_hyphens(cells)
        fits = [pc.or_(pc.match_substring_regex(plain, f.pattern), empty) for f in self.forms()]
        row = max(pc.index(each, False).as_py() for each in fits)
        return row, cells[row].as_py()

    def is_date(self, name: str) -> bool:
        """Whether all filled cells of a column are dates."""
        cells = self.table.cells(name)
        first = next((text for text in map(str, cells) if text not in MARKS), "")
        if not re.match(DATE, first):  # such as most columns of numbers
            return False
        return pc.all(pc.match_substring_regex(pc.drop_null(_filled(cells)), DATE)).as_py() is True

    def _found_decimal(self) -> str:
        """A comma if some column's numbers have one that separates no thousands, else a point."""
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
    """The texts (N,) with each number written in one way (not 1 and 1.0), and a note if some were not."""
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


def _with_hyphens(cells: pa.Array) -> pa.Array:
    return pc.replace_substring(cells, "\u2212", "-")


def _filled(cells: pa.Array) -> pa.Array:
    cells = _with_hyphens(cells)
    is_mark = pc.is_in(cells, pa.array(MARKS))
    return pc.if_else(is_mark, pa.scalar(None, pa.string()), cells)


def look_alikes(texts: Iterable[str]) -> str:
    """A clause on the first texts that people could take for the same, such as `Yes` and `yes`."""
    same: dict[str, list[str]] = {}
    for text in sorted(set(texts)):
        plain = unicodedata.normalize("NFKC", text).casefold()
        seen = "".join(c for c in plain if unicodedata.category(c) != "Cf")
        bare = re.sub(r"(?<=\w)[\s_-]+(?=[^\W\d])|\.$", "", seen)
        same.setdefault(bare, []).append(text)
    several = next((written for written in same.values() if len(written) > 1), ())
    return f"{' and '.join(map(repr, several))} are told apart" if several else ""


def units(texts: Iterable[str]) -> str:
    """A clause on the different units in which all of some texts are numbers."""
    found = [AFFIXED.fullmatch(text) for text in texts]
    named = {f"{match[2]}{match[4] or ''}".strip() for match in found if match}
    return f"numbers in {', '.join(sorted(named))}" if all(found) and "" not in named else ""


def _without_unit(filled: pa.Array) -> tuple[pa.Array, str]:
    given = pc.drop_null(filled)
    first = AFFIXED.fullmatch(given[0].as_py()) if len(given) else None
    if first is None:
        return filled, ""
    before, after = first[2].strip(), (first[4] or "").strip()
    pattern = rf"^([+-]?){re.escape(before)} ?([^ ].*?) ?{re.escape(after)}$"
    if not (before or after) or not pc.all(pc.match_substring_regex(given, pattern)).as_py():
        return filled, ""
    return pc.replace_substring_regex(filled, pattern, r"\1\2"), f"{before}{after}"


def _doubts(given: pa.Array, separator: str) -> list[str]:
    said = []
    if pc.any(pc.match_substring_regex(given, r"^0\d")).as_py():
        said.append("some begin with 0: `categorical` if they are codes")
    grouped = separator != "," and pc.match_substring_regex(given, r"^[1-9]\d{0,2}\.\d{3}$")
    if grouped and pc.all(grouped).as_py():
        said.append("all have three digits after the point: `decimal=,` if it separates thousands")
    return said


def _far_nines(filled: npt.NDArray[np.float64]) -> list[str]:
    """A clause on -999 or the like where it is far from all other numbers."""
    for value in (filled.min(), filled.max()):
        others = filled[filled != value]
        if re.fullmatch("-99+|999+", f"{value:.15g}") and len(others):
            if np.abs(others - value).min() > np.ptp(others):
                return [f"{value:g} is far from all others: leave its cells empty if they are gaps"]
    return []


def reading_of_numbers(name: str, numbers: Numbers) -> Reading:
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
    values = f"{filled.min():.5g} to {filled.max():.5g}"
    unusual = unusual or bool(numbers.doubts)
    return Reading(name, "number", "; ".join([*why, *numbers.doubts]), values, empty, unusual)


def counts_rows(
    values: npt.NDArray[np.float64], of_environments: Iterable[npt.NDArray[np.float64]]
) -> bool:
    """Whether numbers (N,) count the rows from 0 or 1 on, or those of each environment."""

    def counts(values: npt.NDArray[np.float64]) -> bool:
        start = values[0]
        return start in (0, 1) and bool((values == np.arange(start, start + len(values))).all())

    return len(values) > 2 and (counts(values) or all(map(counts, of_environments)))


def shown(texts: Sequence[str]) -> str:
    """List some distinct texts, and how many there are."""
    some = ", ".join(texts[:4])
    return some if len(texts) <= 4 else f"{len(texts)}: {some}, ..."
