import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.errors import UserError
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.schemas import SPEC
from oodbench.sweep.file import Row, validate
from oodbench.sweep.launch import LaunchOptions, launch
from oodbench.sweep.plan import make_plan, show_plan
from oodbench.terminal import terminal
from tests.helpers.results.sweeps import DIGITS, TINY, specs, tiny

OWN: dict[str, Any] = {"name": "LinearSEM", "training": {"network": "MLP"}}


def test_a_ceiling_has_the_runs_of_a_row_on_data_of_its_own() -> None:
    row = {"name": "ERM", "label": "homoskedastic", "ceiling": True, "options": {"variant": "FEU"}}
    plain, ceiling = tiny(trials=1), tiny(trials=1, algorithms=["ERM", "IRM", row])
    assert set(plain.runs) < set(ceiling.runs)  # a ceiling moves no id
    (own,) = [spec for i, spec in ceiling.runs.items() if i not in plain.runs]
    assert own.ceiling and own.options["variant"] == "FEU"
    assert own.dataset_label == next(iter(plain.runs.values())).dataset_label
    assert SPEC.validate_json(json.dumps(asdict(own))).id == own.id


def test_a_dataset_says_the_options_of_its_ceilings() -> None:
    rows = ["ERM", {"name": "ERM", "label": "ceiling", "ceiling": True}]
    datasets = [
        {"name": "LinearSEM", "label": "a", "ceiling": {"as_test": True}},
        {"name": "LinearSEM", "label": "b", "dim": 3, "ceiling": {"num_examples": 30}},
    ]
    runs = specs(trials=1, algorithms=rows, datasets=datasets)
    own = {(r.dataset_label, r.label): r.options for r in runs if r.ceiling}
    assert own["a", "ceiling"]["as_test"] and own["b", "ceiling"]["num_examples"] == 30
    plain = [r.options for r in runs if not r.ceiling]
    assert all(o["num_examples"] == 1000 and "as_test" not in o for o in plain)
    with pytest.raises(UserError, match=r"datasets.0.ceiling must be names with values"):
        tiny(algorithms=rows, datasets=[{"name": "LinearSEM", "ceiling": "as_test"}])


def test_a_sweep_names_the_selection_rule_of_its_tables() -> None:
    assert tiny().sweep.selection is None
    assert tiny(selection="oracle").sweep.selection == "oracle"
    assert list(tiny(selection="oracle").runs) == list(tiny().runs)
    assert tiny(selection="val_env", validation_environments=1).runs
    assert tiny(selection="leave_one_out", test_environments="pairs").runs
    with pytest.raises(UserError, match=r"unknown selection rule 'val_emv'; did you mean val_env"):
        tiny(selection="val_emv")


def test_a_rule_that_reads_predictions_needs_them_and_its_rows(tmp_path: Path) -> None:
    plan = tiny(selection="worst_inferred")
    with pytest.raises(UserError, match="worst_inferred reads predictions: add --keep-predictions"):
        launch(plan.sweep, LaunchOptions(out=tmp_path / "out", launcher="debug"))
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="worst_inferred needs accuracies, a row ERM"):
        tiny(selection="worst_inferred", algorithms=["IRM"])


def test_a_launch_with_nothing_to_train_writes_nothing(tmp_path: Path) -> None:
    sweep, out = tiny(trials=1, steps=4, evaluate_every=2).sweep, tmp_path / "out"

    def written() -> dict[Path, int]:
        launch(sweep, LaunchOptions(out=out, launcher="debug"))
        return {f: f.stat().st_mtime_ns for f in out.rglob("*") if "lock" not in f.name}

    assert written() == written()
    renamed = sweep.model_copy(update={"algorithms": [Row(name="ERM", label="mine")]})
    launch(renamed, LaunchOptions(out=out, launcher="debug"))
    assert {"mine", "IRM"} == {*read_results(Directory(out)).runs["label"]}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"name": "GroupDRO", "hparams": {"over": "groups"}}, "needs an attribute of the examples"),
        ({"name": "ERM", "hparams": {"sampling": ["uniform", "subg"]}}, "balances groups"),
    ],
)
def test_what_data_lack_is_known_before_a_run(row: dict[str, Any], reason: str) -> None:
    digits = {"name": "ColoredDigits", "copies": 1}
    row["label"] = "asks"
    plan = tiny(datasets=[TINY["datasets"][0], digits], algorithms=["VREx", row], hparam_draws=2)
    assert {r.dataset for r in plan.runs.values() if r.label == "asks"} == {"ColoredDigits"}
    assert [i.algorithm for i in plan.impossible] == ["asks"]
    assert reason in plan.impossible[0].reason


@pytest.mark.parametrize("known", ["training", "validation", "unknown"])
def test_methods_see_attributes_where_they_are_known_in_training(known: str) -> None:
    rows = ["ERM", "LfF", "DFR", {"name": "ERM", "label": "RWG", "hparams": {"sampling": "rwg"}}]
    plan = tiny(datasets=[DIGITS], algorithms=rows, attributes=known)
    left_out = {cell.algorithm: cell.reason for cell in plan.impossible}
    reason = f"it sees attributes in training, and `attributes: {known}` rules that out"
    assert left_out == ({} if known == "training" else {"DFR": reason, "RWG": reason})


def test_a_rule_sees_no_attributes_where_they_are_unknown() -> None:
    rule, other = "train_val:worst_group_accuracy", "train_val:worst_class_accuracy"
    assert tiny(datasets=[DIGITS], attributes="validation", selection=rule).runs
    assert tiny(datasets=[DIGITS], attributes="unknown", selection=other).runs
    with pytest.raises(UserError, match=rf"sees attributes, .* {other} does"):
        tiny(datasets=[DIGITS], attributes="unknown", selection=rule)


def test_all_methods_or_all_of_a_kind_are_rows() -> None:
    irm = {"name": "IRM", "label": "strong IRM", "hparams": {"penalty_weight": 1e4}}
    digits = {"name": "ColoredDigits", "copies": 1}
    rows = ["GroupDRO", irm, {"kind": "group"}, {"kind": "batch"}]
    plan = tiny(datasets=[digits], algorithms=rows)
    labels = list(dict.fromkeys(run.label for run in plan.runs.values()))
    assert labels[:2] == ["GroupDRO", "strong IRM"]
    own = {n for n in algorithms if algorithms.get(n).changes in ("group", "batch")}
    assert set(labels) == own | {"strong IRM"}
    everything = tiny(datasets=[digits], algorithms="all", trials=1)
    skipped = {cell.algorithm for cell in everything.impossible}
    assert {run.label for run in everything.runs.values()} | skipped == set(algorithms)
    assert "LeastSquares" in skipped


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"datasets": ["Spiral"]}, "unknown dataset 'Spiral'; did you mean Spirals"),
        ({"datasets": [{"name": "LinearSEM", "varient": "FOU"}]}, "'varient'.* mean variant"),
        ({"algorithms": ["ERMM"]}, "unknown algorithm 'ERMM'; did you mean ERM.*--plugin MODULE"),
        ({"algorithms": [{"name": "IRM", "hparams": {"penalty": 1}}]}, "'penalty'.*penalty_weigh"),
        (
            {"algorithms": [{"name": "IRM", "hparams": {"lr": [1, 2]}}], "hparam_draws": 3},
            "'lr' in the hyperparameters of IRM lists 2 values, none for draw 2",
        ),
        ({"algorithms": ["ERM", "ERM"]}, "two algorithms are called 'ERM'"),
        ({"algorithms": [{"kind": "penalties"}]}, "unknown kind of methods 'penalties'.* penalty"),
        ({"network": "Resnet81", "datasets": [OWN]}, "network 'Resnet81'; did you mean ResNet18"),
        ({"test_environments": [["0.2", "2", "5"]]}, "no environment is left to train on"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_plan(validate(TINY | changes, "tiny"))
    assert "\n" not in str(caught.value)


def test_a_metric_of_a_dataset_that_no_run_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.get("ColoredDigits"), "metric", "acc", raising=False)
    message = "unknown metric 'acc' in `metric` of the dataset, .* Colored.*; did you mean accuracy"
    with pytest.raises(UserError, match=message):
        tiny(datasets=[DIGITS], trials=1)


def test_a_dataset_may_say_how_it_is_trained_on() -> None:
    training = {
        **{"steps": 60, "evaluate_every": 30, "validation_environments": ["2"]},
        **{"hparams": {"lr": 0.25}, "network": {"name": "MLP", "hparams": {"width": 8}}},
    }
    datasets = [
        {"name": "LinearSEM", "num_examples": 40, "label": "plain"},
        {"name": "LinearSEM", "num_examples": 50, "label": "own", "training": training},
    ]
    rows = ["ERM", {"name": "ERM", "label": "slow", "hparams": {"lr": 0.125}}]
    runs = specs(datasets=datasets, algorithms=rows)
    plain, own = ([s for s in runs if s.dataset_label == label] for label in ("plain", "own"))
    for several, *wanted in ((plain, 120, 40, "Linear", ()), (own, 60, 30, "MLP", ("2",))):
        for s in several:
            assert [s.steps, s.evaluate_every, s.network, s.validation_environments] == wanted
    assert {s.network_hparams["width"] for s in own} == {8}
    assert {(s.label, s.hparams["lr"]) for s in own} == {("ERM", 0.25), ("slow", 0.125)}


def test_a_dataset_may_have_trials_of_its_own() -> None:
    own = {"label": "more", "copies": 2, "training": {"trials": [0, 3, 4, 5]}}
    datasets = [DIGITS | {"label": "usual"}, DIGITS | own]
    runs = specs(datasets=datasets, algorithms=["ERM"], hparam_draws=2, draws="per trial")
    found = {(s.dataset_label, s.trial) for s in runs}
    assert found == {*product(["usual"], (0, 1)), *product(["more"], (0, 3, 4, 5))}
    assert len(runs) == 2 * (2 + 4)
    more = specs(datasets=datasets[1:], algorithms=["ERM"], hparam_draws=2, draws="per trial")
    assert {s.id for s in more} == {s.id for s in runs if s.dataset_label == "more"}
    with pytest.raises(UserError, match=r"trials must be .* a list of different numbers"):
        tiny(datasets=[DIGITS | {"training": {"trials": [1, 1]}}])


def test_datasets_with_equal_rows_share_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    names: list[dict[str, Any]] = [{"name": "LinearSEM", "label": label} for label in "abc"]
    names[2] |= {"training": {"steps": 7}}
    show_plan(tiny(datasets=names, algorithms=["ERM", "IRM"], trials=1), terminal())
    text = capsys.readouterr().out
    assert text.startswith("a, 1 test set: 5\nb, 1 test set: 5\nEach of them:\nalgorithm")
    assert text.count("Each of them:") == 1 and text.count("algorithm  ") == 2


def test_a_dataset_that_names_itself_takes_a_label(tmp_path: Path) -> None:
    rows = ["age,target,environment", *(f"{n},{n % 2},{'ab'[n // 8]}" for n in range(16))]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    data = {"name": "Table", "file": str(tmp_path / "t.csv")}
    assert {s.dataset_name for s in tiny(datasets=[data]).runs.values()} == {"t"}
    named = tiny(datasets=[data | {"label": "a table"}])
    assert {s.dataset_name for s in named.runs.values()} == {"a table"}


def test_equal_labels_are_refused() -> None:
    one = {"name": "LinearSEM", "num_examples": 40, "label": "data"}
    other = one | {"num_examples": 50}
    with pytest.raises(UserError, match="two datasets are called 'data': give them a `label`"):
        tiny(datasets=[one, other])
    with pytest.raises(UserError, match="two datasets are called 'LinearSEM'"):
        tiny(datasets=["LinearSEM", other | {"label": "LinearSEM"}])
    with pytest.raises(UserError, match="'all datasets' is the name of what is over all datasets"):
        tiny(datasets=[other | {"label": "all datasets"}])
    assert len(tiny(datasets=[one, other | {"label": "50 examples"}]).runs) == 2 * 2 * 2
