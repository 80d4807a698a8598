from typing import Any

from tests.helpers.sweeps import tiny


def specs(**changes: Any) -> list[Any]:
    return list(tiny(**changes).runs.values())


def test_each_and_pairs() -> None:
    each = {r.test_environments for r in specs(test_environments="each", algorithms=["ERM"])}
    assert each == {("0.2",), ("2",), ("5",)}
    pairs = {r.test_environments for r in specs(test_environments="pairs", algorithms=["ERM"])}
    assert pairs == each | {("0.2", "2"), ("0.2", "5"), ("2", "5")}


def test_environments_may_be_numbers_in_yaml() -> None:
    runs = specs(test_environments=[[0.2]], validation_environments=[5])
    assert {(r.test_environments, r.validation_environments) for r in runs} == {(("0.2",), ("5",))}


def test_validation_environments_are_drawn_by_trial() -> None:
    dataset = {"name": "Spirals", "num_examples": 10, "num_test_examples": 10}
    runs = specs(datasets=[dataset], validation_environments=4, trials=5, hparam_draws=2)
    by_trial: dict[int, set[tuple[str, ...]]] = {}
    for run in runs:
        assert len(run.validation_environments) == 4
        assert "test" not in run.validation_environments
        by_trial.setdefault(run.trial, set()).add(run.validation_environments)
    assert all(len(found) == 1 for found in by_trial.values())
    assert len(set.union(*by_trial.values())) > 1
