"""Every set's small copy goes through the package itself: its reader, grouper, splits and eval."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from oodbench.data.preparation import fitted, load_checked
from oodbench.datasets import make
from oodbench.datasets import wilds_package as official
from oodbench.errors import UserError
from oodbench.metrics import values_of_examples
from oodbench.networks.base import build
from oodbench.results import predictions
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan, single
from tests.helpers.data.transformers_copies import small_distilbert
from tests.helpers.data.wilds_copies import COPIES, SMALL, opened, right, rows
from tests.helpers.results.sweeps import ended

ATTRIBUTES = {
    "FMoW": ("Americas", "Europe", "Africa", "Asia", "Oceania"),
    "PovertyMap": ("not urban", "urban"),
    "CivilComments": ("not black", "black"),
    "CelebA": ("not male", "male"),
    "Waterbirds": ("land", "water"),
}


@pytest.mark.parametrize("name", COPIES)
def test_attributes_are_of_a_field(name: str, wilds_dir: Path) -> None:
    dataset = opened(name, wilds_dir)
    assert dataset.attributes == ATTRIBUTES.get(name, ())
    for environment, found in load_checked(dataset, 0).items():
        assert (found.attributes is None) == (name not in ATTRIBUTES)
        if found.attributes is not None:
            _, _, fields = rows(dataset, environment)
            assert found.attributes.tolist() == fields[dataset.row.attribute].tolist()


@pytest.mark.parametrize("name", COPIES)
def test_environments_are_groups_of_train_and_other_splits(name: str, wilds_dir: Path) -> None:
    dataset = opened(name, wilds_dir)
    data, found = dataset.data, load_checked(dataset, 0)
    assert tuple(found) == tuple(fitted(dataset, found, {})) == dataset.environments
    splits = np.asarray(data.split_array, dtype=int)
    for split in dataset.evaluation_environments:
        wanted = np.flatnonzero(splits == data.split_dict[split])
        assert dataset.places[split].tolist() == wanted.tolist()
    groups = dataset.trainable(())
    assert groups and {"val", "test"} <= set(dataset.evaluation_environments)
    train = torch.cat([dataset.places[group] for group in groups]).sort().values
    assert train.tolist() == np.flatnonzero(splits == data.split_dict["train"]).tolist()
    for group in groups:
        _, _, fields = rows(dataset, group)
        for field in dataset.row.group_by:
            assert len(set(fields[field])) == 1
    values = [[rows(dataset, g)[2][f][0] for f in dataset.row.group_by[::-1]] for g in groups]
    assert all(a < b for a, b in pairwise(values))
    for environment in found.values():
        assert len(environment.x) == len(environment.y)
        x = dataset.transform(environment.x.read(torch.tensor([0])), None)
        assert x.shape == (1, *dataset.input_shape)
    y = found["test"].y
    metrics = values_of_examples(dataset.task, right(dataset, y), y)
    assert all(v.isfinite().all() and v.shape == (len(y),) for v in metrics.values())


def test_inputs_are_the_pictures_themselves(wilds_dir: Path) -> None:
    dataset = opened("Camelyon17", wilds_dir)
    row = int(dataset.places["val"][2])
    picture = np.asarray(dataset.data.get_input(row)).transpose(2, 0, 1)
    read = dataset.load(0)["val"].x.read(torch.tensor([2]))
    assert (read[0].numpy() == picture).all()
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    wanted = (picture / 255 - mean[:, None, None]) / std[:, None, None]
    assert dataset.transform(read, None)[0].numpy() == pytest.approx(wanted, abs=1e-5)


def test_rxrx1_is_standardised_by_image_and_turned_in_training(wilds_dir: Path) -> None:
    dataset = opened("RxRx1", wilds_dir, size=32)
    raw = dataset.load(0)["test"].x.read(torch.arange(8))
    x = dataset.transform(raw, None)
    torch.testing.assert_close(x.mean((2, 3)), torch.zeros(8, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((2, 3)), torch.ones(8, 3))
    turned = dataset.transform(raw, torch.Generator().manual_seed(0))
    same = dataset.transform(raw, torch.Generator().manual_seed(0))
    assert torch.equal(turned, same) and not torch.equal(turned, x)
    for image, original in zip(turned, x, strict=True):
        views = [torch.rot90(v, k, (1, 2)) for v in (original, original.flip(2)) for k in range(4)]
        assert any(torch.allclose(image, view, atol=1e-5) for view in views)


@pytest.mark.parametrize(("group_by", "names"), [(["all"], ("all",)), (["slide"], None)])
def test_other_groups(group_by: list[str], names: tuple[str, ...] | None, wilds_dir: Path) -> None:
    dataset = opened("Camelyon17", wilds_dir, group_by=group_by)
    groups = dataset.trainable(())
    assert groups == names if names else all(g.startswith("slide:") for g in groups)
    assert sum(len(dataset.places[g]) for g in groups) == 30


def test_texts_of_words(wilds_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # transformers takes a folder of the name
    small_distilbert(tmp_path)
    dataset = make("Amazon", {"size": 12}, wilds_dir)
    ids = dataset.load(0)["test"].x.read(torch.tensor([0, 1]))
    assert ids.shape == (2, 12) and (ids[:, 0] == 2).all() and 7 in ids[1]  # [CLS], star
    network = build("DistilBERT", dataset.network_hparams, dataset.input_shape, 5, seed=0)
    assert network(ids).shape == (2, 5)


def test_data_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Camelyon17 needs --data-dir DIR"):
        make("Camelyon17", {}).check()
    command = f"get it with `python -m oodbench.data download Camelyon17 --data-dir {tmp_path}`"
    with pytest.raises(UserError, match=f"camelyon17_v1.0/metadata.csv is missing.*{command}$"):
        make("Camelyon17", {}, tmp_path).check()
    (tmp_path / "camelyon17_v0.9").mkdir()
    with pytest.raises(UserError, match=f"version 1.0 is needed; {tmp_path} has camelyon17_v0.9"):
        make("Camelyon17", {}, tmp_path).check()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["camelyon17_v0.9"]


def damaged(tmp_path: Path) -> tuple[Path, Any]:
    COPIES["Camelyon17"](tmp_path)
    official.read.cache_clear()
    return tmp_path / "camelyon17_v1.0", make("Camelyon17", {}, tmp_path)


def test_a_table_that_breaks_off(tmp_path: Path) -> None:
    folder, dataset = damaged(tmp_path)
    table = folder / "metadata.csv"
    text = table.read_text().rstrip("\n")
    table.write_text(text)
    dataset.check()  # a table need not end in a new line
    official.read.cache_clear()
    for end in ("", ","):
        table.write_text(text.rpartition(",")[0] + end)
        with pytest.raises(UserError, match=r"metadata\.csv breaks off in its last row, '59,"):
            make("Camelyon17", {}, tmp_path).check()


@pytest.mark.filterwarnings("ignore:Exception ignored in")  # Pillow leaves a broken file open
@pytest.mark.parametrize("harm", ["missing", "truncated", "foreign"])
def test_a_picture_that_cannot_be_read(harm: str, tmp_path: Path) -> None:
    folder, dataset = damaged(tmp_path)
    file = folder / dataset.data._input_array[int(dataset.places["val"][0])]
    if harm == "missing":
        file.unlink()
    elif harm == "truncated":
        Image.new("RGB", (96, 96)).save(file)
        file.write_bytes(file.read_bytes()[:80])
    else:
        file.write_text("no picture")
    with pytest.raises(UserError, match=r"the example of row \d+ .* cannot be read"):
        dataset.check()


def test_rxrx1_needs_pandas_2(monkeypatch: pytest.MonkeyPatch, wilds_dir: Path) -> None:
    monkeypatch.setattr("pandas.__version__", "3.1.1")
    official.read.cache_clear()
    with pytest.raises(UserError, match=r"RxRx1: wilds reads it with pandas 2 alone, .* 3\.1"):
        opened("RxRx1", wilds_dir).load(0)


def test_the_plan_takes_the_packages_splits_and_settings(wilds_dir: Path) -> None:
    planned = partial(single, {"name": "Camelyon17"}, {"name": "ERM"}, wilds_dir, network="ConvNet")
    run = planned()
    assert (run.test_environments, run.validation_environments) == (("test",), ("val",))
    assert (run.holdout, run.steps) == (0.0, 94_511)
    wanted = {"lr": 1e-3, "weight_decay": 1e-2, "optimizer": "sgd", "batch_size": 16}
    assert (wanted | {"environments_per_step": 2}).items() <= run.hparams.items()
    run = planned(validation_environments=["id_val"], test_environments=[["test", "val"]])
    assert run.validation_environments == ("id_val",)


LATER: dict[str, Any] = {"name": "later", "trials": 1, "steps": 1}
LATER |= {"algorithms": ["ERM", "IRM", "VREx", "DANN", "ANDMask", "TemporalANDMask"]}
IMPOSSIBLE = {
    "Py150": {"DANN": "it needs one feature vector and one target of each example, unlike tokens"},
    "GlobalWheat": {
        "IRM": "a detector's losses are not a function of its outputs",
        "DANN": "it needs one feature vector and one target of each example, unlike boxes",
        "ANDMask": "a detector's losses have no gradient for each environment in one pass",
    },
}
NETWORKS: dict[str, dict[str, Any]] = {
    "Py150": {"name": "CodeGPT", "hparams": {"layers": 1, "width": 16, "heads": 2}},
    "GlobalWheat": {"name": "FasterRCNN", "hparams": {"body": "resnet18"}},
}


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:the gradients of")  # of layers that are not ours
@pytest.mark.parametrize("name", ["Py150", pytest.param("GlobalWheat", marks=pytest.mark.slow)])
def test_what_trains_on_tokens_and_boxes(name: str, wilds_dir: Path, tmp_path: Path) -> None:
    keys = {**LATER, "datasets": [{"name": name, **SMALL[name]}], "network": NETWORKS[name]}
    plan = make_plan(validate(keys, "later"), wilds_dir)
    reasons = {i.algorithm: i.reason for i in plan.impossible}
    assert reasons == IMPOSSIBLE[name]
    assert len(plan.runs) == len(LATER["algorithms"]) - len(reasons)
    for run in list(plan.runs.values())[: 5 if name == "Py150" else 1]:  # detectors are slow
        directory = ended(run, tmp_path / run.id, data_dir=wilds_dir, keep_predictions=True)
        (record,) = directory.records()
        found = {(e["environment"], e["metric"]): e["value"] for e in record["evaluations"]}
        dataset = opened(name, wilds_dir)
        assert 0 <= found["test", dataset.metric] <= 1
        kept = torch.from_numpy(predictions.read_predictions(directory, 1)["test"].logits)
        wanted = dataset.split_metrics("test", torch.arange(len(kept)), kept)
        assert found["test", dataset.metric] == pytest.approx(wanted[dataset.metric])
