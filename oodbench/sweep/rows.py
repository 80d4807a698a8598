"""The rows of a sweep: a method each, with the values of its own that a table tells apart by a label."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from oodbench.errors import UserError, unknown
from oodbench.method_kinds import KINDS
from oodbench.results.run_spec import CONSTANT
from oodbench.sweep.file import KIND, Row, Sweep
from oodbench.sweep.file_errors import short


def rows_of(sweep: Sweep) -> list[Row]:
    """The rows of a sweep: `all` and `kind: KIND` are the registered methods that no row names."""
    from oodbench.algorithms import algorithms

    rows = [i if isinstance(i, Row) else Row(name=i) for i in sweep.algorithms]
    named = {row_label(row) for row in rows}
    found = []
    for row in rows:
        if row.name != "all" and not row.name.startswith(KIND):
            found.append(row)
            continue
        kind = row.name.removeprefix(KIND)
        if kind not in ("all", *KINDS):
            raise unknown("kind of methods", short(kind)[1:-1], KINDS, "algorithms")
        for name in algorithms:
            if kind in ("all", algorithms.get(name).kind) and name not in named:
                found.append(Row(name=name))
                named.add(name)
    return found


def check_rows(rows: Sequence[Row]) -> None:
    """Raise UserError for rows that a table could not tell apart, or that cannot be compared."""
    counts = Counter(row_label(row) for row in rows)
    for name, count in counts.items():
        if count > 1:
            raise UserError(f"two algorithms are called {short(name)}: give them a `label` each")
    if CONSTANT in counts:
        raise UserError(f"'{CONSTANT}' is the row of the constant answer: use another `label`")
    if all(row.ceiling for row in rows):
        raise UserError("every row is marked `ceiling: true`: there is no method below the ceiling")
    for row in rows:
        if row.options and not row.ceiling:
            raise UserError(
                f"{short(row_label(row))} has `options` of its own for the data: only a row "
                "marked `ceiling: true` may, as the others are compared on the same data"
            )


def row_label(row: Row) -> str:
    """What tables call a row: its label, or its method and, where it has one, its average."""
    average = average_of(row)
    if row.label is not None or average is None:
        return row.label or row.name
    from oodbench.train.averages import AVERAGES

    return f"{row.name} + {AVERAGES[average['name']].label}"


def average_of(row: Row) -> dict[str, Any] | None:
    """The average of a row's weights with its numbers; raises UserError."""
    if row.average in ("none", {"name": "none"}):
        return None
    from oodbench.train.averages import numbers

    return numbers({"name": row.average} if isinstance(row.average, str) else row.average)
