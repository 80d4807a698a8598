"""Hyperparameters that are tuned once, and then trained in new trials."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from oodbench.errors import UserError
from oodbench.results.directory import Directory
from oodbench.results.read import joined
from oodbench.sweep.file import validate
from oodbench.sweep.launch import LaunchOptions, launch, store_plan
from oodbench.sweep.plan import Plan, make_plan
from tests.helpers.results.made import leaderboard, texts, write_run
from tests.helpers.results.sweeps import TINY, tiny

ERRORS = {
    # by draw, then trial: draw 1 has the best run, draw 2 the best mean
    0: (0.9, 0.9, 0.9),
    1: (0.1, 0.9, 0.9),
    2: (0.3, 0.4, 0.3),
}
TUNED: dict[str, Any] = {"hparam_draws": 3, "trials": 3, "algorithms": ["ERM", "VREx"]}


def tuned(path: Path, **changes: Any) -> Plan:
    """A sweep whose runs have ended with the errors ERRORS on every split."""
    plan = tiny(**TUNED | changes)
    results = Directory(path)
    store_plan(results, plan, LaunchOptions(out=path))
    names = ("0.2", "2", "5")
    keys: dict[str, Any] = {"provenance": {"code": "another program"}, "metric": "mse"}
    for spec in plan.runs.values():
        value = {"metric": "mse", "value": ERRORS[spec.draw][spec.trial], "count": 8}
        places = product(names, ("in", "out"))
        evaluations = [{"environment": e, "split": s, **value} for e, s in places]
        record = {"step": spec.steps, "evaluations": evaluations}
        training = [e for e in names if e not in spec.test_environments]
        context = {"dataset_label": spec.dataset_name}
        write_run(results, spec, training, [record], context=context, **keys)
    return plan


def again(directory: Path, **changes: Any) -> Plan:
    """The plan of the same sweep with hyperparameters from there, in new trials."""
    keys = TUNED | {"trials": [3, 4], "hparams_from": str(directory)}
    return make_plan(validate(TINY | keys | changes, "tiny"))


@pytest.mark.parametrize(("draws", "draw", "trial"), [("shared", 2, 0), ("per trial", 1, 0)])
def test_the_draw_with_the_best_mean_over_trials_is_trained_in_new_trials(
    draws: str, draw: int, trial: int, tmp_path: Path
) -> None:
    before = tuned(tmp_path / "tuned", draws=draws)
    plan = again(tmp_path / "tuned", draws=draws)
    for label in ("ERM", "VREx"):
        at = (label, draw, trial)
        (chosen,) = [s for s in before.runs.values() if (s.label, s.draw, s.trial) == at]
        runs = [spec for spec in plan.runs.values() if spec.label == label]
        assert [(s.draw, s.trial) for s in runs] == [(draw, 3), (draw, 4)]
        assert all(s.hparams == chosen.hparams for s in runs)
        assert all(s.network_hparams == chosen.network_hparams for s in runs)
    if draws == "shared":  # the same runs as in a sweep that trains all draws in these trials
        assert plan.runs.keys() <= tiny(**TUNED | {"trials": 5}).runs.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 4}, r"2\] would be trained again; use other trials, such as `trials: \[3, 4"),
        ({"algorithms": ["IRM"]}, "no choice of hyperparameters for IRM on LinearSEM"),
        ({"algorithms": [{"name": "IRM", "label": "ERM"}]}, "ERM Linear .* is IRM Linear .* here"),
        ({"hparams_from": "nowhere"}, "there is no directory nowhere"),
    ],
)
def test_a_choice_must_be_there(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    tuned(tmp_path)
    with pytest.raises(UserError, match=message):
        again(tmp_path, **changes)


def test_a_row_that_has_not_ended_has_no_choice(tmp_path: Path) -> None:
    plan = tuned(tmp_path)
    Directory(tmp_path).run(next(iter(plan.runs))).forget()
    with pytest.raises(UserError, match="runs of the row have not ended"):
        again(tmp_path)


@pytest.mark.nightly
def test_the_table_says_what_its_error_leaves_out(tmp_path: Path) -> None:
    before = tmp_path / "tuned"
    tuned(before)
    out = tmp_path / "final"
    plan = again(before)
    options = LaunchOptions(out=out, launcher="debug", confirm=False)
    launch(plan.sweep, options)
    launch(plan.sweep, options)  # the same launch again goes on
    shown = leaderboard(joined([out]))
    assert set(shown.frame["n"]) == {2}
    (note,) = [note for note in texts(shown.notes) if "chosen once" in note]
    assert f"by train_val in {before}, among 3 draws in 3 other trials" in note
    for directories in ([before, out], [out, before]):
        with pytest.raises(UserError, match="differ in how hyperparameters were chosen"):
            joined(directories)
    with pytest.raises(UserError, match=r"hparams_from None, not .*; use another directory"):
        launch(plan.sweep, LaunchOptions(out=before, launcher="debug", confirm=False))
