"""The schema of sweep files beside the checks of the files themselves, also of damaged files."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import oodbench.sweep.schema as module
from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.errors import UserError
from oodbench.networks.base import networks
from oodbench.registry import Registry, folder
from oodbench.sweep.file import read_sweep
from oodbench.sweep.plan import make_plan
from oodbench.yaml_values import read_yaml
from tests.helpers.commands import run
from tests.helpers.results.sweeps import TINY

SCHEMA = Draft202012Validator(module.schema())
WRONG: dict[str, list[Any]] = {
    "name": [
        *("", " ", " x", ".", "..", "/tmp", "a/../../b", "a//b", "a\nb", "\x1b[31m", 3, "x" * 201),
    ],
    "datasets": ["LinearSEM", [], [3], [None], [{"name": "LinearSEM", "training": {"step": 5}}]],
    "algorithms": ["ERM", [], [3], [{"name": "ERM", "hparam": {}}], [{"label": "x"}], ["ERM", []]],
    "test_environments": ["all", [], [["5"], "6"], [[None]], [[True]], 3],
    "validation_environments": ["some", 0, True, [None], {}],
    "hparam_draws": [0, -1, True, 1.5, "3", [-1], ["0"], 2**31],
    "draws": ["each", True],
    "trials": [0, "three", [True], {}, True, "2", -1, 2**31],
    "steps": [0, "few", None, 2**40, False],
    "evaluate_every": [-5, [10], 0],
    "network": [3, [], {"name": None}, {"name": "MLP", "hparam": {}}],
    "precision": ["float16", 32],
    "channels_last": ["yes", 1],
    "holdout": [1, -0.1, "x", None],
    "attributes": ["test"],
    "keep_weights": [3, [1]],
    "run_timeout": [0, -1, "1h"],
    "resources": [[], "x"],
    "plugins": ["mine", [3]],
    "trails": [3],
}


def test_every_stored_sweep_and_protocol_is_accepted() -> None:
    stored = sorted(folder("sweeps").rglob("*.yaml"))
    assert len(stored) > 50
    refused = {str(f): next(SCHEMA.iter_errors(read_yaml(f)), None) for f in stored}
    assert {f: error for f, error in refused.items() if error is not None} == {}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in WRONG.items() for v in values])
def test_a_wrong_value_is_refused_by_both(key: str, value: Any, tmp_path: Path) -> None:
    values = {**TINY, key: value}
    file = tmp_path / "wrong.yaml"
    file.write_text(json.dumps(values))
    with pytest.raises(UserError):
        make_plan(read_sweep(file))
    assert not SCHEMA.is_valid(values)


@pytest.mark.parametrize("key", ["name", "datasets", "algorithms"])
def test_a_missing_key_is_refused_unless_a_protocol_has_it(key: str) -> None:
    assert not SCHEMA.is_valid({k: v for k, v in TINY.items() if k != key})
    assert SCHEMA.is_valid({"name": "mine", "protocol": "small.v3"})


def test_the_shipped_schema_is_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by `python -m oodbench.sweep schema > oodbench/sweep/schema.json`."""
    registries: tuple[Registry[Any], ...] = (algorithms, datasets, networks)
    for registry in registries:  # less what the tests of other modules register
        ours = {n: c for n, c in registry.items() if c.__module__.startswith("oodbench.")}
        monkeypatch.setattr(registry, "_classes", ours)
    assert run("schema").stdout == Path(module.__file__).with_name("schema.json").read_text()


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
    """A sound file with one to three edits; none needs more than a moment to plan."""
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
