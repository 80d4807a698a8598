"""What a sweep file may hold, and what is said of the rest."""

from pathlib import Path
from typing import Any

import pytest

from oodbench.datasets import datasets
from oodbench.errors import UserError
from oodbench.sweep.file import Component, Entry, Row, find_sweep, read_sweep, validate
from oodbench.sweep.plan import make_plan
from tests.helpers.results.sweeps import TINY, tiny, tiny_file


def test_all_mistakes_of_a_file_are_told_at_once_in_our_words() -> None:
    rows = ["ERM", 3, {"name": "IRM", "hparms": {}}, {"label": "x"}]
    wrong = {"algorithms": rows, "trials": True, "stepz": 3}
    with pytest.raises(UserError) as caught:
        validate({k: v for k, v in TINY.items() if k != "datasets"} | wrong, "here")
    assert str(caught.value) == (
        "here has 6 problems:\n"
        "- trials must be a whole number from 1 on, or a list of different numbers from 0 on, not True\n"
        "- datasets is missing\n"
        "- algorithms.1 must be a name or a mapping, not 3\n"
        "- unknown key 'hparms' in algorithms.2; did you mean hparams?\n"
        "- algorithms.3.name is missing\n"
        "- unknown key 'stepz'; did you mean steps?"
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "../../x"}, "name must be"),
        ({"average": "ema"}, r"unknown key 'average'.* \(it belongs in `algorithms`\)$"),
        ({"hparams": {"lr": 1}}, r"\(it belongs in `network` or `algorithms`\)$"),
        ({"algorithms": [{"name": "ERM", "lr": 1}]}, r"'lr' .* stand under `hparams`\)$"),
        ({"label_noise": 0.2}, r"options belong in `datasets`, hyperparameters in `hparams` of"),
    ],
)
def test_a_key_in_the_wrong_place_says_where_it_belongs(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        validate(TINY | wrong, "here")


def test_a_count_may_be_written_as_a_float_that_is_whole(tmp_path: Path) -> None:
    file = tiny_file(tmp_path)
    sweep = read_sweep(file, ["steps=5.0e2", "trials=10.0", "hparam_draws=[0, 1.0]"])
    assert (sweep.steps, sweep.trials, sweep.hparam_draws) == (500, range(10), [0, 1])
    for value, shown in {"5.5": "5.5", "5e2": "'5e2'"}.items():
        with pytest.raises(UserError, match=rf"default or a whole number from 1 on, not {shown}$"):
            read_sweep(file, [f"steps={value}"])


def test_a_setting_reaches_into_lists_and_mappings(tmp_path: Path) -> None:
    settings = ["algorithms.0.hparams.lr=3", "datasets.0.num_examples=30"]
    settings.append("network.hparams.width=4")
    sweep = read_sweep(tiny_file(tmp_path, network="MLP"), settings)
    assert sweep.algorithms[0] == Row(name="ERM", hparams={"lr": 3})
    assert sweep.datasets == [Entry.model_validate({"name": "LinearSEM", "num_examples": 30})]
    assert sweep.network == Component(name="MLP", hparams={"width": 4})


def test_equal_test_sets_are_one_run_in_the_order_of_the_dataset() -> None:
    one, other = (tiny(test_environments=[each]).runs for each in (["2", "0.2"], ["0.2", "2"]))
    assert one == other
    with pytest.raises(UserError, match=r"test_environments lists 0\.2 and 2 more than once"):
        tiny(test_environments=[["2", "0.2"], ["0.2", "2"]])


@pytest.mark.parametrize("trials", [10**9, [*range(1000)]])
def test_more_runs_than_anybody_can_train_are_refused_at_once(trials: Any) -> None:
    with pytest.raises(UserError, match="has at most 200,000"):
        tiny(trials=trials, hparam_draws=1000)
    own = TINY["datasets"][0] | {"training": {"trials": trials}}
    with pytest.raises(UserError, match="has at most 200,000"):
        tiny(datasets=[own], trials=1, hparam_draws=1000)


def test_the_holdout_is_that_of_the_dataset_its_training_or_the_sweep() -> None:
    values = {"name": "four", "datasets": ["FourPoints"], "algorithms": ["ERM"], "trials": 1}
    (run,) = make_plan(validate(values, "here")).runs.values()
    assert run.holdout == 0
    with pytest.raises(UserError, match="no example to train on: hold it out, too, or"):
        make_plan(validate(values | {"holdout": 0.2}, "here"))
    values["datasets"] = ["Spirals", {"name": "LinearSEM", "training": {"holdout": "4e-1"}}]
    runs = make_plan(validate(values | {"holdout": 0.1}, "here")).runs.values()
    assert {run.dataset: run.holdout for run in runs} == {"Spirals": 0.1, "LinearSEM": 0.4}


def test_a_dataset_may_have_its_default_where_the_sweep_has_another() -> None:
    own = TINY["datasets"][0] | {"training": {"steps": "default"}}
    usual = datasets.get("LinearSEM").metadata.steps
    assert {run.steps for run in tiny(datasets=[own]).runs.values()} == {usual} != {TINY["steps"]}


def test_a_path_without_results_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "dax").mkdir()
    with pytest.raises(UserError, match=r"no results directory \S+dam; did you mean dax\?"):
        find_sweep(str(tmp_path / "dam"))
