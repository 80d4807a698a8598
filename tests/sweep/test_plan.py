import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from oodbench.algorithms import algorithms
from oodbench.errors import UserError
from oodbench.hparams import defaults
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.file import find, read, validate
from oodbench.sweep.plan import make_plan
from tests.helpers.sweeps import TINY, tiny


def specs(**changes: Any) -> list[Any]:
    return list(tiny(**changes).runs.values())


def test_a_sweep_is_the_product_of_its_parts() -> None:
    runs = specs(trials=3, hparam_draws=2, algorithms=["ERM", "IRM", "DANN"])
    assert len(runs) == 18
    assert {(r.label, r.draw, r.trial) for r in runs} == {
        (a, d, t) for a in ("ERM", "IRM", "DANN") for d in (0, 1) for t in (0, 1, 2)
    }


def test_a_ceiling_has_the_runs_of_a_row_on_data_of_its_own() -> None:
    row = {"name": "ERM", "label": "homoskedastic", "ceiling": True, "options": {"variant": "FEU"}}
    plain, ceiling = tiny(trials=1), tiny(trials=1, algorithms=["ERM", "IRM", row])
    assert set(plain.runs) < set(ceiling.runs)  # a ceiling moves no id
    (own,) = [spec for i, spec in ceiling.runs.items() if i not in plain.runs]
    assert own.ceiling and own.options["variant"] == "FEU"
    assert own.dataset_label == next(iter(plain.runs.values())).dataset_label
    assert RunSpec.from_json(json.loads(json.dumps(asdict(own)))).id == own.id


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"name": "ERM", "options": {"variant": "FEU"}}], "only a row marked `ceiling: true`"),
        ([{"name": "ERM", "ceiling": True}], "every row is marked"),
        (["IRM", {"name": "ERM", "label": "constant"}], "the row of the constant answer"),
        (
            ["IRM", {"name": "ERM", "ceiling": True, "options": {"variance": "FEU"}}],
            "'variance'.* did you mean variant",
        ),
    ],
)
def test_a_ceiling_that_cannot_be_is_told(rows: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny(algorithms=rows)


def test_a_sweep_names_the_selection_rule_of_its_tables() -> None:
    assert tiny().sweep.selection is None
    assert tiny(selection="val_env").sweep.selection == "val_env"
    assert list(tiny(selection="val_env").runs) == list(tiny().runs)
    with pytest.raises(UserError, match=r"unknown selection rule 'val_emv' .* mean val_env"):
        tiny(selection="val_emv")


def test_lists_choose_draws_and_trials() -> None:
    runs = specs(trials=[1000, 1001], hparam_draws=[0, 7], algorithms=["IRM"])
    assert {(r.draw, r.trial) for r in runs} == {(0, 1000), (0, 1001), (7, 1000), (7, 1001)}


def test_draw_0_is_the_defaults_and_others_are_drawn_once_for_all_trials() -> None:
    runs = specs(hparam_draws=3, trials=2, algorithms=["IRM"])
    weights = {(r.draw, r.trial): r.hparams["penalty_weight"] for r in runs}
    assert (
        weights[0, 0]
        == weights[0, 1]
        == defaults(algorithms.get("IRM").Hparams, "linear")["penalty_weight"]
    )
    assert weights[1, 0] == weights[1, 1] != weights[2, 0]


def test_values_of_the_file_hold_in_every_draw() -> None:
    entry = {"name": "ANDMask", "hparams": {"tau": 0.9}}
    assert {r.hparams["tau"] for r in specs(hparam_draws=4, algorithms=[entry])} == {0.9}


def test_a_list_has_a_value_for_each_draw() -> None:
    entry = {"name": "ANDMask", "hparams": {"tau": [0.5, 1, 0.9], "lr": 1e-3}}
    runs = specs(hparam_draws=[0, 2], algorithms=[entry])
    assert {(r.draw, r.hparams["tau"], r.hparams["lr"]) for r in runs} == {
        (0, 0.5, 1e-3),
        (2, 0.9, 1e-3),
    }


def test_every_option_is_in_the_spec() -> None:
    options = specs()[0].options
    assert options["num_examples"] == 40 and options["variant"] == "FOU"


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


def test_impossible_cells_have_reasons() -> None:
    plan = tiny(test_environments="pairs", algorithms=["ERM", "VREx"])
    assert {len(r.test_environments) for r in plan.runs.values() if r.label == "VREx"} == {1}
    assert {r.label for r in plan.runs.values() if len(r.test_environments) == 2} == {"ERM"}
    assert len(plan.impossible) == 3
    assert all("at least two training environments" in i.reason for i in plan.impossible)


def test_shipped_sweeps_can_be_planned_by_name() -> None:
    plan = make_plan(read(find("quickstart")))
    assert len({r.label for r in plan.runs.values()}) == 6
    assert not plan.impossible


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": []}, "unknown key 'dataset'; did you mean datasets"),
        ({"datasets": ["Spiral"]}, "unknown dataset 'Spiral'; did you mean Spirals"),
        ({"datasets": [{"variant": "FOU"}]}, "the name of a dataset must be a text"),
        (
            {"datasets": [{"name": "LinearSEM", "varient": "FOU"}]},
            "'varient'.*did you mean variant",
        ),
        ({"datasets": [{"name": "LinearSEM", "variant": "XOU"}]}, "'XOU'.*LinearSEM"),
        (
            {"datasets": [{"name": "LinearSEM", "num_examples": "many"}]},
            "num_examples.*must be int",
        ),
        ({"algorithms": ["ERMM"]}, "unknown algorithm 'ERMM'; did you mean ERM"),
        ({"algorithms": [{"name": "IRM", "hparms": {}}]}, "unknown key 'hparms'.*mean hparams"),
        (
            {"algorithms": [{"name": "IRM", "hparams": {"penalty": 1}}]},
            "unknown .*'penalty'.*hyperparameters of IRM.*penalty_weight",
        ),
        ({"algorithms": [{"name": "IRM", "hparams": {"lr": "fast"}}]}, "'lr'.*must be float"),
        (
            {"algorithms": [{"name": "ANDMask", "hparams": {"tau": 1.5}}]},
            "'tau'.*between 0.* and 1",
        ),
        (
            {"algorithms": [{"name": "IRM", "hparams": {"lr": [1, 2]}}], "hparam_draws": 3},
            "'lr' in the hyperparameters of IRM lists 2 values, none for draw 2",
        ),
        ({"algorithms": ["ERM", "ERM"]}, "two algorithms are called 'ERM'"),
        ({"test_environments": [["9"]]}, "unknown environment '9'.*test_environments"),
        ({"test_environments": "all"}, "test_environments"),
        ({"test_environments": [["0.2", "2", "5"]]}, "no environment is left to train on"),
        ({"test_environments": [["5", "5"]]}, "different"),
        ({"validation_environments": ["5"]}, "'5' of LinearSEM.* is both test and validation"),
        ({"validation_environments": 2}, "leave none to train on"),
        ({"trials": 0}, "trials must be"),
        ({"trials": [1, 1]}, "trials must be"),
        ({"hparam_draws": [-1]}, "hparam_draws must be"),
        ({"steps": 0}, "steps must be"),
        ({"steps": "many"}, "steps"),
        ({"network": "MPL"}, "unknown network 'MPL'.*did you mean MLP"),
        ({"network": {"name": "MLP", "hparams": {"widht": 2}}}, "'widht'.*did you mean width"),
        ({"holdout": 1.0}, "holdout"),
        ({"datasets": []}, "datasets"),
        ({"datasets": ["ColoredMNIST"]}, "ColoredMNIST needs --data-dir"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_plan(validate(TINY | changes, "tiny"))
    assert "\n" not in str(caught.value)


def test_an_empty_training_set_is_named() -> None:
    dataset = {"name": "LinearSEM", "num_examples": 1}
    with pytest.raises(UserError, match=r"environment '0\.2' has no example to train on"):
        tiny(datasets=[dataset])


def test_all_alternatives_are_told() -> None:
    with pytest.raises(UserError, match=r"steps must be default or a number from 1 on, not 'many'"):
        validate(TINY | {"steps": "many"}, "tiny")


def test_missing_files_and_wrong_yaml(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sweep file"):
        find(str(tmp_path / "no.yaml"))
    with pytest.raises(UserError, match=r"unknown sweep 'quikstart'.*did you mean quickstart"):
        find("quikstart")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [")
    with pytest.raises(UserError, match=r"broken\.yaml is not YAML"):
        read(broken)
    broken.write_text("just words")
    with pytest.raises(UserError, match="keys and values"):
        read(broken)


def test_settings_go_over_the_file(tmp_path: Path) -> None:
    path = find("quickstart")
    assert read(path, ["trials=[5]", "steps=7"]).trials == [5]
    with pytest.raises(UserError, match="key=value"):
        read(path, ["trials"])
    with pytest.raises(UserError, match="unknown key 'trails'"):
        read(path, ["trails=1"])
