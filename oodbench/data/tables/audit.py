"""Audits of a table's columns: identifiers, leaks of the target, other units, what one side lacks."""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from oodbench.columns import EMPTY, Columns
from oodbench.data.streams import Stored
from oodbench.datasets import Environment
from oodbench.errors import some
from oodbench.notes import Finding
from oodbench.tasks import Task

FEW_EXAMPLES, FEW = 30, 10
"""Metrics are coarse for an environment, or for a group or class, with fewer examples."""
MULTIPLE = 8
"""Environments whose means differ by this factor may use different units."""
CONVERSIONS = (1.0, 273.15), (1.8, 32.0), *((f, 0.0) for f in (2.54, 2.2046, 1.6093, 3.2808))
"""Factors and offsets between common units: inches, pounds, miles, feet; degrees."""
CODES = {0, 1}, {1, 2}, {-1, 1}
"""Usual codes of two things, such as women and men."""
TEMPERATURE = re.compile(r"t(emp|max|min|avg|mean)|°|degrees|celsius|fahrenheit", re.IGNORECASE)
"""The beginning of the name of a column that may hold temperatures."""
ALIKE = 1.3
"""A conversion of units changes the spread by its factor, up to this one."""
SAMPLE = 20_000
"""Columns are judged by at most about this many rows."""
MANY, SEVERAL = 20, 10
"""The least number of different values of an identifier, without and with the name of one."""
APART = (
    "if these are patients or things, `group` with `group_across: drop` keeps them out of training"
)
MEANINGLESS = ("an identifier", "an environment column")
"""Findings on columns in which copies of an example may differ; `counts` names these columns."""
COUNTED = re.compile(r"(.*\D)\d{3,}")
"""A text that may be the number of a person or a thing, such as P0012."""
UNIT = (
    "patient(en)?|proband(en)?|subject|participant|respondent|person|customer|client|user|case|sample"
    "|employee|student|pupil|player|athlete|driver|donor|station"
)
THING = "household|animal|cow|tree|plot|farm|specimen|device|machine|vehicle"
"""Words that are also used for kinds and counts, and so only name identifiers with a word for number."""
NUMBER = r"(id|no|nr|num|nbr|number|nummer|#)\.?"
NAMED = re.compile(
    rf"({UNIT})([\W_]?{NUMBER})?|(.*[\W_])?(uu?id|mrn|id)|(subj|pt|p|r|hh)id|id[\W_]?{NUMBER}"
    rf"|({THING})[\W_]?{NUMBER}|ticker|isin|cusip|permno|gvkey"
    r"|(?-i:[a-z]+I[dD])",
    re.IGNORECASE,
)
"""The name of a column that may hold identifiers."""
TIMES = re.compile(r"(.*[\W_])?(unix|epoch|date|time|datetime|timestamp)([\W_].*)?", re.IGNORECASE)
"""The name of a column that may hold times, which are no measurements."""
EXACT, ROUNDING = 1e-3, 1e-9
"""A sum of columns is the target if it leaves less of its variance; the least deviation."""
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """The rows of a table by which its columns are judged, all or a sample."""

    x: Array
    """Encoded rows (N, columns), as `Columns` describes them."""
    y: Array
    """Targets (N, C)."""
    environment: Array
    """The number of each row's environment, (N,), in ascending order."""
    environments: Sequence[str]
    training: Sequence[str]
    """The environments by which it is judged what tells the target."""
    columns: Columns
    said: str
    """The number of rows if they are a sample, to be said in findings."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of `x`."""
        return names_of(self.columns, self.x.shape[1])

    def known(self, name: str) -> Array:
        """Mask (N,) of the rows without a gap in a column."""
        if name not in self.columns.gaps:
            return np.full(len(self.x), True)
        return np.asarray(self.x[:, self.names.index(f"{name} {EMPTY}")] == 0)


def names_of(columns: Columns, width: int) -> tuple[str, ...]:
    """The names of the `width` columns of encoded rows, whose categories are codes or one-hot."""
    names = *columns.numbers, *(f"{name} {EMPTY}" for name in columns.gaps), *columns.categories
    return names if len(names) == width else columns.inputs


def rows_of(
    columns: Columns | None, environments: Mapping[str, Environment], training: Sequence[str]
) -> Rows | None:
    """The rows of a table, or a sample; None for other data. `training` judges what tells the target."""
    parts = {name: e for name, e in environments.items() if len(e.y)}
    if columns is None or any(isinstance(e.x, Stored) for e in parts.values()):
        return None
    step = -(-sum(len(e.y) for e in parts.values()) // SAMPLE)
    y = [e.y[::step].reshape(len(e.y[::step]), -1) for e in parts.values()]
    return Rows(
        x=torch.cat([e.x[::step] for e in parts.values()]).double().numpy(),
        y=torch.cat(y).numpy(),
        environment=np.repeat(np.arange(len(parts)), [*map(len, y)]),
        environments=[*parts],
        training=[name for name in training if name in parts],
        columns=columns,
        said=f", by {sum(map(len, y)):,} rows" if step > 1 else "",
    )


def of_columns(rows: Rows, task: Task) -> Iterator[Finding]:
    """Findings on the columns of a table."""
    columns, parts, constant = rows.columns, rows.environments, dict[str, Array]()
    for i, name in enumerate(rows.names):
        known = rows.known(name)
        values, of = rows.x[known, i], rows.environment[known]
        yield from _empty(rows, name, of)
        if why := _identifier(name, values, of, columns.categories.get(name)):
            distinct = len(np.unique(values))
            text = f"'{name}' looks like an identifier ({why}{rows.said}): `features` leaves it out"
            if len(shared := in_several(np.split(values, np.flatnonzero(np.diff(of)) + 1))):
                text += (
                    f", and {len(shared)} of its {distinct:,} values are in several environments"
                )
                text += f": {APART}"
            elif 2 * distinct <= len(values):
                text += ", and `group` keeps its equal values on one side of a split"
            yield Finding("an identifier", (*parts,), {name: distinct}, name, text)
        if len(own := _constant(values, of, len(parts))):
            constant[name] = own
        elif name in columns.numbers:
            yield from _stuck(name, values, of, [*parts])
        if name in columns.numbers:
            yield from _unlike(name, values, of, [*parts])
    yield from _repeat_environment(rows, constant)
    if rows.y.shape[1] == 1:
        yield from _telling(rows, task)
        if not task.has_classes:
            yield from _stuck("target", rows.y[:, 0], rows.environment, [*parts])
            yield from _unlike("target", rows.y[:, 0], rows.environment, [*parts])


def are_coarse(rows: Rows, ignored: Collection[str]) -> bool:
    """Whether rows may be equal by chance: there are few, or no column alone tells nearly all apart.

    The columns `ignored` do not count.
    """
    kept = [i for i, name in enumerate(rows.names) if name not in ignored]
    distinct = np.unique(rows.x[:, kept or slice(None)], axis=0)
    most = max(len(np.unique(column)) for column in distinct.T)
    return most < 0.9 * len(distinct) or FEW * len(distinct) < len(rows.x)


def _empty(rows: Rows, name: str, filled: Array) -> Iterator[Finding]:
    """Findings on environments without a value in a column, which only those in `filled` have."""
    for i in {*range(len(rows.environments))} - {*filled.tolist()}:
        empty = rows.environments[i]
        text = f"'{name}' is empty in every row of '{empty}'{rows.said}: the "
        text += f"{rows.columns.imputation} of others fills it there"
        yield Finding("an empty column", (empty,), {}, name, text)


def _constant(values: Array, environment: Array, count: int) -> Array:
    """The value of nearly all rows (98 %) of each environment; empty if they vary or are the same."""
    there, first = np.unique(environment, return_index=True)
    if len(there) < max(2, count):
        return values[:0]
    parts = np.split(values, first[1:])
    own = np.array([np.median(each) for each in parts])
    shares = [(each == value).mean() for each, value in zip(parts, own, strict=True)]
    return own if min(shares) >= 0.98 and np.ptp(own) > 0 else values[:0]


def in_several(parts: Sequence[Array]) -> Array:
    """The values that occur in more than one of some arrays."""
    values, counts = np.unique(np.concatenate([*map(np.unique, parts)]), return_counts=True)
    return np.asarray(values[counts > 1])


def _stuck(name: str, values: Array, environment: Array, names: Sequence[str]) -> Iterator[Finding]:
    """Findings on environments in which a number is always the same, and far from others or rare there."""
    for i in np.unique(environment):
        here, others = values[environment == i], values[environment != i]
        if len(here) < FEW or np.ptp(here) > 0 or len(np.unique(others)) < MANY:
            continue
        low, high, is_rare = others.min(), others.max(), (others == here[0]).mean() < 0.05
        far = max(low - here[0], here[0] - high)
        if far > others.std() or (is_rare and len(here) >= FEW_EXAMPLES):
            text = f"'{name}' is {here[0]:g} in every row of '{names[i]}', and from {low:g} to {high:g} "
            text += "elsewhere: a gap, or another design, there"
            yield Finding("a constant column", (names[i],), {}, name, text)


def _repeat_environment(rows: Rows, constant: Mapping[str, Array]) -> Iterator[Finding]:
    """Findings on columns that tell the environment, given the values of columns `constant` in each."""
    alone = [(name,) for name, own in constant.items() if len({*own}) == len(own)]
    others = [name for name in constant if (name,) not in alone]
    together = {*zip(*(constant[name] for name in others), strict=True)}
    for names in [*alone, *[(*others,)] * (len(together) == len(rows.environments))]:
        said, it = (" together repeat", "them") if len(names) > 1 else (" repeats", "it")
        text = f"{some([*map(repr, names)], 3)}{said} the environment: each environment has one"
        text += f" value{rows.said}; `features` leaves {it} out"
        counts = {name: len({*constant[name]}) for name in names}
        yield Finding("an environment column", (*rows.environments,), counts, names[0], text)


def _unlike(
    name: str, values: Array, environment: Array, names: Sequence[str]
) -> Iterator[Finding]:
    parts = {i: values[environment == i] for i in range(len(names))}
    large = {i: part for i, part in parts.items() if len(part) >= FEW_EXAMPLES}
    yield from _units(name, large, names)
    yield from _codes(name, large, names)


def _units(name: str, large: Mapping[int, Array], names: Sequence[str]) -> Iterator[Finding]:
    """A finding if some environments' numbers may be in another unit than those of the others.

    The means of environments then are of two sizes, whose ratio or difference is that of units. A factor
    of units leaves the spread of logarithms as it is.
    """
    known, times = list[tuple[float, float]](), 0.0
    if found := _two_sizes({i: np.log(np.abs(v[v != 0])) for i, v in large.items()}):
        low, high, mean, other, spread, of_spread = found
        times, least = float(np.exp(other - mean)), max(np.log(MULTIPLE), 4 * spread)
        if other - mean >= least and ALIKE**-2 < of_spread < ALIKE**2:
            known = [(float(f"{times:.0f}"), 0.0)]
    if not known and (found := _two_sizes(large)):
        low, high, mean, other, spread, of_spread = found
        times, is_warmth = other / (mean or 1), bool(TEMPERATURE.match(name))
        known = [
            (factor, offset)
            for factor, offset in CONVERSIONS
            if other - mean > (1 if is_warmth else 3) * (1 + of_spread) * spread
            and abs(factor * mean + offset - other) < of_spread * spread
            and factor / ALIKE < of_spread < factor * ALIKE
            and (abs(mean) < 60 if offset else not is_warmth)  # degrees Celsius
        ]
    if known:
        (factor, offset), there, here = known[0], names[high], names[low]
        size = f"{factor:,.4g} times as" if factor != 1 else "as"
        text = f"'{name}' is about {size} large in '{there}' as in '{here}'"
        text += f" plus {offset:g}" * bool(offset) + ": its unit may be another one there"
        yield Finding("another unit", (there, here), {"times": times}, name, text)


def _codes(name: str, large: Mapping[int, Array], names: Sequence[str]) -> Iterator[Finding]:
    """A finding on environments with other codes, such as 1 and 2, than most have, such as 0 and 1."""
    codes = {i: {*np.unique(v)} for i, v in large.items()}
    usual = max(codes.values(), key=[*codes.values()].count, default=set[float]())
    odd = {names[i]: found for i, found in codes.items() if not found <= usual}
    if 0 < 2 * len(odd) <= len(codes) and all(pair in CODES for pair in (usual, *odd.values())):
        listed, (one, other) = some([*map(repr, odd)], 3), sorted(usual)
        text = f"'{name}' is {one:g} or {other:g} in most environments, and has other codes in {listed}: "
        text += "a code may mean something else there"
        yield Finding("other codes", (*odd,), {}, name, text)


def _two_sizes(parts: Mapping[int, Array]) -> tuple[int, int, float, float, float, float] | None:
    """Two environments, means, the lower spread and the ratio of both if there are low and high ones."""
    moments = sorted((v.mean(), v.std(), i) for i, v in parts.items() if len(v) >= FEW)
    if len(moments) < 2:
        return None
    means, spreads, order = np.array(moments).T
    cut = 1 + int(np.argmax(np.diff(means)))
    sides = slice(cut), slice(cut, None)
    if any(np.ptp(means[side]) > 3 * spreads[side].mean() for side in sides):
        return None
    (mean, other), (spread, wider) = ([v[side].mean() for side in sides] for v in (means, spreads))
    return int(order[0]), int(order[-1]), mean, other, spread, wider / max(spread, ROUNDING)


def _telling(rows: Rows, task: Task) -> Iterator[Finding]:
    """Findings on columns that tell the target, alone or together."""
    found, marks, y, is_class = list[Finding](), dict[int, str](), rows.y[:, 0], task.has_classes
    where, said = (*rows.training,), rows.said
    trained = np.isin(rows.environment, [rows.environments.index(name) for name in where])
    for i, name in enumerate(rows.names):
        used = trained & rows.known(name)
        values, target = rows.x[used, i], y[used]
        if task.kind == "multiclass" and (mark := _marked(values, target)) >= 0:
            marks.setdefault(mark, name)
        if score := _score(values, target, is_class, name in rows.columns.categories):
            share = f"{100 * score:.4g} % of {'the classes' if is_class else 'its variance'}{said}"
            text = f"'{name}' alone tells the target ({share}): `features` leaves out what is made from it"
            counts = {"rows": len(values), "score": score}
            found.append(Finding("a telling column", where, counts, name, text))
    yield from found
    if len(marks) > 1 and len(marks) >= len(np.unique(y[trained])) - 1:
        listed = some([*map(repr, marks.values())], 3)
        text = f"{listed} tell the target together (each marks a class{said}): `features` leaves them out"
        yield Finding("a telling column", where, {}, next(iter(marks.values())), text)
    if found:
        return
    filled = trained & np.all([rows.known(name) for name in rows.columns.gaps], 0)
    x, y, names = rows.x[filled], y[filled], [*rows.names]
    if is_class:
        if pair := _compared(x, y, rows.columns.numbers[:50]):  # pairs of more take long
            text = f"which of {' and '.join(map(repr, pair))} is larger tells the target{said}: `features` "
            yield Finding("a telling column", where, {}, pair[0], f"{text}leaves them out")
        return
    what, parts = "weighted sum", _summands(x, y, names)
    if not parts:  # a product is a sum of logarithms
        x, y = x[y > 0], y[y > 0]
        above = np.flatnonzero((x > 0).all(0))
        names = [names[i] for i in above]
        what, parts = "product of powers", _summands(np.log(x[:, above]), np.log(y), names)
    if parts:
        text = f"the target is a {what} of {some([*map(repr, parts)], 3)}{said}: `features` leaves "
        yield Finding("a telling column", where, {}, parts[0], f"{text}out what it is made from")


def _summands(x: Array, y: Array, names: Sequence[str]) -> list[str]:
    """The columns whose weighted sum is the target; empty if there are no such columns, or few rows."""
    if len(y) <= max(MANY, 2 * len(names)) or np.ptp(y) == 0:
        return []
    scaled, centred = (x - x.mean(0)) / np.maximum(x.std(0), ROUNDING), y - y.mean()
    # the normal equations are fast, and exact enough for a sum
    weights, *_ = np.linalg.lstsq(scaled.T @ scaled, scaled.T @ centred, rcond=None)
    left = np.var(centred - scaled @ weights) / y.var()
    parts = [n for n, w in zip(names, weights, strict=True) if abs(w) > 1e-3 * y.std()]
    return parts if left < EXACT else []


def _compared(x: Array, y: Array, names: Sequence[str]) -> tuple[str, str] | None:
    """Two columns that have one class where the first is larger, and another where the second is."""
    for i, j in itertools.combinations(range(len(names)), 2):
        for end in (FEW_EXAMPLES, len(x)):  # few rows rule out most pairs
            order = np.sign(x[:end, i] - x[:end, j])
            sides = [y[:end][order == sign] for sign in (1, 0, -1)]
            if any(len(side) and np.ptp(side) for side in sides):
                break
        else:
            first, _, second = sides
            if min(len(first), len(second)) >= MANY and first[0] != second[0]:
                return names[i], names[j]
    return None


def _marked(values: Array, target: Array) -> int:
    """The class whose rows are those of one of the column's two values, up to 1 % of them; -1 for none."""
    is_high = values == values.max(initial=0)
    if len(np.unique(values)) == 2:
        for marked in (is_high, ~is_high):
            mark = int(np.bincount(target[marked].astype(int)).argmax())
            if 100 * (marked != (target == mark)).sum() <= min(marked.sum(), (~marked).sum()):
                return mark
    return -1


def _score(values: Array, target: Array, is_class: bool, is_category: bool = False) -> float:
    """The accuracy or R² of the best prediction from a column; 0 below 0.99, or if a constant is as good.

    The estimate compares the targets of neighbours in the order of the column, or those of equal values if
    there are few values, or if most rows have one category.
    """
    if len(values) < MANY or np.ptp(values) == 0 or np.ptp(target) == 0:
        return 0.0
    target = target if is_class else target / np.ptp(target)  # targets of any unit
    order = np.lexsort((np.random.default_rng(0).permutation(len(values)), values))
    steps, ties = np.diff(target[order]), np.diff(values[order]) == 0
    spread = target.var()
    if (2 if is_category else FEW) * (len(ties) - ties.sum()) < len(values):
        steps = steps[ties]
        spread = target[order][np.append(ties, False) | np.append(False, ties)].var()
    if not is_class:
        # neighbours differ if rows are few; a line or the ranks may still predict the target
        ranks = np.argsort(np.argsort(target[order]))
        line = 1 - np.corrcoef(values, target)[0, 1] ** 2
        curve = 1 - np.corrcoef(np.arange(len(ranks)), ranks)[0, 1] ** 2
        error, least = min(line, curve, (steps**2).mean() / 2 / max(spread, ROUNDING)), 0.01
    else:
        others = len(target) - np.bincount(target.astype(int)).max()
        error, least = (steps != 0).mean() / 2, min(0.01, others / len(target) / 10)
        least *= others >= FEW
    return float(1 - error) if error <= least else 0.0


def _identifier(
    name: str, values: Array, environment: Array, categories: Sequence[str] | None
) -> str:
    """The reason why a column of numbers or `categories` looks like an identifier, or an empty text.

    Numbers that are not whole are measurements or times. Whole numbers are suspect if they repeat less
    often than by chance, and all if the ranges of environments hardly overlap.
    """
    distinct, size = len(np.unique(values)), len(values)
    if categories is not None:
        if distinct > max(FEW, 0.95 * size):
            return "nearly every row has a different one"
        has_digits = all(re.search(r"\d", each) for each in categories if each != EMPTY)
        if distinct >= (SEVERAL if has_digits else MANY) and NAMED.fullmatch(name):
            return f"by its name and its {distinct} categories"
        numbered = [COUNTED.fullmatch(each) for each in categories if each != EMPTY]
        are_alike = len({match and match[1] for match in numbered}) == 1 and all(numbered)
        return "its categories are numbered" * (distinct >= MANY and are_alike)
    is_whole = (values == np.round(values)).all()
    is_named = is_whole and NAMED.fullmatch(name)
    if distinct < (SEVERAL if is_named else MANY) or not (is_whole or TIMES.fullmatch(name)):
        return ""
    repeated, by_chance = size - distinct, size * (size - 1) / 2 / (1 + np.ptp(values))
    if is_whole and repeated < size / FEW and by_chance > FEW * (1 + repeated):
        return "its whole numbers repeat less often than by chance"
    if is_named:
        return "by its name and its whole numbers"
    parts = [values[environment == i] for i in np.unique(environment)]
    are_many = all(len(np.unique(v)) > max(MANY, len(v) / 5) for v in parts)
    has_ranges = are_many and _score(values, environment, True)
    return "its ranges hardly overlap between environments" if has_ranges else ""
