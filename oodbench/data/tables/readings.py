"""What each column of a user's table is read as, and why."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oodbench.columns import Reading
from oodbench.data.tables.cells import BLANKS, Cells
from oodbench.errors import UserError

MARKS = (
    *("", "?", "-", "--", "\u2013", "\u2014", ".", "..", "...", "*", "#"),
    *"na n/a #n/a n.a. #na <na> nat nan -nan null (null)".split(),
    *r"#null! #div/0! #value! #ref! #name? #num! 1.#ind -1.#ind 1.#qnan -1.#qnan \n".split(),
)
"""Cells that mean a gap in a column of numbers, in lower case."""
WORDS = (
    *("k. a.", "not available", "not applicable", "no data"),
    *"none nil missing unknown n/d n.d. k.a. nodata".split(),
)
"""Words that mean a gap among numbers, and are names anywhere else."""
MOST = 100
"""The most categories of a column; a column of more texts probably holds names or dates."""
GROUPED = r"[ \x{00A0}\x{202F}\x{2019}']"
"""Separators of thousands other than a point or a comma."""
EXPONENT = r"([eE][+-]?\d+)?"
MONTH = (
    r"(?i:jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|"
    r"oct(ober)?|nov(ember)?|dec(ember)?)\.?"
)
DAY = r"(?i:mon|tue(s)?|wed(nes)?|thu(rs)?|fri|sat(ur)?|sun)(day)?\.?"
DATE = (
    r"^((19|20)\d{2}[-/](0[1-9]|1[0-2])|(19|20)\d{2}[-/ ]?[QW]\d{1,2}|Q[1-4][-/ ]?(19|20)\d{2}"
    r"|\d{1,2}\.? (de )?\p{L}{3,10}\.? (de )?(19|20)\d{2}"
    r"|\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2}(\d{2})?"
    r"|(19|20)\d{2}(0[1-9]|1[0-2])([0-2]\d|3[01])"
    rf"|({DAY},? )?(\d{{1,2}}\.?[- ])?{MONTH}[-, ]+(\d{{1,2}},? +)?\d{{2,4}}"
    rf"|\d{{4}}[- ]{MONTH}([- ]\d{{1,2}})?)"
    r"([ T]\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?(Z|GMT|UTC|[+-]\d{2}:?\d{2}|[AaPp][Mm]))?)?$"
)
QUOTES = "\"'`\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb"
"""Quotes, which do not count when texts are compared."""
CYRILLIC = str.maketrans("\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456", "aeopcyxi")
"""Cyrillic letters that look like Latin ones."""
LABELS = re.compile(r"\s*[|;,&+]\s*|(?<=\d) (?=\d)")
"""Separators of several labels in a cell."""
SAME = {"true": "1", "yes": "1", "false": "0", "no": "0"}
"""Words that mean the same as a number."""
NAMELESS = re.compile(r"(Unnamed: \d+(_level_\d+)?|__index_level_\d+__|\.\.\.\d+)(\.\d+)?")
"""The names that pandas and readr give to columns without a name."""
AFFIXED = re.compile(
    r"([+-]?)([$€£¥]? ?)([+-]?[\d.,'\u2019\u00a0\u202f ]*\d)( ?(?:[%‰°$€£¥]|[^\W\d_])\D*)?"
)
"""A number with a sign of currency before it, or a unit behind it."""
CODE = re.compile(
    r"-?(([6-9])\2+(\.9+)?|9{1,3}[6-9]|3276[78]|214748364[78])|0|-[1789]|6553[45]|429496729[56]"
)
"""A number that may stand for a gap: 77, -999, 9998, -9, the ends of the integers of a computer."""
REPEATED = 10
"""A value that stands for a gap occurs at least so often, unless it looks like a code."""
HUGE = 9e19
"""Larger numbers stand for a gap, such as NetCDF's 9.97e36 and the 1e20 of climate models."""
LONG = r"^[+-]?\d{16,}$"
"""A whole number with more digits than a float holds."""
GROUPS = r"^(\d{1,3}|[1-9]\d{0,2}(\.\d{3})+)$"
"""A number of at most three digits, or with a point after every three."""
BOOKED = r"^(?:\(([^()+-]*\d[^()+-]*)\)|([^()+-]*\d)-)$"
"""A negative number as bookkeepers write it, (5) or 5-."""
PLAIN = "; write plain numbers, without units or signs such as <, "
OR_ELSE = (
    "leave the cell empty if the number is missing, or name a column of categories in the option "
    "`categorical`"
)


Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Form:
    """A way to write numbers."""

    decimal: str
    thousands: str
    """A regular expression for the separator of thousands; empty without a separator."""
    said: str
    """The description in notes."""

    @cached_property
    def pattern(self) -> str:
        """The regular expression for a number."""
        point = re.escape(self.decimal)
        if not self.thousands:
            return rf"^[+-]?(\d+({point}\d*)?|{point}\d+){EXPONENT}$"
        return rf"^[+-]?(\d{{1,3}}|[1-9]\d{{0,2}}({self.thousands}\d{{3}})+)({point}\d+)?$"

    def fits(self, cells: pa.Array) -> bool:
        """Whether there are cells that are not null, and all of them are of this form."""
        given = pc.drop_null(cells)
        return len(given) > 0 and pc.all(pc.match_substring_regex(given, self.pattern)).as_py()

    def numbers(self, cells: pa.Array) -> Numbers:
        """The numbers (N,) in cells of this form; NaN for null."""
        if self.thousands:
            cells = pc.replace_substring_regex(cells, self.thousands, "")
        if self.decimal != ".":
            cells = pc.replace_substring(cells, self.decimal, ".")
        plain = pc.utf8_ltrim(cells, "+")
        found: Numbers = plain.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return found


POINT = Form(".", "", "numbers")
COMMA = Form(",", "", "numbers with a decimal comma")
FORMS = {
    ".": (POINT, Form(".", ",", "numbers with a comma between thousands")),
    ",": (COMMA, Form(",", r"\.", "numbers with a decimal comma and a point between thousands")),
}
SPACED = {d: Form(d, GROUPED, "numbers with a blank or ' between thousands") for d in FORMS}


class Reader:
    """Reads the columns of a table as numbers, dates or texts."""

    def __init__(self, cells: Cells, decimal: str, rows: Mapping[str, Sequence[int]]) -> None:
        """Take the decimal sign, which is detected if empty, and the `rows` of each environment."""
        self.table, self._rows = cells, rows
        self.forms = [*FORMS[decimal], SPACED[decimal]] if decimal else self._found_forms()
        """The forms of numbers in the order in which they are tried."""
        self._written: dict[str, tuple[Form, str]] = {}
        """The form and the unit of each column that was read as numbers."""

    def numbers(self, name: str) -> tuple[Numbers, Reading] | None:
        """A column as numbers (N,), NaN in gaps, and its reading; None if some cell is not a number."""
        cells = self.table.cells(name)
        values = _plain_numbers(cells) if self.forms[0] is POINT else None
        filled, unit, form = cells, "", POINT
        if values is None:
            filled = _filled(cells)
            found = self._form_of(filled)
            if found is None:
                filled, unit = _without_unit(filled)
                found = self._form_of(filled) if unit else None
            if found is None:
                return None
            form, values = found, found.numbers(filled)
        takes_commas = self.forms[0] is COMMA and COMMA.fits(filled)
        self._written[name] = COMMA if takes_commas else form, unit
        if np.isinf(values).any():
            row = int(np.flatnonzero(np.isinf(values))[0])
            raise UserError(f"{self.table.place(row)}: '{name}' is too large: {cells[row]}")
        given, why = values[~np.isnan(values)], [form.said]
        if form is not POINT and (odd := self._spellings(filled, may_agree=True)):
            why.append(odd)
        elif form is FORMS["."][1]:
            why.append("`decimal=,` if it is a decimal one")
        if marks := [m for m in pc.unique(cells.filter(pc.is_null(filled))).to_pylist() if m]:
            why.append(f"{', '.join(marks)} taken for empty")
        if booked := _booked(cells):
            why.append(f"{booked[0]} and the like are negative")
        if unit:
            why.append(f"all are in '{unit}'")
        if form is POINT:
            why += _doubts(pc.drop_null(filled), self.table.separator)
        if np.abs(given).max() > 2**53 and pc.any(pc.match_substring_regex(filled, LONG)).as_py():
            why.append("more than 15 digits are rounded: `features` leaves out columns of codes")
        why += _far_codes(given)
        shown, gaps = f"{given.min():.5g} to {given.max():.5g}", len(values) - len(given)
        is_unusual = form is not POINT or len(why) > 1
        return values, Reading(name, "number", "; ".join(why), shown, gaps, is_unusual)

    def more_numbers(self, name: str, cells: Cells) -> Numbers:
        """A column of new rows as numbers (N,), NaN in gaps; they must have the form of the table's own.

        Raises UserError, with the line, for any other cell.
        """
        form, unit = self._written[name]
        if self.table.is_text and not cells.is_text:  # Python's own numbers
            form = POINT
        filled = _filled(cells.cells(name))
        if unit and _without_unit(filled)[1] == unit:
            filled = _without_unit(filled)[0]
        row = pc.index(pc.match_substring_regex(filled, form.pattern), False).as_py()
        if row >= 0:
            like = f", as in {self.table.path}" + f" in '{unit}'" * bool(unit)
            cell = cells.cells(name)[row]
            raise UserError(f"{cells.place(row)}: '{name}' must be a number{like}, not '{cell}'")
        return form.numbers(filled)

    def _form_of(self, filled: pa.Array) -> Form | None:
        form = next((form for form in self.forms if form.fits(filled)), None)
        has_comma = form is COMMA and pc.any(pc.match_substring(filled, ",")).as_py()
        return POINT if form is COMMA and not has_comma else form

    def required_numbers(self, name: str, *, gaps: bool) -> tuple[Numbers, Reading]:
        """A column as numbers, and its reading; gaps are allowed if `gaps`.

        Raises UserError, with the line, for a cell that is not a number.
        """
        found, cells = self.numbers(name), self.table.cells(name)
        if not gaps:
            self.table.texts(name)
        if found is None:
            empty = pc.and_(pc.is_null(_filled(cells)), gaps)
            plain = _with_hyphens(cells)
            fits = [pc.or_(pc.match_substring_regex(plain, f.pattern), empty) for f in self.forms]
            row = max(pc.index(each, False).as_py() for each in fits)
        elif not gaps and np.isnan(found[0]).any():
            row = int(np.flatnonzero(np.isnan(found[0]))[0])
        else:
            return found
        what = f"'{name}' must be a number, not '{cells[row]}'"
        odd = self._spellings(_with_hyphens(cells), may_agree=False)
        or_else = PLAIN + (OR_ELSE if gaps else "or leave the row out")
        raise UserError(f"{self.table.place(row)}: {what}{f'; {odd}' if odd else or_else}")

    def _spellings(self, cells: pa.Array, *, may_agree: bool) -> str:
        """A clause on two environments that write numbers differently, such as 1.234 and 1,234, or nothing.

        With `may_agree`, a cell such as 1,234.5 shows that both signs belong to one form.
        """
        written = {sign: pc.match_substring_regex(cells, rf"\d[{sign}]\d+$") for sign in ".,"}
        if not all(pc.any(matches).as_py() for matches in written.values()):
            return ""
        if may_agree and pc.any(pc.match_substring_regex(cells, r"\d([.]\d+,|,\d+[.])")).as_py():
            return ""
        first: dict[str, tuple[str, str]] = {}
        for name, rows in self._rows.items():
            at = pa.array(rows)
            found = {s: pc.index(m.take(at), True).as_py() for s, m in written.items()}
            signs = [sign for sign, index in found.items() if index >= 0]
            if len(signs) == 1:
                first.setdefault(signs[0], (name, str(cells[int(rows[found[signs[0]]])])))
        if len(first) < 2:
            return ""
        (one, text), (other, another) = first.values()
        return f"environment '{one}' writes {text} and '{other}' {another}: write numbers alike everywhere"

    def has_numbers(self, name: str) -> bool:
        """Whether some cell of a column is a number."""
        given = pc.unique(pc.drop_null(_filled(self.table.cells(name))))
        fits = (pc.match_substring_regex(given, form.pattern) for form in self.forms)
        return any(pc.any(each).as_py() for each in fits)

    def is_empty(self, name: str) -> bool:
        """Whether all cells of a column are empty or marks of gaps."""
        cells = self.table.cells(name)
        if not _filled(cells[:1]).null_count:  # a fast test
            return False
        return bool(_filled(cells).null_count == len(cells))

    def is_date(self, name: str) -> bool:
        """Whether all filled cells of a column are dates."""
        cells = self.table.cells(name)
        first = next((text for text in map(str, cells) if text.lower() not in MARKS), "")
        if not pc.match_substring_regex(pa.scalar(first), DATE).as_py():  # a fast test
            return False
        return pc.all(pc.match_substring_regex(pc.drop_null(_filled(cells)), DATE)).as_py() is True

    def _found_forms(self) -> list[Form]:
        """All forms; those with a decimal comma come first if some column needs it.

        If another column needs a point, plain numbers come first: others may be answers such as "1,3".
        """
        (_, thousands), of_commas = FORMS["."], [*FORMS[","], SPACED[","]]
        columns = [
            (c, pc.any(pc.match_substring(c, ",")).as_py()) for c in self.table.texts_of_columns
        ]
        chosen, needs_point = ".", False
        for cells, has_comma in columns if any(has for _, has in columns) else ():
            filled = _filled(cells)
            if not any(form.fits(filled) for form in of_commas):
                needs_point |= POINT.fits(filled)
            elif has_comma and (self.table.separator == ";" or not thousands.fits(filled)):
                chosen = ","
        if chosen == ".":
            return [*FORMS["."], SPACED["."], *FORMS[","]]
        return (
            [COMMA, POINT, *of_commas[1:], thousands] if needs_point else [*of_commas, *FORMS["."]]
        )


def one_spelling(cells: Sequence[str]) -> tuple[npt.NDArray[np.object_], str]:
    """The texts (N,) with one spelling of equal numbers such as 1 and 1.0, and a note on the first two."""
    texts = np.array(cells, dtype=object)
    distinct = sorted({*cells} - {""}, key=lambda text: (len(text), text))
    same: dict[Decimal, list[str]] = {}
    if all(re.fullmatch(r"-?(0|[1-9]\d*)(\.\d*)?", text) for text in distinct):
        for text in distinct:
            same.setdefault(Decimal(text), []).append(text)  # a float would lose digits
    if len(same) in (0, len(distinct)):
        return texts, ""
    first = {text: written[0] for written in same.values() for text in written}
    several = next(written for written in same.values() if len(written) > 1)
    note = f"{' and '.join(several)} are the same number"
    return np.array([first.get(text, text) for text in cells], dtype=object), note


def _plain_numbers(cells: pa.Array) -> Numbers | None:
    """The numbers (N,) if all cells are plain ones, which need no pattern, or None."""
    try:
        numbers: Numbers = cells.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _with_hyphens(cells: pa.Array) -> pa.Array:
    """The cells with a hyphen as the minus sign, also for (5) and 5-, see `BOOKED`."""
    cells = pc.replace_substring(cells, "\u2212", "-")
    return pc.replace_substring_regex(cells, BOOKED, r"-\1\2") if _booked(cells) else cells


def _booked(cells: pa.Array) -> list[str]:
    """The distinct cells that match `BOOKED`; none if every cell looks like that."""
    may_be = pc.or_(pc.starts_with(cells, "("), pc.ends_with(cells, "-"))
    found = pc.unique(cells.filter(may_be)) if not pc.all(may_be).as_py() else []
    return [text for text in map(str, found) if re.match(BOOKED, text)]


def _filled(cells: pa.Array) -> pa.Array:
    cells = _with_hyphens(cells)
    is_mark = pc.is_in(pc.utf8_lower(cells), pa.array((*MARKS, *WORDS)))
    return pc.if_else(is_mark, pa.scalar(None, pa.string()), cells)


def look_alikes(texts: Iterable[str]) -> str:
    """A clause on the first texts that look equal to people, such as `Yes` and `yes`, or nothing."""
    same: dict[str, list[str]] = {}
    for text in sorted(set(texts)):
        plain = bare(text)
        same.setdefault("" if plain in MARKS else SAME.get(plain, plain), []).append(text)
    several = next((written for written in same.values() if len(written) > 1), ())
    return f"{' and '.join(map(repr, several))} count as different" if several else ""


def several_labels(names: Collection[str]) -> str:
    """A clause on the first class, such as `cat|dog`, whose parts are also in other classes, or nothing."""
    parts = {name: [part.strip() for part in LABELS.split(name.strip("[](){}"))] for name in names}
    counts = Counter(part for each in parts.values() for part in {*each})
    several = [name for name, each in parts.items() if len(each) > 1]
    sure = [name for name in several if all(part and counts[part] > 1 for part in parts[name])]
    if (
        not sure
        or 2 * len(sure) < len(several)
        or all(re.fullmatch(r"\d+([.,]\d+)?", n) for n in names)
    ):
        return ""
    hint = "several labels an example need a dataset with the task `multilabel`"
    return f"{sure[0]!r} counts as a class: {hint}"


def bare(text: str) -> str:
    """A text without the differences that people overlook: case, quotes, hyphens, leading zeros."""
    plain = unicodedata.normalize("NFKC", text).casefold().translate(CYRILLIC)
    seen = "".join(c for c in plain if unicodedata.category(c) != "Cf")
    seen = seen.strip(f"{BLANKS}{QUOTES}")
    return re.sub(r"(?<=\w)[\s_-]+(?=[^\W\d])|\.$|^0+(?=\d)", "", seen)


def units(texts: Iterable[str]) -> str:
    """A clause on the units of texts if each is a number with a unit, or nothing."""
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
    fits = (pc.match_substring_regex(some, GROUPS) for some in (given[:100], given))  # fast
    has_point = pc.match_substring(given, ".")
    # programs that write decimals leave out zeros at the end, so that few have exactly three digits
    if all(pc.all(each).as_py() for each in fits) and pc.any(has_point).as_py():
        if separator != "," or not pc.all(has_point).as_py():
            said.append("three digits follow every point: `decimal=,` if it separates thousands")
    return said


def _far_codes(filled: Numbers) -> list[str]:
    ends = filled.min(), filled.max()
    if not any(_is_code(end) or (filled == end).sum() >= REPEATED for end in ends):
        return []
    values, counts = np.unique(filled, return_counts=True)
    may_be = np.full(len(values), False)
    for i in {*range(len(values))[:4], *range(len(values))[-4:]}:
        may_be[i] = _is_code(values[i])
    most = int(counts.argmax())
    if most in (0, len(values) - 1) and counts[most] >= REPEATED and len(values) > 2 * REPEATED:
        may_be[most] = True
    others = values[~may_be]
    if not len(others):
        return []
    if len(others) < REPEATED:  # 0 and -1 are usual numbers even if there are few others
        may_be &= ~np.isin(values, (0, -1))
    apart = np.maximum(others.min() - values, values - others.max())
    far = [f"{v:g}" for v in values[may_be & (apart > np.ptp(others))]]
    are = "are" if len(far) > 1 else "is"
    said = f"{', '.join(far)} {are} far from all others: leave such cells empty if they are gaps"
    return [said] * bool(far)


def _is_code(value: float) -> bool:
    return abs(value) > HUGE or CODE.fullmatch(f"{value:.15g}") is not None


def counts_rows(values: Numbers, of_environments: Iterable[Numbers]) -> bool:
    """Whether numbers (N,) count the rows of the table or of each environment, starting at 0 or 1."""

    def counts(values: Numbers) -> bool:
        start = values[0]
        return start in (0, 1) and np.array_equal(values, np.arange(start, start + len(values)))

    return len(values) > 2 and (counts(values) or all(map(counts, of_environments)))


def shown(texts: Sequence[str]) -> str:
    """Up to four of the texts, after their number if there are more."""
    some = ", ".join(texts[:4])
    return some if len(texts) <= 4 else f"{len(texts)}: {some}, ..."
