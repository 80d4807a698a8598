"""Noise in labels and targets, by the keys of a sweep's datasets."""

from pathlib import Path
from typing import Any

import pytest
import torch

from oodbench.data.noise import checked, noisy
from oodbench.datasets import make
from oodbench.errors import UserError
from oodbench.results.run_spec import MEMORIZED
from oodbench.train.loading import Data, load_data, spec_of_data
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.results.sweeps import first

TURNED, TESTS = "RotatedDigits", ("75",)
TRAINED = ("0", "15", "30", "45", "60")
SETTINGS = TrainSettings()


def loaded(noise: Any, trial: int = 0, dataset: str = TURNED) -> Data:
    """The data of a run that holds out the last of the environments."""
    made = make(dataset, {}, None)
    key = "label_noise" if made.task.has_classes else "target_noise"
    tests = made.test_environments
    about: dict[str, Any] = {"noise": checked(made, {key: noise}), "test_environments": tests}
    return load_data(spec_of_data(dataset, trial=trial, **about), SETTINGS)


def changed(data: Data, trial: int = 0) -> dict[str, torch.Tensor]:
    """A mask, for each environment, of the examples whose target is not the clean one."""
    clean = loaded(0, trial, data.dataset.name).environments
    return {name: e.y != clean[name].y for name, e in data.environments.items()}


def test_more_noise_changes_the_same_labels_to_the_same_classes_and_further_ones() -> None:
    little, much, whole = (loaded(amount) for amount in (0.2, 0.5, 1))
    for name in TRAINED:
        some, more = changed(little)[name], changed(much)[name]
        assert bool((more | ~some).all()) and more.sum() > some.sum()
        y, z = little.environments[name].y, much.environments[name].y
        assert torch.equal(y[some], z[some]) and bool(changed(whole)[name].all())
        assert abs(float(some.float().mean()) - 0.2) < 0.06


def test_the_other_classes_are_drawn_uniformly() -> None:
    made = make(TURNED, {}, None)
    noise = checked(made, {"label_noise": 1})
    assert noise is not None
    y = noisy(noise, made, "0", 0, torch.full((90_000,), 3))
    counts = torch.bincount(y, minlength=10)
    assert counts[3] == 0
    assert float((counts[counts > 0] - 10_000).abs().max()) < 500  # five standard deviations


def test_trials_draw_other_labels_and_test_environments_are_clean() -> None:
    first_trial, second = changed(loaded(0.3)), changed(loaded(0.3, trial=1), trial=1)
    assert not any(mask.any() for n, mask in first_trial.items() if n in TESTS)
    assert any(not torch.equal(first_trial[name], second[name]) for name in TRAINED)


def test_environments_that_are_only_evaluated_on_are_clean() -> None:
    made = make("LinearUnitTests", {}, None)
    about: dict[str, Any] = {"trial": 0, "noise": checked(made, {"target_noise": 0.4})}
    about |= {"test_environments": ("E0-test",), "validation_environments": ("E0-validation",)}
    noisy_ = load_data(spec_of_data("LinearUnitTests", **about), SETTINGS).environments
    clean = load_data(spec_of_data("LinearUnitTests", **about | {"noise": None}), SETTINGS)
    same = [n for n, e in clean.environments.items() if torch.equal(e.y, noisy_[n].y)]
    assert {*same} == {*made.evaluation_environments} - {"E0-validation"}


def test_pairs_change_one_class_into_another_alone() -> None:
    data, clean = loaded({"amount": 1, "pairs": {"3": "8"}}), loaded(0)
    for name in TRAINED:
        y, before = data.environments[name].y, clean.environments[name].y
        assert torch.equal(y, torch.where(before == 3, 8, before))


def test_amounts_by_environment_leave_the_others_clean() -> None:
    masks = changed(loaded({"15": 0.5}))
    assert [name for name, mask in masks.items() if mask.any()] == ["15"]


def test_validation_data_are_clean_where_the_file_says_so() -> None:
    data = loaded({"amount": 1, "validation": "clean"})
    masks = changed(data)
    for name in TRAINED:
        assert bool(masks[name][data.splits[name]["in"]].all())
        assert not masks[name][data.splits[name]["out"]].any()


def test_target_noise_has_the_deviation_that_is_asked_for() -> None:
    data, clean = loaded(0.5, dataset="LinearSEM"), loaded(0, dataset="LinearSEM")
    trained = data.dataset.trainable(data.dataset.test_environments)
    pooled = torch.cat([clean.environments[n].y[clean.splits[n]["in"]] for n in trained])
    added = torch.cat([data.environments[n].y - clean.environments[n].y for n in trained])
    assert abs(float(added.std() / pooled.std()) - 0.5) < 0.05
    test = data.dataset.test_environments[0]
    assert torch.equal(data.environments[test].y, clean.environments[test].y)


def test_no_noise_keeps_a_runs_id_and_other_amounts_have_others() -> None:
    def run_id(**keys: Any) -> str:
        return first(datasets=[{"name": TURNED, "label": "x", **keys}], test_environments="each").id

    usual = run_id()
    assert usual == run_id(label_noise=0) == run_id(label_noise={"15": 0.0})
    assert len({usual, run_id(label_noise=0.1), run_id(label_noise=0.2)}) == 3


def test_the_share_memorized_is_the_accuracy_on_wrong_labels() -> None:
    spec = first(
        datasets=[{"name": TURNED, "label_noise": 0.4}], algorithms=["ERM"], steps=20, trials=1
    )
    run, data = Run(spec, SETTINGS), load_data(spec, SETTINGS)
    (found,) = (e for e in run.evaluate() if e.metric == MEMORIZED)
    clean = loaded(0).environments
    hits = count = 0
    for name in run.names:
        index, e = data.splits[name]["in"], data.environments[name]
        wrong = index[e.y[index] != clean[name].y[index]]
        hits += int((run.predict(e.x[wrong]).argmax(-1) == e.y[wrong]).sum())
        count += len(wrong)
    assert (found.environment, found.split, found.count) == (None, None, count)
    assert found.value == pytest.approx(hits / count, abs=1e-12)


def test_a_dataset_keeps_its_own_option_of_the_name() -> None:
    spec = first(datasets=[{"name": "ColoredDigits", "label_noise": 0.1}])
    assert spec.noise is None and spec.options["label_noise"] == 0.1


@pytest.mark.parametrize(
    ("dataset", "keys", "message"),
    [
        (TURNED, {"label_noise": 1.5}, "must be a number between 0 and 1, not 1.5"),
        (TURNED, {"label_noise": True}, "must be a number between 0 and 1, not True"),
        (TURNED, {"label_noise": {"14": 0.1}}, "unknown environment or key '14'"),
        (TURNED, {"label_noise": {"validation": "clean"}}, "lacks its `amount`"),
        (TURNED, {"label_noise": {"amount": 1, "pairs": {3: 3}}}, "replace the class 3 by itself"),
        ("LinearSEM", {"target_noise": {"amount": 1, "pairs": {"a": "b"}}}, "has no classes"),
        (TURNED, {"label_noise": {"amount": 0.1, "pairs": {"3": "x"}}}, "unknown class 'x'"),
        (TURNED, {"label_noise": {"amount": 0.1, "pair": {}}}, "did you mean pairs?"),
        (TURNED, {"label_noise": {"amount": 0.1, "validation": "cleen"}}, "did you mean clean?"),
        (TURNED, {"target_noise": 0.1}, "its targets are not real numbers"),
        (TURNED, {"target_noise": 0.1, "label_noise": 0.1}, "not both"),
        ("LinearSEM", {"label_noise": 0.1}, "(`target_noise` is for real ones)"),
        (
            TURNED,
            {"label_noise": {"15": 2}},
            "'15' in 'label_noise' of RotatedDigits must be a number",
        ),
        ("LinearSEM", {"target_noise": -1}, "must be a finite number from 0 on, not -1"),
    ],
)
def test_a_mistake_is_one_sentence(dataset: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        checked(make(dataset, {}, None), keys)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_users_own_table_takes_label_noise(tmp_path: Path) -> None:
    rows = [f"{i % 7},{i % 2},{'abc'[i % 3]}" for i in range(60)]
    file = tmp_path / "own.csv"
    file.write_text("\n".join(["x,target,environment", *rows, ""]))
    spec = first(datasets=[{"name": "Table", "file": str(file), "label_noise": {"a": 0.5}}])
    data = load_data(spec, SETTINGS)
    assert set(data.mislabeled) <= {"a", "b", "c"} and len(data.mislabeled["a"])


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ({"steps": 5}, r"belongs under `training`: `training: \{steps: ...\}`"),
        ({"pairs": {"3": "8"}}, r"'pairs' .* `label_noise: \{amount: ..., pairs: ...\}`"),
        ({"label_noize": 0.5}, r"unknown name 'label_noize' .*; did you mean label_noise"),
        ({"validation": "clean"}, "'validation' .* belongs under `label_noise`"),
        ({"label_noise": {"15": 0.1, "pairs": {}}}, "'pairs' in .*a key next to `amount`"),
        ({"label_noise": {"75": 0.1}}, "in '75': a test environment stays clean"),
    ],
)
def test_a_key_in_the_wrong_place_says_where_it_stands(key: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        first(datasets=[{"name": TURNED, **key}])
