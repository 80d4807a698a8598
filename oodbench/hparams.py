"""Hyperparameters: typed dataclass fields with a default and a distribution, and their draws."""

import math
import random
import re
import typing
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeVar

from oodbench.errors import UserError, unknown
from oodbench.seeds import derive

Value = bool | int | float | str | None
T = TypeVar("T")

FINE_TUNED = ("images", "text")
"""Families whose defaults and ranges are those of pretrained networks."""


@dataclass(frozen=True)
class Distribution:
    """A distribution over values, sampled by its inverse at one uniform number in [0, 1)."""

    kind: str
    arguments: tuple[Value, ...]

    def __post_init__(self) -> None:
        """Raise UserError for a range from high to low, or a log range with numbers not above 0."""
        if self.kind == "choice":
            return
        low, high, *_ = (float(a) for a in self.arguments if a is not None)
        if not (low < high if self.kind == "uniform_int" else low <= high):
            raise UserError(f"a range must go from the lower number to the higher, not {self}")
        if self.kind.startswith("log_") and not low > 0:
            raise UserError(f"a range of logarithms must have numbers above 0, not {self}")

    def at(self, u: float) -> Value:
        """The value at the quantile `u`."""
        if self.kind == "choice":
            return self.arguments[int(u * len(self.arguments))]
        low, high, *most = (float(a) for a in self.arguments if a is not None)
        if self.kind.startswith("log_"):
            value = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
        else:
            value = low + u * (high - low)
        # round-off can leave [low, high)
        value = min(max(value, low), math.nextafter(high, low), *most)
        return int(value) if self.kind.endswith("_int") else value

    def __str__(self) -> str:
        values = list(self.arguments)
        if self.kind == "uniform_int" and isinstance(values[1], int):
            values[1] -= 1  # stored as an exclusive bound
        return f"{self.kind}({', '.join(map(str, values))})"


def uniform(low: float, high: float) -> Distribution:
    """The uniform distribution on [low, high)."""
    return Distribution("uniform", (low, high))


def log_uniform(low: float, high: float, most: float | None = None) -> Distribution:
    """The log-uniform distribution on [low, high), clipped to at most `most`."""
    return Distribution("log_uniform", (low, high) if most is None else (low, high, most))


def uniform_int(low: int, high: int) -> Distribution:
    """A uniform integer from low to high, both included."""
    return Distribution("uniform_int", (low, high + 1))


def log_uniform_int(low: float, high: float) -> Distribution:
    """The integer part of a log-uniform number on [low, high)."""
    return Distribution("log_uniform_int", (low, high))


def choice(*values: Value) -> Distribution:
    """A choice among `values`, each as likely as the others."""
    return Distribution("choice", values)


def distribution(text: str, place: str) -> Distribution:
    """Parse a distribution such as `log_uniform(1e-3, 1)`; raises UserError if it is malformed."""
    every: tuple[Any, ...] = (uniform, log_uniform, uniform_int, log_uniform_int, choice)
    kinds = {kind.__name__: kind for kind in every}
    match = re.fullmatch(rf"({'|'.join(kinds)})\(([^()]*)\)", text.strip())
    try:
        values = [float(v) if "." in v or "e" in v else int(v) for v in match[2].split(",")]  # type: ignore[index]
        found: Distribution = kinds[match[1]](*values)  # type: ignore[index]
        return found
    except UserError as error:
        raise error.at(place) from None
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{place} must be a range like log_uniform(1e-3, 1), not {text!r}"
        ) from error


def hparam(
    default: T,
    distribution: Distribution | None = None,
    *,
    by_family: Mapping[str, tuple[T, Distribution | None]] | None = None,
    low: float | None = None,
    high: float | None = None,
    options: tuple[T, ...] = (),
    neutral: T | None = None,
    no_list: str = "",
) -> T:
    """A hyperparameter: its default, the distribution of random draws and the allowed values.

    `by_family` gives another (default, distribution) for the datasets of a family. Without a distribution
    every draw takes the default. `low` and `high` (inclusive) or `options` bound the values that a user may
    set. A hyperparameter added to an existing method has a `neutral` value, which leaves the method
    unchanged and does not enter a run's id. `no_list` completes the error for a list of values. Raises
    UserError for a distribution of another kind, such as DomainBed's functions.
    """
    for given in (distribution, *(of_family for _, of_family in (by_family or {}).values())):
        if not isinstance(given, Distribution | None):
            raise UserError(f"`hparam` takes a range such as log_uniform(1e-3, 1), not {given!r}")
    limits = {"low": low, "high": high, "options": options, "neutral": neutral, "no_list": no_list}
    ranges = {"distribution": distribution, "by_family": dict(by_family or {})}
    return field(default=default, metadata={**ranges, **limits})


def rates_family(family: str, pretrained: bool) -> str:
    """The family whose defaults and ranges a run takes, given whether its network is pretrained.

    Ranges of image and text families are for fine-tuning; a randomly initialized network uses "".
    """
    return family if pretrained or family not in FINE_TUNED else ""


def altered(
    space: type, name: str, by_family: Mapping[str, tuple[Any, Distribution | None]]
) -> Any:
    """The hyperparameter `name` of `space` with another (default, distribution) for some families."""
    (inherited,) = (f for f in fields(space) if f.name == name)
    usual: Any = inherited.metadata
    metadata = {**usual, "by_family": {**usual["by_family"], **by_family}}
    return field(default=inherited.default, metadata=metadata)


def _default(f: Any, family: str) -> tuple[Value, Distribution | None]:
    pair = f.metadata.get("by_family", {}).get(family)
    return pair if pair is not None else (f.default, f.metadata.get("distribution"))


def defaults(space: type, family: str = "") -> dict[str, Value]:
    """The default values of a dataclass of hyperparameters (or options) for a family."""
    return {f.name: _default(f, family)[0] for f in fields(space)}


def neutral_values(space: type) -> dict[str, Value]:
    """Neutral values by field name; in a spec, an absent field has its neutral value."""
    neutral = ((f.name, f.metadata.get("neutral")) for f in fields(space))
    return {name: value for name, value in neutral if value is not None}


def identity(space: type, values: Mapping[str, Value]) -> dict[str, Value]:
    """The values that enter a run's id: all except those at their neutral value."""
    neutral = neutral_values(space)
    return {k: v for k, v in values.items() if k not in neutral or v != neutral[k]}


def distributions(space: type, family: str = "") -> dict[str, Distribution | None]:
    """The distribution of random draws of each field, for a family."""
    return {f.name: _default(f, family)[1] for f in fields(space)}


def draw(
    space: type,
    owner: str,
    index: int,
    family: str = "",
    dataset_defaults: Mapping[str, Value] = MappingProxyType({}),
    *,
    given: Mapping[str, Any] = MappingProxyType({}),
    shared: Collection[str] = (),
    trial: int | None = None,
    name: str = "",
) -> dict[str, Any]:
    """Draw `index` of the hyperparameters of `owner`: 0 is the defaults, k > 0 is random.

    A dataset's own defaults override its family's, and values `given` in a sweep file override both: a
    value, a list with a value for each draw, or a default and a range. Each value has a separate random
    stream, derived from (owner, field, index) and, if given, the trial, so adding or removing a field does
    not change the others. All owners use the same stream for a `shared` field: each draws the same quantile
    of its own distribution. Raises UserError for invalid values, which names `name` or else `owner`.
    """
    place = f"the hyperparameters of {name or owner}"
    ranges = _given_ranges(space, given, family, place)
    pairs = {f.name: _default(f, family) for f in fields(space)}
    pairs |= {
        key: (value, pairs[key][1]) for key, value in dataset_defaults.items() if key in pairs
    }
    pairs |= ranges
    values: dict[str, Any] = {key: default for key, (default, _) in pairs.items()}
    of_trial = [] if trial is None else [trial]
    for key, (_, distribution) in pairs.items():
        if index > 0 and distribution is not None:
            stream_owner = "all" if key in shared else owner
            stream = random.Random(derive("hparam", stream_owner, key, index, *of_trial))
            values[key] = distribution.at(stream.random())
    for key, value in given.items():
        if isinstance(value, list):
            if index >= len(value):
                raise UserError(
                    f"'{key}' in {place} lists {len(value)} values, none for draw {index}"
                )
            values[key] = value[index]
        elif key not in ranges:
            values[key] = value
    return asdict(checked(space, values, place))


def _given_ranges(
    space: type, given: Mapping[str, Any], family: str, place: str
) -> dict[str, tuple[Value, Distribution | None]]:
    """The defaults and distributions that a sweep file gives instead of a method's own.

    Written as `{default: VALUE, range: log_uniform(LOW, HIGH)}`, with overrides for families of datasets
    under `by_family`; a default without a range is used in every draw. Raises UserError if malformed.
    """
    known = {k for f in fields(space) for k in f.metadata.get("by_family", {})}
    ranges = {}
    for name, value in given.items():
        if not isinstance(value, dict):
            continue
        where, families = f"'{name}' in {place}", value.get("by_family", {})
        usual = {key: value[key] for key in value if key != "by_family"}
        if usual.keys() != {"default", "range"} or not isinstance(families, dict):
            raise UserError(f"{where} must be a value, a list, or have a default and a range")
        pairs = {}
        for key, pair in {"": usual, **families}.items():
            if key and key not in known:
                raise unknown("family", key, known, where)
            at = f"{where} {key}".strip()
            if not isinstance(pair, dict) or not {"default"} <= pair.keys() <= {"default", "range"}:
                raise UserError(f"{at} must have a default and a range, or only a default")
            text = pair.get("range")
            pairs[key] = pair["default"], None if text is None else distribution(str(text), at)
        ranges[name] = pairs.get(family, pairs[""])
    return ranges


def checked(space: type[T], values: Mapping[str, object], place: str) -> T:
    """`values` as an instance of the dataclass `space`; ints are taken where floats are expected.

    Missing values are the neutral ones, or else the defaults. Raises UserError for an unknown name, a wrong
    type, or a value out of range, naming `place`.
    """
    known = {f.name: f for f in fields(space)}  # type: ignore[arg-type]
    kind: Any = space
    types = _types(kind)
    result: dict[str, Any] = {}
    for name, value in {**neutral_values(kind), **values}.items():
        if name not in known:
            raise unknown("name", name, known, place)
        if isinstance(value, list) and (hint := known[name].metadata.get("no_list")):
            raise UserError(f"'{name}' in {place} must be one: {hint}")
        result[name] = _cast(value, types[name], f"'{name}' in {place}")
        _check_range(result[name], known[name].metadata, f"'{name}' in {place}")
    return space(**result)


_types: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)


IN_WORDS = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
IN_WORDS[NoneType] = "none"


def _cast(value: object, wanted: Any, where: str) -> object:
    union = typing.get_origin(wanted) in (UnionType, typing.Union)
    kinds = typing.get_args(wanted) if union else (wanted,)
    if typing.get_origin(wanted) is tuple:
        item = typing.get_args(wanted)[0]
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} must be a list, not {value!r}")
        return tuple(_cast(v, item, where) for v in value)
    is_bool = isinstance(value, bool)
    if any(isinstance(value, kind) and is_bool == (kind is bool) for kind in kinds):
        return value
    for kind in () if is_bool else kinds:
        if kind is str and isinstance(value, int | float):
            return str(value)  # YAML reads the name 2020 as a number
        with suppress(TypeError, ValueError, OverflowError):
            if kind is float:  # YAML reads 1e-3, without a dot, as a string
                return float(value)  # type: ignore[arg-type]
            if kind is int and isinstance(value, float) and value == int(value):
                return int(value)
    names = " or ".join(IN_WORDS.get(kind, kind.__name__) for kind in kinds)
    hint = ": a name is in quotes" if str in kinds and isinstance(value, bool) else ""
    raise UserError(f"{where} must be {names}, not {value!r}{hint}")


def _check_range(value: Any, limits: Mapping[str, Any], where: str) -> None:
    if value is None:
        return
    for item in value if isinstance(value, tuple) else ():
        _check_range(item, {}, where)
    low, high, options = limits.get("low"), limits.get("high"), limits.get("options")
    if options and value not in options:
        raise unknown("value", value, options, where)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise UserError(f"{where} must be below 2**63")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where} must be finite, not {value}")
    if isinstance(value, float) and 0 < abs(value) < 2.0**-1022:  # subnormal: 0 in training
        raise UserError(f"{where} must be 0 or at least {2.0**-1022:.2g}, not {value}")
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = [f"at least {low}"] * (high is None) + [f"at most {high}"] * (low is None)
        bound = bounds[0] if bounds else f"between {low} and {high}"
        raise UserError(f"{where} must be {bound}, not {value}")
