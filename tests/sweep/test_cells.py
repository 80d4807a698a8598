"""What the cells of a sweep share: environments held out, and draws of hyperparameters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oodbench.algorithms import algorithms
from oodbench.errors import UserError
from oodbench.hparams import defaults
from oodbench.results.directory import Directory
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from tests.helpers.results.sweeps import TINY, specs, tiny_file

DRAWS = {"datasets": [{"name": "Spirals", "num_examples": 160}], "hparam_draws": 4, "trials": 2}


def by_row(**keys: object) -> dict[tuple[str, int, int], RunSpec]:
    return {(s.label, s.draw, s.trial): s for s in specs(**DRAWS | keys)}


def test_methods_share_the_quantiles_of_what_all_have() -> None:
    runs = by_row(algorithms=["ERM", "VREx", "ANDMask", "IRM"])
    for k in range(1, 4):
        of_draw = [runs[label, k, 0] for label in ("ERM", "VREx", "ANDMask")]
        shared = {
            (s.hparams["lr"], s.hparams["weight_decay"], str(s.network_hparams)) for s in of_draw
        }
        assert len(shared) == 1
    assert len({runs["ERM", k, 0].hparams["lr"] for k in range(4)}) > 1
    weights = (runs[label, 1, 0].hparams["penalty_weight"] for label in ("IRM", "VREx"))
    assert len(set(weights)) == 2  # hyperparameters of a method alone keep streams of their own


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("log_uniform(1e-3, 2e-3)", lambda v: 1e-3 <= v < 2e-3),
        ("uniform( 2, 3.0 )", lambda v: 2 <= v < 3),
        ("choice(0.25, 4)", lambda v: v in (0.25, 4)),
    ],
)
def test_a_file_may_give_a_default_and_a_range(text: str, allowed: Callable[[float], bool]) -> None:
    given = {"default": 0.5, "range": text}
    runs = by_row(algorithms=[{"name": "VREx", "hparams": {"penalty_weight": given}}])
    drawn = [runs["VREx", k, 0].hparams["penalty_weight"] for k in range(4)]
    assert drawn[0] == 0.5 and all(allowed(v) for v in drawn[1:])
    assert len(set(drawn)) == (4 if "uniform" in text else 3)  # both choices come up


def test_a_range_of_a_file_may_differ_between_kinds_of_data() -> None:
    own = {"default": 4.0, "range": "choice(5.0, 6.0)"}
    families = {"linear": {"default": 3.0}, "synthetic": own}
    given = {"default": 1.0, "range": "uniform(1, 2)", "by_family": families}
    rows = [{"name": "VREx", "hparams": {"penalty_weight": given}}]
    synthetic, linear = (
        {s.draw: s.hparams["penalty_weight"] for s in specs(**DRAWS | changes, algorithms=rows)}
        for changes in ({}, {"datasets": ["LinearSEM"]})
    )
    assert synthetic[0] == 4.0 and {synthetic[k] for k in (1, 2, 3)} <= {5.0, 6.0}
    assert set(linear.values()) == {3.0}


def test_draw_0_is_the_defaults_and_others_are_drawn_once_or_per_trial() -> None:
    usual = defaults(algorithms.get("IRM").Hparams, "linear")["penalty_weight"]
    for draws in ("shared", "per trial"):
        runs = by_row(algorithms=["IRM"], datasets=TINY["datasets"], draws=draws)
        weights = [[runs["IRM", k, t].hparams["penalty_weight"] for t in (0, 1)] for k in range(4)]
        assert weights[0] == [usual, usual] and len(set(weights[1] + weights[2])) > 1
        assert all(a == b for a, b in weights[1:]) == (draws == "shared")


def test_a_stored_sweep_goes_on_with_the_draws_that_it_has(tmp_path: Path) -> None:
    changes = {"algorithms": ["ERM", "IRM"], "hparam_draws": 3, "steps": 4, "evaluate_every": 2}
    options = LaunchOptions(out=tmp_path / "out", launcher="debug")
    launch(read_sweep(tiny_file(tmp_path, **changes, shared_quantiles=False)), options)
    results = Directory(tmp_path / "out")
    runs = results.specs()
    launch(read_sweep(tiny_file(tmp_path, **changes)), options)
    assert results.specs().keys() == runs.keys()
    with pytest.raises(UserError, match="with shared_quantiles False, not True"):
        launch(read_sweep(tiny_file(tmp_path, **changes, shared_quantiles=True)), options)


def test_a_ceiling_stays_beside_rows_on_other_data(tmp_path: Path) -> None:
    ceiling = {"name": "ERM", "label": "top", "ceiling": True, "options": {"variant": "FEU"}}
    options = LaunchOptions(out=tmp_path / "out", launcher="debug")
    changes = {"steps": 4, "evaluate_every": 2}
    launch(read_sweep(tiny_file(tmp_path, **changes, algorithms=["ERM", ceiling])), options)
    launch(read_sweep(tiny_file(tmp_path, **changes, algorithms=["IRM"])), options)
    stored = Directory(tmp_path / "out").specs().values()
    assert {spec.label for spec in stored} == {"ERM", "top", "IRM"}


def test_a_value_holds_in_every_draw_and_a_list_has_one_for_each() -> None:
    entry = {"name": "ANDMask", "hparams": {"tau": [0.5, 1, 0.9], "lr": 1e-3}}
    runs = specs(hparam_draws=[0, 2], trials=[7, 9], algorithms=[entry])
    assert [(r.draw, r.trial, r.hparams["tau"], r.hparams["lr"]) for r in runs] == [
        (draw, trial, tau, 1e-3) for draw, tau in ((0, 0.5), (2, 0.9)) for trial in (7, 9)
    ]


def test_a_dataset_has_test_sets_of_its_own() -> None:
    own: dict[str, Any] = {"two": [[0.2, "5"]], "each": "each", "usual": None, "one": [0.2, "2"]}
    datasets = [
        {"name": "LinearSEM", "label": label, "num_examples": 40 + i}
        | ({"training": {"test_environments": sets}} if sets else {})
        for i, (label, sets) in enumerate(own.items())
    ]
    runs = specs(datasets=datasets, algorithms=["ERM"], trials=1, test_environments=[["2"]])
    tests = [run.test_environments for run in runs]
    assert tests == [("0.2", "5"), ("0.2",), ("2",), ("5",), ("2",), ("0.2", "2")]


def test_validation_environments_are_drawn_by_trial() -> None:
    dataset = {"name": "Spirals", "num_examples": 10, "num_test_examples": 10}
    runs = specs(datasets=[dataset], validation_environments=4, trials=5, hparam_draws=2)
    found = {(run.trial, run.validation_environments) for run in runs}
    assert len(found) == 5 and len({names for _, names in found}) > 1
    assert all(len(names) == 4 and "test" not in names for _, names in found)
