"""Trained models from kept weights, what cannot be loaded, and scores of any module."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss
from torch import Tensor, nn

import oodbench
from oodbench.datasets import make, require_files
from oodbench.errors import UserError
from oodbench.registry import load_plugins
from oodbench.results.directory import Directory, compact
from oodbench.results.run_directory import kept_weights
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from oodbench.tasks import Task
from oodbench.train.execute import execute
from oodbench.train.models import as_outputs
from oodbench.train.settings import TrainSettings
from tests.helpers.commands import type_in
from tests.helpers.data.pictures import draw
from tests.helpers.results.sweeps import ODD_METHODS, planned, require_close, tiny, trained
from tests.networks.test_vision import resnet_file

RULES = ("train_val", "last")
METHODS = ("ERM", "DANN", "Neighbours", "MTL")
"""The last one is transductive."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    network = {"name": "MLP", "hparams": {"width": 8}}
    hparams = {"lr": [0.01, 0.1], "batch_size": 64}
    rows = [{"name": name, "hparams": hparams} for name in METHODS]
    keys = {"trials": 1, "hparam_draws": 2, "steps": 12, "evaluate_every": 4, "network": network}
    data = {"name": "ColoredDigits", "copies": 1, "label": "ColoredDigits"}
    plan = tiny(datasets=[data], algorithms=rows, **keys)
    results = trained(tmp_path_factory.mktemp("models"), plan, keep_weights=RULES)
    compact(results)
    return results


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_loaded_model_has_the_numbers_of_the_chosen_record(
    results: Directory, algorithm: str
) -> None:
    cell: Any = {"dataset": "ColoredDigits", "algorithm": algorithm, "test_environment": "0.9"}
    model = oodbench.load_model(results.path, **cell, rule="train_val")
    by_default = oodbench.load_model(results.path, algorithm=algorithm)
    assert (by_default.spec, by_default.step) == (model.spec, model.step)
    last = oodbench.load_model(results.path, algorithm=algorithm, rule="last", trial=0)
    assert last.step == 12 and last.spec == model.spec
    assert not model.training and model.classes == ("5 to 9", "0 to 4")
    assert model.spec.algorithm == algorithm
    found = oodbench.evaluate(model, "ColoredDigits", {"copies": 1}, trial=0, holdout=0.2)
    (record,) = (r for r in results.run(model.spec.id).records() if r["step"] == model.step)
    require_close(found.to_dict("records"), record["evaluations"])


def test_a_run_directory_is_enough(results: Directory) -> None:
    run = results.run(next(iter(results.specs())))
    assert oodbench.load_model(run.path, rule="last").spec.id == run.id
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({}, "keeps weights by last, train_val: say which by rule="),
        (
            {"rule": "oracle"},
            r"kept/\w+ has no weights by oracle \(it has last of step 12, .*`keep_weights=\['oracle'\]`",
        ),
        ({"rule": "last", "algorithm": "DANN"}, "the run of algorithm='ERM', not of 'DANN'"),
        ({"rule": "last", "trial": 1}, "the run of trial=0, not of 1"),
    ]
    for names, words in mistakes:
        with pytest.raises(UserError, match=words):
            oodbench.load_model(run.path, **names)
    model = oodbench.load_model(run.path, rule="last")
    with pytest.raises(
        UserError, match=r"^RotatedDigits: inputs of ColoredDigits .*\(N, 2, 8, 8\)"
    ):
        oodbench.evaluate(model, "RotatedDigits")


def test_where_nothing_is_chosen_the_rule_that_was_asked_for_and_the_reason_are_named(
    tmp_path: Path,
) -> None:
    load_plugins([ODD_METHODS])
    plan = tiny(algorithms=["Raising", "ERM"], trials=1, steps=4, evaluate_every=4)
    failed = planned(tmp_path / "failed", plan)
    for spec in plan.runs.values():
        execute(spec, failed.run(spec.id), TrainSettings())
    reason = "1 of its 1 run failed; .*sweep status` shows why, .* with `failed=True`"
    for rule in ("last", "train_val"):
        with pytest.raises(UserError, match=f"^{rule} chooses nothing for Raising on .*: {reason}"):
            oodbench.Results(failed.path).model("Raising", rule=rule)
    waiting = planned(tmp_path / "planned", plan)
    with pytest.raises(UserError, match=r"^last chooses .* 0: 1 of its 1 run has not ended$"):
        oodbench.load_model(waiting.path, algorithm="ERM", rule="last")


def test_why_prints_the_line_that_loads_from_any_directory(
    results: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(results.path.parent)
    shown = type_in("report", "why", results.path.name, "--algorithm", "ERM", code=0)
    monkeypatch.chdir(tmp_path)
    (line,) = (text for text in shown.stdout.splitlines() if "oodbench.load_model(" in text)
    model = eval(line[line.index("oodbench.") :], {"oodbench": oodbench})
    assert model.spec.label == "ERM"


def damaged(results: Directory, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of a run, and the file of its last weights."""
    run = results.run(next(iter(results.specs())))
    copy = Directory(Path(shutil.copytree(results.path, tmp_path / "copy"))).run(run.id)
    return copy.path, kept_weights(copy)["last", 12]


@pytest.mark.parametrize("size", [0, 4, 100, -5])
def test_a_truncated_file_is_one_sentence(results: Directory, tmp_path: Path, size: int) -> None:
    run, file = damaged(results, tmp_path)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(UserError, match=f"{file.name} is no whole file of kept weights"):
        oodbench.load_model(run, rule="last")


def test_weights_of_another_architecture_or_run_or_none_are_one_sentence(
    results: Directory, tmp_path: Path
) -> None:
    run, file = damaged(results, tmp_path)
    weights = load_file(file)
    name = next(iter(weights))
    about = {"oodbench": f'{{"id": "{run.name}", "step": 12, "sizes": [1, 1]}}'}
    save_file(weights | {name: torch.zeros(3, 3)}, file, about)
    with pytest.raises(UserError, match=f"of another shape: 1 name, such as '{name}'"):
        oodbench.load_model(run, rule="last")
    save_file(weights, file, {"oodbench": '{"id": "other", "step": 12, "sizes": [1, 1]}'})
    with pytest.raises(UserError, match="the weights of another run, other"):
        oodbench.load_model(run, rule="last")
    save_file(weights, file)
    with pytest.raises(UserError, match="is no whole file of kept weights"):
        oodbench.load_model(run, rule="last")
    file.unlink()
    with pytest.raises(UserError, match=r"no weights by last \(it has .*\): if none were deleted"):
        oodbench.load_model(run, rule="last")


def test_standardised_inputs_are_standardised_as_in_training(tmp_path: Path) -> None:
    rows = [
        f"{e},{x:.3f},{5 * x + e:.3f},{'yes' if x > 0.5 else 'no'}"
        for e in range(3)
        for x in np.linspace(0, 1, 40)
    ]
    (tmp_path / "data.csv").write_text("environment,a,b,target\n" + "\n".join(rows))
    data = {"name": "Table", "file": str(tmp_path / "data.csv")}
    plan = tiny(datasets=[data], algorithms=["ERM"], trials=1, steps=8, evaluate_every=4)
    results = trained(tmp_path / "out", plan, keep_weights=RULES)
    model = oodbench.load_model(results.path, rule="last")
    options = {k: v for k, v in data.items() if k != "name"}
    found = oodbench.evaluate(model, "Table", options, holdout=0.2)
    assert found.to_dict("records") == results.run(model.spec.id).records()[-1]["evaluations"]
    assert model.classes == ("no", "yes")
    assert model(torch.tensor([[0.9, 5.0], [0.1, 1.0]])).shape == (2, 1)


def test_new_image_files_are_read_as_in_training(tmp_path: Path) -> None:
    draw(tmp_path / "data", ("north", "south"), ("cat", "dog"), 5, (".png",), (20, 20))
    data = {"name": "ImageFolder", "size": 16}
    keys = {"trials": 1, "steps": 2, "evaluate_every": 2, "network": "ConvNet"}
    sweep = {"name": "own", "datasets": [data], "algorithms": ["ERM"], **keys}
    plan = make_plan(validate(sweep, "own"), tmp_path / "data")
    results = trained(tmp_path / "out", plan, data_dir=tmp_path / "data", keep_weights=RULES)
    with pytest.raises(UserError, match="ImageFolder is not there as the run saw it"):
        oodbench.load_model(results.path, rule="last")
    model = oodbench.load_model(results.path, rule="last", data_dir=tmp_path / "data")
    files = sorted((tmp_path / "data" / "south").rglob("*.png"))
    inputs = require_files(model.dataset).read(files)
    assert inputs.shape == (10, 3, 16, 16) and inputs.dtype == torch.uint8
    right = model(inputs).argmax(1) == torch.tensor([0] * 5 + [1] * 5)
    (record,) = results.run(model.spec.id).records()
    (accuracy,) = (
        e["value"] * e["count"]
        for e in record["evaluations"]
        if (e["environment"], e["split"], e["metric"]) == ("south", "in", "accuracy")
    )
    assert model.classes == ("cat", "dog") and 0 <= int(right.sum()) - accuracy <= 2
    with pytest.raises(UserError, match="cannot be read as an image"):
        require_files(model.dataset).read([tmp_path / "out" / "sweep.json"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "algorithm"),
    [
        ("ResNet18", "ERM"),
        ("timm", "WiSEFT"),
        pytest.param("timm", "MIRO", marks=pytest.mark.nightly),
    ],
)
def test_the_file_of_pretrained_weights_is_not_needed_any_more(
    tmp_path: Path, network: str, algorithm: str
) -> None:
    own: dict[str, Any] = {"freeze_batch_norm": True}
    if network == "timm":
        pytest.importorskip("timm")
        from tests.networks.test_timm import file_of

        own |= {"model": "resnet10t", "weights": str(file_of("resnet10t", tmp_path / "w.pth"))}
    else:
        own |= {"weights": str(resnet_file(tmp_path / "w.pth"))}
    draw(tmp_path / "data", ("north", "south"), ("cat", "dog"), 5, (".png",), (20, 20))
    options = {"root": str(tmp_path / "data"), "size": 32}
    keys = {"trials": 1, "steps": 2, "evaluate_every": 2}
    plan = tiny(
        datasets=[{"name": "ImageFolder", **options}],
        algorithms=[algorithm],
        network={"name": network, "hparams": own},
        **keys,
    )
    results = trained(tmp_path / "out", plan, keep_weights=RULES)
    x = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    before = oodbench.load_model(results.path, rule="last")
    (tmp_path / "w.pth").unlink()
    after = oodbench.load_model(results.path, rule="last")
    assert torch.equal(before(x), after(x)) and before(x).std() > 0
    found = oodbench.evaluate(after, "ImageFolder", options, trial=0, holdout=0.2)
    assert found.to_dict("records") == results.run(after.spec.id).records()[-1]["evaluations"]


class ColourAlone(nn.Module):
    """Two logits, from which of the two channels has the ink."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seen_training: set[bool] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen_training.add(self.training or torch.is_grad_enabled())
        return self.scale * x.sum((2, 3))


def test_it_has_the_metrics_of_every_environment() -> None:
    module = ColourAlone().train()
    found = oodbench.evaluate(module, "ColoredDigits", {"copies": 1}, trial=3)
    assert module.seen_training == {False} and module.training
    dataset = make("ColoredDigits", {"copies": 1})
    assert list(found.columns) == ["environment", "split", "metric", "value", "count"]
    assert set(found["environment"]) == set(dataset.environments) and set(found["split"]) == {"in"}
    for name, environment in dataset.load(3).items():
        scores = dataset.transform(environment.x, None).sum((2, 3))
        y, guess = environment.y.long().numpy(), scores.argmax(1).numpy()
        own = found[found["environment"] == name].set_index("metric")
        assert (own["count"].loc[["accuracy", "loss"]] == len(y)).all()
        assert own["value"]["accuracy"] == pytest.approx(accuracy_score(y, guess))
        assert own["value"]["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, guess))
        share = scores.double().softmax(1).numpy()
        assert own["value"]["loss"] == pytest.approx(log_loss(y, share), rel=1e-5)
        assert 0 <= own["value"]["worst_group_accuracy"] <= own["value"]["accuracy"]


def test_environments_may_be_named() -> None:
    table = oodbench.evaluate(ColourAlone(), "ColoredDigits", environments=["0.9"], holdout=0.25)
    assert set(table["environment"]) == {"0.9"} and set(table["split"]) == {"in", "out"}


def test_metrics_of_the_predictor_itself_are_there() -> None:
    table = oodbench.evaluate(nn.LazyLinear(1), "LinearSEM", {"num_examples": 40})
    own = table[table["environment"].isna()]
    assert "causal_error" in set(own["metric"]) and own["split"].isna().all()


def test_outputs_of_two_classes_have_three_shapes() -> None:
    binary, logits = Task("binary"), torch.tensor([[0.0, 2.0], [1.0, 0.5]])
    wanted = torch.tensor([[2.0], [-0.5]])
    for given in (wanted, wanted.squeeze(1), logits):
        assert as_outputs(given, 2, binary).equal(wanted)
