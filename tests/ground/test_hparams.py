"""Hyperparameters; `python -m tests.ground.test_hparams` writes their two golden files anew.

golden/hparams.json freezes what draws 0 to 4 of every algorithm and network are, in each family, as a
hash for each: a sweep that is run again next year trains the same runs. golden/defaults.json freezes
what they are drawn from, and all else that a sweep takes where its file says nothing: every default,
range, option and by-family value of methods and networks, the learning-rate schedules, what datasets
choose, and a sweep's own defaults. Write both anew when something is added, and look at the
difference: a line that was there and moves is a change of results, for CHANGELOG.md.
"""

import hashlib
import json
import math
from dataclasses import dataclass, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodbench.adaptations import adaptations
from oodbench.algorithms import Algorithm, algorithms
from oodbench.datasets import datasets
from oodbench.errors import UserError
from oodbench.hparams import (
    Distribution,
    checked,
    choice,
    defaults,
    distributions,
    draw,
    hparam,
    log_uniform,
    log_uniform_int,
    uniform,
    uniform_int,
)
from oodbench.networks.base import Network, networks
from oodbench.optimizers import SCHEDULES
from oodbench.sweep.file import Sweep
from oodbench.sweep.plan import single
from tests.helpers.algorithms.ours import ours
from tests.helpers.paths import ROOT

GOLDEN = ROOT / "tests" / "golden" / "hparams.json"
DEFAULTS = ROOT / "tests" / "golden" / "defaults.json"
FAMILIES = ("", "digits", "images", "linear", "noisy_labels", "small_images", "synthetic", "text")


def first_draws(name: str, space: Any) -> str:
    """Draws 0 to 4 of a method or network, a line for each family and field; floats to 8 digits."""
    lines = []
    for family in FAMILIES:
        draws = [draw(space, name, index, family) for index in range(5)]
        for field in draws[0]:
            values = (d[field] for d in draws)
            texts = (f"{v:#.8g}" if isinstance(v, float) else repr(v) for v in values)
            lines.append(f"{name}, {family or 'default'}, {field}: {', '.join(texts)}")
    return "\n".join(lines)


def hashes() -> dict[str, str]:
    texts = {name: first_draws(name, space) for name, space in spaces().items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


def spaces() -> dict[str, Any]:
    both = (*sorted(ours(algorithms).items()), *sorted(ours(networks).items()))
    return {name: cls.Hparams for name, cls in both}


def fields_of(space: Any) -> dict[str, Any]:
    """Default, distribution and limits of every field, and what families have instead."""
    found: dict[str, Any] = {}
    for f in fields(space):
        known = f.metadata
        values = {
            "default": f.default,
            "range": known.get("distribution") and str(known["distribution"]),
            **{key: known[key] for key in ("low", "high") if known.get(key) is not None},
            **({"options": list(known["options"])} if known.get("options") else {}),
        }
        for family, (value, range_) in known.get("by_family", {}).items():
            values[f"in {family}"] = [value, range_ and str(range_)]
        found[f.name] = values
    return found


def everything_by_default() -> dict[str, Any]:
    """What a sweep takes where its file says nothing, by what it belongs to."""
    table: dict[str, Any] = {}
    for kind, base, registry in (
        ("method", Algorithm.Hparams, algorithms),
        ("network", Network.Hparams, networks),
    ):
        shared = table[f"every {kind}"] = fields_of(base)
        for name, cls in sorted(ours(registry).items()):
            own = {f: v for f, v in fields_of(cls.Hparams).items() if v != shared.get(f)}
            table[f"{kind} {name}"] = own
    for name, cls in sorted(ours(adaptations).items()):
        table[f"adaptation {name}"] = fields_of(cls.Hparams)
    for name, cls in sorted(ours(datasets).items()):
        known = cls.metadata
        table[f"dataset {name}"] = {
            "options": fields_of(cls.Options),
            **{key: getattr(known, key) for key in ("family", "network", "steps")},
            "hparams": dict(known.hparams),
        }
    progress = [step / 400 for step in range(400)]
    for name, schedule in SCHEDULES.items():
        factors = [schedule(p) for p in progress]
        drops = [k for k in range(1, 400) if factors[k] != factors[k - 1]]
        table[f"schedule {name}"] = {
            "at k / 8": [f"{schedule(k / 8):.10g}" for k in range(8)],
            "drops at k / 400": drops if len(drops) < 4 else len(drops),
        }
    table["sweep"] = {n: f.default for n, f in Sweep.model_fields.items() if not f.is_required()}
    run = {steps: single({"name": "Spirals"}, {"name": "ERM"}, steps=steps) for steps in (7, 1000)}
    table["evaluations"] = {f"every of {n} steps": spec.evaluate_every for n, spec in run.items()}
    found: dict[str, Any] = json.loads(json.dumps(table))
    return found


def test_every_default_range_and_choice_is_the_golden_one() -> None:
    golden, table = json.loads(DEFAULTS.read_text()), everything_by_default()
    assert list(golden) == list(table)
    for owner, values in golden.items():
        assert table[owner] == values, owner


def test_the_first_draws_are_the_golden_ones() -> None:
    golden, now = json.loads(GOLDEN.read_text()), hashes()
    assert golden.keys() == now.keys()
    moved = [first_draws(name, spaces()[name]) for name in golden if golden[name] != now[name]]
    assert not moved, "these are the draws now:\n" + "\n".join(moved)


@dataclass(frozen=True, kw_only=True)
class Space:
    rate: float = hparam(
        0.1, log_uniform(1e-3, 1.0), low=0.0, by_family={"images": (0.5, uniform(0.4, 0.6))}
    )
    count: int = hparam(3, uniform_int(1, 5), low=1, high=9)
    mode: str = hparam("fast", choice("fast", "slow"), options=("fast", "slow"))
    flag: bool = hparam(True)
    limit: int | None = hparam(None, low=2)
    sizes: tuple[int, ...] = hparam((1, 2))


@dataclass(frozen=True, kw_only=True)
class Larger(Space):
    another: float = hparam(1.0, uniform(0.0, 1.0))


def test_draw_0_is_the_defaults() -> None:
    assert draw(Space, "any", 0) == defaults(Space)
    assert draw(Space, "any", 0, "images") == {**defaults(Space), "rate": 0.5}
    assert checked(Space, defaults(Space), "x") == Space()


@given(st.integers(1, 10**6), st.sampled_from(["", "images"]))
def test_adding_a_field_leaves_the_others_draws(index: int, family: str) -> None:
    small, large = draw(Space, "owner", index, family), draw(Larger, "owner", index, family)
    assert {k: v for k, v in large.items() if k != "another"} == small
    assert draw(Space, "owner", index, family) == small


def test_a_family_has_its_own_default_and_distribution() -> None:
    assert str(distributions(Space)["rate"]) == "log_uniform(0.001, 1.0)"
    assert str(distributions(Space, "images")["rate"]) == "uniform(0.4, 0.6)"
    assert distributions(Space)["flag"] is None
    assert 0.4 <= float(str(draw(Space, "A", 1, "images")["rate"])) < 0.6


@pytest.mark.parametrize(
    ("distribution", "quartiles"),
    [
        (uniform(2.0, 4.0), [2.0, 2.5, 3.0, 3.5]),
        (log_uniform(1e-4, 1e4), [1e-4, 1e-2, 1.0, 1e2]),
        (log_uniform(1e-4, 1e4, 10.0), [1e-4, 1e-2, 1.0, 10.0]),
        (log_uniform_int(1.3, 1.3 * 81), [1, 3, 11, 35]),
        (uniform_int(3, 6), [3, 4, 5, 6]),
        (choice(3, 7, 5, 6), [3, 7, 5, 6]),
    ],
    ids=str,
)
def test_a_distribution_is_its_quantiles(distribution: Distribution, quartiles: list[Any]) -> None:
    found = [distribution.at(u) for u in (0.0, 0.25, 0.5, 0.75)]
    assert found == pytest.approx(quartiles, rel=1e-12)
    assert {type(value) for value in found} == {type(value) for value in quartiles}


@given(st.floats(1e-6, 1e6), st.floats(1.001, 1e6), st.floats(0, 1, exclude_max=True))
def test_no_value_leaves_its_limits(low: float, ratio: float, u: float) -> None:
    high = low * ratio
    for distribution in (uniform(low, high), log_uniform(low, high)):
        value = distribution.at(u)
        assert isinstance(value, float) and low <= value < high
    first, last = math.ceil(low), math.ceil(low) + int(ratio)
    for distribution in (uniform_int(first, last), log_uniform_int(first, last + 1)):
        assert first <= int(str(distribution.at(u))) <= last


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"rate": 2}, Space(rate=2.0)),
        ({"rate": "1e-3"}, Space(rate=1e-3)),
        ({"count": 4.0}, Space(count=4)),
        ({"limit": 5}, Space(limit=5)),
        ({"sizes": [3], "mode": "slow", "flag": False}, Space(sizes=(3,), mode="slow", flag=False)),
    ],
)
def test_values_are_taken(values: dict[str, object], wanted: Space) -> None:
    taken = checked(Space, values, "here")
    assert taken == wanted
    assert [*map(type, vars(taken).values())] == [*map(type, vars(wanted).values())]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rat": 1.0}, r"unknown name 'rat' in here; did you mean rate\?"),
        ({"rate": "fast"}, "'rate' in here must be a number, not 'fast'"),
        ({"rate": -1.0}, r"'rate' in here must be at least 0\.0, not -1\.0"),
        ({"rate": math.nan}, "'rate' in here must be finite, not nan"),
        ({"count": 2.5}, r"'count' in here must be a whole number, not 2\.5"),
        ({"count": 10}, "'count' in here must be between 1 and 9, not 10"),
        ({"limit": 1e308}, r"'limit' in here must be below 2\*\*63"),
        ({"mode": "fats"}, r"unknown value 'fats' in 'mode' in here; did you mean fast\?"),
        ({"limit": "x"}, "'limit' in here must be a whole number or none, not 'x'"),
        ({"sizes": 3}, "'sizes' in here must be a list, not 3"),
    ],
)
def test_mistakes_are_told_in_one_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}$"):
        checked(Space, values, "here")


def test_a_range_of_another_kind_is_refused() -> None:
    ranges: tuple[Any, ...] = (lambda r: 10 ** r.uniform(1, 5), (1, 5))
    for wrong in ranges:
        with pytest.raises(UserError, match="`hparam` takes a range such as log_uniform"):
            hparam(1.0, wrong)


def lines(table: dict[str, dict[str, Any]]) -> str:
    """The table as JSON with a line for each field."""
    owners = (
        f" {json.dumps(owner)}: {{\n"
        + ",\n".join(f"  {json.dumps(field)}: {json.dumps(values)}" for field, values in of.items())
        + "\n }"
        for owner, of in table.items()
    )
    return "{\n" + ",\n".join(owners) + "\n}\n"


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(hashes(), indent=1) + "\n")
    DEFAULTS.write_text(lines(everything_by_default()))
