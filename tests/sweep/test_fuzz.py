"""Damaged sweep files: each makes a plan that is sound, or costs one short sentence.

The generator is deterministic. It edits values, keys and structure of sound files, at any depth, and
joins pieces of two files; it never writes what would need more than a moment to plan.
"""

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from oodbench.errors import UserError
from oodbench.sweep.file import read_sweep
from oodbench.sweep.plan import make_plan
from oodbench.sweep.schema import schema
from oodbench.yaml_values import read_yaml
from tests.helpers.results.sweeps import TINY

SCHEMA = Draft202012Validator(schema())
SOUND: list[dict[str, Any]] = [
    TINY,
    {
        **TINY,
        "datasets": [{"name": "Spirals", "num_examples": 40, "num_test_examples": 20}],
        "algorithms": ["ERM", {"name": "ANDMask", "label": "mask", "hparams": {"tau": [0.5, 1.0]}}],
        "network": {"name": "MLP", "hparams": {"width": 8}},
        "validation_environments": 2,
        "hparam_draws": 2,
        "draws": "per trial",
        "holdout": 0.3,
    },
    {
        **TINY,
        **{"test_environments": [["0.2", "2"], ["5"]], "selection": "oracle"},
        "resources": {"cpus": 2, "time": "1:00:00"},
    },
]
VALUES: list[Any] = [
    *(None, True, False, 0, -3, 7, 2.5, -0.0, float("nan"), float("inf"), 10**6, 10**25),
    *("", "\t", "ERM", "0.2", "default", "1e-2", "a: b", "\u200fx", "é" * 50, "../up", "{}", "-"),
    *([], {}, [0], [1, 1], ["ERM", "ERM"], [["0.2"], []], {"name": "MLP"}, {"name": []}, [[[1]]]),
]
Path_ = tuple[str | int, ...]


def places(tree: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The paths to everything in a tree but its root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def at(tree: Any, path: Path_) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def mutant(rng: random.Random) -> str:
    """A sound file with one to three edits."""
    tree = copy.deepcopy(rng.choice(SOUND))
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(list(places(tree)))
        parent, key = at(tree, path[:-1]), path[-1]
        edit = rng.choice(["replace", "wrap", "duplicate", "delete", "move"])
        if edit == "replace":
            parent[key] = copy.deepcopy(rng.choice(VALUES))
        elif edit == "wrap":
            parent[key] = [parent[key]] if rng.random() < 0.5 else {"name": parent[key]}
        elif edit == "duplicate" and isinstance(parent, list):
            parent.insert(int(key), copy.deepcopy(parent[int(key)]))
        elif edit == "delete" and len(tree) > 1:
            del parent[key]
        elif isinstance(parent, dict):
            parent[rng.choice(["nmae", "Label", "hparams", "trials", "0", "x y"])] = parent.pop(key)
    lines = yaml.safe_dump(tree, sort_keys=False, allow_unicode=rng.random() < 0.5).splitlines()
    if rng.random() < 0.25:
        i = rng.randrange(len(lines))
        lines[i] = rng.choice([lines[i][1:], "  " + lines[i], lines[i] + ":", lines[i] + " &a"])
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 150), *(pytest.param(seed, 500, marks=pytest.mark.nightly) for seed in range(1, 5))],
)
def test_a_damaged_file_is_a_plan_or_a_few_sentences(seed: int, count: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    file = tmp_path / "damaged.yaml"
    refused = 0
    for i in range(count):
        text = mutant(rng)
        file.write_text(text)
        try:
            plan = make_plan(read_sweep(file))
        except UserError as error:
            refused += 1
            lines = str(error).split("\n")
            assert all(0 < len(line) < 2000 for line in lines), f"{i}: {lines}\n{text}"
            assert len(lines) == 1 or all(line.startswith("- ") for line in lines[1:]), lines
        else:
            assert SCHEMA.is_valid(read_yaml(file)), text
            for spec in plan.runs.values():
                numbers = (spec.steps - 1, spec.evaluate_every - 1, spec.trial, spec.draw)
                assert all(type(n) is int and n >= 0 for n in numbers), text
                assert 0 <= spec.holdout < 1, text
    assert count / 3 < refused < count
