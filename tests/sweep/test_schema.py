"""The schema of sweep files beside the checks of the files themselves."""

import json
from pathlib import Path
from typing import Any

import pytest
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
    "name": ["", " x", "..", "/tmp", "a//b", "a\nb", 3, "x" * 201],
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
