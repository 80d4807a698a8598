import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from oodbench.results.read import read_results
from oodbench.results.tables import Tables
from oodbench.verify.__main__ import our_values
from oodbench.verify.computations import COMPUTATIONS, rex
from oodbench.verify.measured import Measured, last_values, read_values
from oodbench.verify.targets import Experiment, Target
from tests.helpers.results.made import Curve as Values
from tests.helpers.results.made import Made, flat


def target(**fields: object) -> Target:
    usual = {"source": "s", "sweep": "made", "row": "A", "value": 1.0, "environment": "test"}
    return Target.model_validate(usual | fields)


def experiment(*targets: Target, **fields: object) -> Experiment:
    usual = {"name": "n", "title": "T", "paper": "p", "sweeps": ("made",), "about": "a"}
    return Experiment.model_validate({**usual, "targets": targets or (target(),), **fields})


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


@pytest.fixture
def frames(made: Made) -> Tables:
    """Two test sets and two trials; values name environment, split, step and trial."""

    def value(trial: int) -> Values:
        def of(environment: str, split: str, step: int) -> float:
            best = 20 if trial == 0 else 10  # the step that `train_val` chooses
            if split == "out":
                return 0.5 + (step == best)
            return {"a": 0.1, "b": 0.2, "c": 0.3}[environment] + step / 1000 + trial / 100

        return of

    for trial in (0, 1):
        for test in ("a", "b"):
            made.add("D", "A", (test,), trial, value(trial))
    made.add("D", "A", ("a",), 2, flat(9.0), state="running")
    return read_results(made.results)


def test_the_last_step_of_every_trial_that_is_complete(frames: Tables) -> None:
    assert read_values(target(), frames) == pytest.approx([0.18, 0.19])
    assert read_values(target(test_environments=["a"]), frames) == pytest.approx([0.13, 0.14])
    assert read_values(target(environment="training"), frames) == pytest.approx([0.255, 0.265])
    found = read_values(target(environment="c", split="out"), frames)
    assert found == pytest.approx([0.5, 0.5])


def test_a_value_of_no_environment(frames: Tables) -> None:
    records = frames.records.astype({"environment": object, "split": object})
    of_c = records["environment"] == "c"
    records.loc[of_c, ["environment", "split", "value"]] = [None, None, 7.0]
    assert read_values(target(environment=None), replace(frames, records=records)) == [7.0, 7.0]


def test_a_step_and_a_selection_rule(frames: Tables) -> None:
    assert read_values(target(step=10), frames) == pytest.approx([0.16, 0.17])
    assert read_values(target(selection="train_val"), frames) == pytest.approx([0.17, 0.17])


def test_a_diverged_trial_has_no_number_and_no_mean_leaves_it_out(made: Made) -> None:
    for test, trial in (("a", 0), ("b", 0), ("a", 1)):
        made.add("D", "A", (test,), trial, flat(0.25 + trial / 4))
    made.add("D", "A", ("b",), 1, flat(0.5), steps=(10, 17), state="diverged")
    frames = read_results(made.results)
    assert read_values(target(), frames) == pytest.approx([0.25, math.nan], nan_ok=True)
    assert read_values(target(step=10), frames) == pytest.approx([0.25, 0.5])  # it was well then
    assert read_values(target(test_environments=["a"]), frames) == pytest.approx([0.25, 0.5])
    ends = last_values("test", frames)
    assert ends["value"].isna().tolist() == (ends["state"] == "diverged").tolist()


def test_a_metric_that_is_not_finite_is_not_left_out_of_a_mean(made: Made) -> None:
    made.add("D", "A", ("a",), 0, lambda e, s, t: math.nan if e == "b" else 0.5)
    frames = read_results(made.results)
    assert read_values(target(), frames) == [0.5]
    assert math.isnan(read_values(target(environment="training"), frames)[0])
    assert math.isnan(last_values("training", frames)["value"][0])


def computed(trials: int, frames: Mapping[str, Tables]) -> dict[str, list[float]]:
    return {"k": [0.5] * trials, "runs": [float(len(f.runs)) for f in frames.values()]}


@pytest.mark.slow
def test_a_computation_beside_sweeps(frames: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMPUTATIONS, "of a test", computed)
    targets = (target(sweep="", row="k", scale=100), target(sweep="", row="runs"), target())
    with_both = experiment(*targets, compute="of a test")
    found = Measured(values=our_values(with_both, {"made": frames}, 3))
    assert found.values[targets[0].key] == [50.0] * 3
    assert found.values[targets[1].key] == [5.0]
    assert targets[2].key not in our_values(with_both, {}, 3)


def test_the_oracle_that_sees_the_last_step_only(made: Made) -> None:
    def value(draw: int) -> Values:
        def of(environment: str, split: str, step: int) -> float:
            peak = 0.9 if (draw == 0 and step == 20) else 0.0
            return peak + (0.6 if draw else 0.5) + (0.01 if split == "in" else 0.0)

        return of

    for draw in (0, 1):
        made.add("D", "A", ("a",), 0, value(draw), draw=draw)
    frames = read_results(made.results)
    assert read_values(target(selection="oracle"), frames) == pytest.approx([1.41])
    assert read_values(target(selection="oracle_last"), frames) == pytest.approx([0.61])


def at_the_end(values: Mapping[str, float]) -> Values:
    return lambda environment, split, step: values[environment] if step == 30 else 0.55


def test_how_many_configurations_beat_chance(made: Made) -> None:
    for draw, (test, training) in enumerate([(0.4, 0.8), (0.6, 0.7), (0.9, 0.7)]):
        ends = at_the_end({"a": test, "b": training, "c": training})
        made.add("D", "A", ("a",), 0, ends, draw=draw, options={"imbalance": "class"})
    found = rex.covariate_shift_search(1, {"made": read_results(made.results)})
    assert found == {"A, class": [0.0, 1.0, 0.0]}


def test_accuracies_over_tasks_are_those_at_the_best_step_of_validation(made: Made) -> None:
    def best_at(peak: int, test: float) -> Values:
        def of(environment: str, split: str, step: int) -> float:
            return float(step == peak) if environment == "b" else test + step / 1000

        return of

    for trial in (0, 1):
        for dataset, peak, test in (("D", 20, 0.5), ("E", 10, 0.7)):
            curve = best_at(peak, test + trial / 10)
            made.add(dataset, "A", ("a",), trial, curve, validation=("b",))
    made.add("D", "A", ("a",), 2, flat(9.0), validation=("b",))
    made.add("E", "A", ("a",), 2, flat(9.0), validation=("b",), state="running")
    found = rex.financial_indicators(1, {"made": read_results(made.results)})
    wanted = {"mean": [0.615, 0.715], "min": [0.52, 0.62], "max": [0.71, 0.81]}
    for what, values in wanted.items():
        assert found[f"A, {what}"] == pytest.approx(values), what
