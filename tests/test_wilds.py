"""Every set's small copy goes through the package itself: its reader, grouper, splits and eval."""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from scipy.stats import pearsonr
from sklearn.metrics import average_precision_score, f1_score
from torch import Tensor
from typer.testing import CliRunner

from oodbench import official, predictions, report, sweep
from oodbench.datasets import Dataset, make
from oodbench.errors import UserError
from oodbench.execute import execute
from oodbench.inputs import distilbert_tokenizer
from oodbench.job import Settings
from oodbench.networks import build
from oodbench.plan import make_plan, validate
from oodbench.records import Results
from oodbench.selection import choose
from oodbench.tables import leaderboard
from tests.transformers_copies import small_codegpt, small_distilbert
from tests.wilds_copies import COPIES

ALL = pytest.mark.parametrize("name", COPIES)
TEXT: dict[str, object] = {"from_scratch": True, "size": 12}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory with a copy of every set."""
    root = tmp_path_factory.mktemp("wilds")
    for write in COPIES.values():
        write(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)  # transformers takes a folder of a name
        small_codegpt(root)
        yield root
    official.read.cache_clear()


SMALL: dict[str, dict[str, object]] = {
    **{name: TEXT for name in ("CivilComments", "Amazon", "Yelp")},
    "GlobalWheat": {"from_scratch": True, "size": 32},
    "Py150": {"from_scratch": True, "size": 16},
}
"""Options with which the copies can be read."""


def opened(name: str, root: Path, **options: object) -> Any:
    return make(name, {**SMALL.get(name, {}), **options}, root)


def right(dataset: Any, y: Tensor) -> Tensor:
    """Outputs that are right, in the shape of the task's."""
    task = dataset.task
    if task.kind == "boxes":
        return torch.cat([y, torch.full((*y.shape[:2], 1), 0.9)], 2)
    if task.kind in ("multiclass", "tokens"):
        sure = torch.nn.functional.one_hot(y.nan_to_num().long(), task.num_outputs) * 9.0
        return sure + 0.1 * torch.rand(sure.shape)  # no two scores are equal
    return (2 * y - 1).nan_to_num() if task.kind == "multilabel" else y


def logits(dataset: Dataset, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dataset.task.num_outputs, generator=generator)


def rows(dataset: Any, environment: str) -> tuple[Tensor, Any, Any]:
    """The rows of an environment, its targets and its metadata by field."""
    index = dataset.places[environment]
    table = dataset.data.metadata_array[index].numpy()
    fields = dict(zip(dataset.data.metadata_fields, table.T, strict=True))
    return index, dataset.load(0)[environment].y.numpy(), fields


@ALL
def test_environments_are_the_groups_of_train_and_the_other_splits(name: str, root: Path) -> None:
    dataset = opened(name, root)
    data, found = dataset.data, dataset.load(0)
    assert tuple(found) == dataset.environments
    splits = np.asarray(data.split_array, dtype=int)
    for split in dataset.evaluation_environments:
        assert (
            dataset.places[split].tolist()
            == np.flatnonzero(splits == data.split_dict[split]).tolist()
        )
    groups = dataset.trained_on(())
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
    metrics = dataset.task.metrics(right(dataset, y), y)
    assert all(v.isfinite().all() and v.shape == (len(y),) for v in metrics.values())


@ALL
def test_the_official_metric_of_right_predictions_is_the_best(name: str, root: Path) -> None:
    dataset = opened(name, root)
    y = dataset.load(0)["test"].y
    kept = dataset.task.kept(right(dataset, y))
    found = dataset.split_metrics("test", torch.arange(len(y)), kept)
    assert found[dataset.metric] == pytest.approx(1)
    assert dataset.metric in found and dataset.higher_is_better
    assert not any(":" in metric for metric in found)


def test_worst_slide_and_average_of_camelyon(root: Path) -> None:
    dataset = opened("Camelyon17", root)
    _, y, fields = rows(dataset, "val")
    guess = logits(dataset, len(y))
    right = guess.argmax(1).numpy() == y
    worst = min(right[fields["slide"] == s].mean() for s in set(fields["slide"]))
    found = dataset.split_metrics("val", torch.arange(len(y)), guess)
    assert found == pytest.approx({"acc_avg": right.mean(), "acc_wg": worst})


def test_macro_f1_of_iwildcam(root: Path) -> None:
    dataset = opened("iWildCam", root)
    _, y, _ = rows(dataset, "test")
    guess = logits(dataset, len(y), 1)[:, :4]
    padded = torch.nn.functional.pad(guess, (0, 178), value=-9.0)
    found = dataset.split_metrics("test", torch.arange(len(y)), padded)
    wanted = f1_score(y, guess.argmax(1), average="macro", labels=np.unique(y), zero_division=0)
    assert found["F1-macro_all"] == pytest.approx(wanted)
    assert 0 < wanted < 1


def test_worst_region_of_fmow(root: Path) -> None:
    dataset = opened("FMoW", root)
    _, y, fields = rows(dataset, "test")
    guess = logits(dataset, len(y)) + 4 * (torch.arange(62) < 8)
    right = guess.argmax(1).numpy() == y
    worst = min(right[fields["region"] == r].mean() for r in set(fields["region"]))
    year = min(right[fields["year"] == r].mean() for r in set(fields["year"]))
    found = dataset.split_metrics("test", torch.arange(len(y)), guess)
    assert found["acc_worst_region"] == pytest.approx(worst)
    assert found["acc_worst_year"] == pytest.approx(year)


def test_worse_correlation_of_poverty(root: Path) -> None:
    dataset = opened("PovertyMap", root)
    _, y, fields = rows(dataset, "test")
    guess = torch.from_numpy(y) + logits(dataset, len(y))
    found = dataset.split_metrics("test", torch.arange(len(y)), guess)
    split = [fields["urban"] == u for u in (0, 1)]
    r = [pearsonr(guess[s, 0].numpy(), y[s, 0])[0] for s in split]
    assert found["r_wg"] == pytest.approx(min(r), rel=1e-5)
    assert found["mse_avg"] == pytest.approx(((guess.numpy() - y) ** 2).mean())


def test_worst_group_of_civil_comments(root: Path) -> None:
    dataset = opened("CivilComments", root)
    _, y, fields = rows(dataset, "test")
    guess = logits(dataset, len(y))
    right = guess.argmax(1).numpy() == y
    names = [f for f in dataset.data.metadata_fields[:8]]
    groups = [right[(fields[f] == 1) & (y == c)] for f in names for c in (0, 1)]
    found = dataset.split_metrics("test", torch.arange(len(y)), guess)
    # a group that a split has none of counts as 0 in the package
    assert found["acc_wg"] == pytest.approx(min(g.mean() if len(g) else 0 for g in groups))


def test_tenth_percentile_of_amazon(root: Path) -> None:
    dataset = opened("Amazon", root)
    _, y, fields = rows(dataset, "test")
    guess = logits(dataset, len(y))
    right = guess.argmax(1).numpy() == y
    users = [right[fields["user"] == u].mean() for u in set(fields["user"])]
    found = dataset.split_metrics("test", torch.arange(len(y)), guess)
    assert found["10th_percentile_acc"] == pytest.approx(np.percentile(users, 10))


def test_average_precision_of_molpcba(root: Path) -> None:
    dataset = opened("MolPCBA", root)
    _, y, _ = rows(dataset, "val")
    guess = logits(dataset, len(y))
    each = []
    for labels, scores in zip(y.T, guess.numpy().T, strict=True):
        known = np.isfinite(labels)
        if 0 < labels[known].sum() < known.sum():
            each.append(average_precision_score(labels[known], scores[known]))
    found = dataset.split_metrics("val", torch.arange(len(y)), guess)
    assert found["ap"] == pytest.approx(np.mean(each))


def test_average_precision_of_encode(root: Path) -> None:
    dataset = opened("ENCODE", root)
    _, y, _ = rows(dataset, "id_test")
    guess, known = logits(dataset, len(y)), np.isfinite(y)
    found = dataset.split_metrics("id_test", torch.arange(len(y)), guess)
    wanted = average_precision_score(y[known], guess.numpy()[known])
    assert found["avgprec-macro_all"] == pytest.approx(wanted)
    assert 0.2 < known.mean() < 1


def test_tracks_of_encode(root: Path) -> None:
    """The sequence as it is, and the signal of the row's kind of cell from 3,200 bases before."""
    dataset = opened("ENCODE", root)
    row = int(dataset.places["val"][1])
    place = dataset.data._metadata_df.iloc[row]
    start = place["start"] - 3200
    x = dataset.load(0)["val"].x.read(torch.tensor([1]))[0].numpy()
    bases = np.load(root / "encode_v1.0" / "sequence.npz")[place["chr"]][start : start + 12_800]
    assert (x[:4] == bases.T).all() and (x[:4].sum(0) == 1).all()
    known = np.isfinite(y := dataset.load(0)["val"].y[1].numpy())
    assert known.any() and (x[4, 3200::50][:128][known] == y[known]).all()


def test_accuracies_of_py150(root: Path) -> None:
    """`acc` is that of classes and methods; a token that is not asked for counts nowhere."""
    dataset = opened("Py150", root)
    _, y, fields = rows(dataset, "test")
    kinds = np.stack([fields[f"tok_{k}_type"] for k in range(16)], 1)
    outputs = right(dataset, torch.from_numpy(y))
    outputs[::2] = torch.randn(outputs[::2].shape)
    kept = dataset.task.kept(outputs)
    hit = kept.numpy() == y
    found = dataset.split_metrics("test", torch.arange(len(y)), kept)
    assert found["acc"] == pytest.approx(hit[kinds < 2][kinds[kinds < 2] >= 0].mean())
    assert found["Acc (Overall)"] == pytest.approx(hit[np.isfinite(y)].mean())
    assert 0.4 < found["acc"] < 0.7 and np.isnan(y[:, 0]).all()
    ours = dataset.task.metrics(outputs, torch.from_numpy(y))["accuracy"]
    assert ours.mean() == pytest.approx(found["Acc (Overall)"])


def test_detection_accuracy_of_globalwheat(root: Path) -> None:
    """The mean over sessions of that of images, for boxes in pixels of smaller images."""
    dataset = opened("GlobalWheat", root, size=64)
    _, y, fields = rows(dataset, "test")
    boxes = right(dataset, torch.from_numpy(y))
    boxes[1, 0, :4] += 3  # overlaps by more than a half
    boxes[2, 0, :4] += 12  # false, and the true one is missed
    boxes[3, 0, 4] = 0.4  # not sure enough
    boxes[5] = boxes[5, :1]  # one thing found thrice
    found = dataset.split_metrics("test", torch.arange(len(y)), boxes)
    ours = dataset.task.metrics(boxes, torch.from_numpy(y))["accuracy"].numpy()
    assert ours == pytest.approx([1, 1, 1 / 3, 2 / 3, 1, 1 / 3])
    sessions = [ours[fields["session"] == s].mean() for s in (30, 31)]
    assert found["detection_acc_avg_dom"] == pytest.approx(np.mean(sessions))
    assert found["detection_acc_avg"] == pytest.approx(ours.mean())


def test_a_part_of_a_split_is_evaluated_alone(root: Path) -> None:
    dataset = opened("BDD100K", root)
    _, y, _ = rows(dataset, "test")
    part = torch.tensor([3, 1, 7])
    guess = logits(dataset, 3)
    found = dataset.split_metrics("test", part, guess)
    assert found == pytest.approx({"acc_all": ((guess > 0).numpy() == y[part]).mean()})


def test_predictions_that_are_not_finite(root: Path) -> None:
    camelyon, poverty = opened("Camelyon17", root), opened("PovertyMap", root)
    nan = torch.full((12, 2), float("nan"))
    assert camelyon.split_metrics("test", torch.arange(12), nan)["acc_avg"] == 0
    bdd = opened("BDD100K", root)
    nan = torch.full((20, 9), float("nan"))
    assert bdd.split_metrics("test", torch.arange(20), nan)["acc_all"] == 0
    count = len(poverty.places["test"])
    for value in (float("inf"), 0.5):  # a constant has no correlation
        found = poverty.split_metrics("test", torch.arange(count), torch.full((count, 1), value))
        assert list(found) == ["r_wg"] and np.isnan(found["r_wg"])


def test_group_means() -> None:
    v, g = torch.tensor([1.0, 2.0, 6.0, 5.0]), torch.tensor([2, 0, 2, 2])
    means, counts = official.group_means(v, g, 4)
    assert means.tolist() == [2, 0, 4, 0]
    assert counts.tolist() == [1, 0, 3, 0]


def test_inputs_are_the_pictures_themselves(root: Path) -> None:
    dataset = opened("Camelyon17", root)
    row = int(dataset.places["val"][2])
    picture = np.asarray(dataset.data.get_input(row)).transpose(2, 0, 1)
    read = dataset.load(0)["val"].x.read(torch.tensor([2]))
    assert (read[0].numpy() == picture).all()
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    wanted = (picture / 255 - mean[:, None, None]) / std[:, None, None]
    assert dataset.transform(read, None)[0].numpy() == pytest.approx(wanted, abs=1e-5)


def test_rxrx1_is_standardised_by_image_and_turned_in_training(root: Path) -> None:
    dataset = opened("RxRx1", root, size=32)
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
def test_other_groups(group_by: list[str], names: tuple[str, ...] | None, root: Path) -> None:
    dataset = opened("Camelyon17", root, group_by=group_by)
    groups = dataset.trained_on(())
    assert groups == names if names else all(g.startswith("slide:") for g in groups)
    assert sum(len(dataset.places[g]) for g in groups) == 30


def test_from_scratch() -> None:
    images = make("iWildCam", {}), make("iWildCam", {"from_scratch": True})
    assert [d.network for d in images] == ["ResNet50", "ResNet50"]
    assert [d.network_hparams["weights"] for d in images] == ["imagenet", "none"]
    assert images[1].label == "iWildCam(from_scratch=True)"
    texts = make("Amazon", {}), make("Amazon", {"from_scratch": True})
    assert [d.network for d in texts] == ["DistilBERT", "TextCNN"]


def test_texts_for_distilbert(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # transformers takes a folder of the name
    small_distilbert(tmp_path)
    dataset = make("Amazon", {"size": 12}, root)
    ids = dataset.load(0)["test"].x.read(torch.tensor([0, 1]))
    assert ids.shape == (2, 12) and (ids[:, 0] == 2).all() and 7 in ids[1]  # [CLS], star
    network = build("DistilBERT", dataset.network_hparams, dataset.input_shape, 5, seed=0)
    assert network(ids).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Camelyon17", {"group_by": ["town"]}, "no metadata field 'town' to group by; known: hosp"),
        ("Camelyon17", {"split_scheme": "mine"}, "ValueError: Split scheme mine not recognized"),
        ("Amazon", {"split_scheme": "time", **TEXT}, "FileNotFoundError"),
        ("SQF", {"size": 9}, "has the shape (104,), not (9,)"),
    ],
)
def test_options_that_cannot_be(
    name: str, options: dict[str, object], message: str, root: Path
) -> None:
    with pytest.raises(UserError, match=f"{name}") as caught:
        make(name, options, root).check()
    assert message in str(caught.value)


def test_data_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Camelyon17 needs --data-dir DIR"):
        make("Camelyon17", {}).check()
    command = f"get it with `python -m oodbench.data download Camelyon17 --data-dir {tmp_path}`"
    with pytest.raises(UserError) as caught:
        make("Camelyon17", {}, tmp_path).check()
    assert str(caught.value).endswith(command)
    assert "camelyon17_v1.0/metadata.csv is missing" in str(caught.value)
    (tmp_path / "camelyon17_v0.9").mkdir()
    with pytest.raises(UserError) as caught:
        make("Camelyon17", {}, tmp_path).check()
    assert f"version 1.0 is wanted, and {tmp_path} holds camelyon17_v0.9" in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["camelyon17_v0.9"]


def damaged(tmp_path: Path) -> tuple[Path, Any]:
    COPIES["Camelyon17"](tmp_path)
    official.read.cache_clear()
    return tmp_path / "camelyon17_v1.0", make("Camelyon17", {}, tmp_path)


def test_an_unfinished_download(tmp_path: Path) -> None:
    folder, dataset = damaged(tmp_path)
    (folder / "RELEASE_v1.0.txt").unlink()
    with pytest.raises(UserError, match=r"RELEASE_v1\.0\.txt is missing"):
        dataset.check()


def test_a_table_that_is_none(tmp_path: Path) -> None:
    folder, dataset = damaged(tmp_path)
    (folder / "metadata.csv").write_text("x,y\n1,2\n")
    with pytest.raises(UserError, match=r"Camelyon17: wilds .* cannot read it from .*KeyError"):
        dataset.check()


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


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    distilbert_tokenizer.cache_clear()
    with pytest.raises(UserError, match=r"need the package transformers: `pip install oodbench\["):
        make("Amazon", {}, root).load(0)
    with pytest.raises(UserError, match=r"needs? the package transformers: `pip install oodb"):
        official.construct("py150", "1.0", root, (), download=False)


def test_the_package_does_not_ask_for_newer_ones() -> None:
    version = official.package().version
    assert version.check_outdated is None
    assert not hasattr(version, "thread")


def test_the_plan_takes_the_packages_splits_and_settings(root: Path) -> None:
    keys: dict[str, Any] = {
        "name": "w",
        "datasets": ["Camelyon17"],
        "algorithms": ["ERM"],
        "network": "ConvNet",
        "trials": [0],
    }
    (run,) = make_plan(validate(keys, "w"), root).runs.values()
    assert (run.test_environments, run.validation_environments) == (("test",), ("val",))
    assert (run.holdout, run.steps) == (0.0, 94_511)
    wanted = {"lr": 1e-3, "weight_decay": 1e-2, "optimizer": "sgd", "batch_size": 16}
    assert wanted | {"environments_per_step": 2} == {
        k: run.hparams[k] for k in (*wanted, "environments_per_step")
    }
    keys |= {"validation_environments": ["id_val"], "test_environments": [["test", "val"]]}
    (run,) = make_plan(validate(keys, "w"), root).runs.values()
    assert run.validation_environments == ("id_val",)


LATER: dict[str, Any] = {
    "name": "later",
    "datasets": [{"name": n, **SMALL.get(n, {})} for n in ("Py150", "GlobalWheat")],
    "algorithms": ["ERM", "IRM", "VREx", "DANN", "ANDMask", "TemporalANDMask"],
    "trials": 1,
    "steps": 1,
}
NETWORKS: dict[str, dict[str, Any]] = {
    "Py150": {"name": "CodeGPT", "hparams": {"layers": 1, "width": 16, "heads": 2}},
    "GlobalWheat": {"name": "FasterRCNN", "hparams": {"body": "resnet18"}},
}


@pytest.mark.filterwarnings("ignore:the gradients of")  # of layers that are not ours
@pytest.mark.parametrize("name", NETWORKS)
def test_what_can_be_trained_on_tokens_and_boxes(name: str, root: Path, tmp_path: Path) -> None:
    keys = {**LATER, "datasets": [{"name": name, **SMALL[name]}], "network": NETWORKS[name]}
    plan = make_plan(validate(keys, "later"), root)
    reasons = {i.algorithm: i.reason for i in plan.impossible}
    assert (
        reasons
        == {
            "Py150": {"DANN": "its discriminator takes one feature vector of an example"},
            "GlobalWheat": {
                "IRM": "a detector's losses are no function of the scale of its outputs",
                "DANN": "its discriminator takes one feature vector of an example",
                "ANDMask": "a detector's losses have no gradient for each environment in one pass",
            },
        }[name]
    )
    assert len(plan.runs) == len(LATER["algorithms"]) - len(reasons)
    for run in list(plan.runs.values())[: 5 if name == "Py150" else 1]:  # detectors are slow
        directory = Results(tmp_path).run(run.id)
        settings = Settings(root, keep_predictions=True)
        assert execute(run, directory, settings) == ("done", ""), directory.failure()
        (record,) = directory.records()
        found = {(e["environment"], e["metric"]): e["value"] for e in record["evaluations"]}
        dataset = opened(name, root)
        assert 0 <= found["test", dataset.metric] <= 1
        kept = torch.from_numpy(predictions.read(directory, 1)["test"].logits)
        wanted = dataset.split_metrics("test", torch.arange(len(kept)), kept)
        assert found["test", dataset.metric] == pytest.approx(wanted[dataset.metric])


def test_encode_learns_and_reads_ahead(root: Path, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"name": "e", "datasets": ["ENCODE"], "trials": 1, "steps": 1}
    keys["algorithms"] = [{"name": "VREx", "hparams": {"batch_size": 2}}]
    (run,) = make_plan(validate(keys, "e"), root).runs.values()
    directory = Results(tmp_path).run(run.id)
    assert execute(run, directory, Settings(root, loader_workers=2)) == ("done", "")


SWEEP: dict[str, Any] = {
    "name": "two",
    "datasets": [
        {"name": "Camelyon17", "size": 32},
        {"name": "Amazon", **TEXT},
    ],
    "algorithms": [{"name": "ERM", "hparams": {"lr": 0.01}}, "DANN"],
    "trials": 1,
    "steps": 2,
    "evaluate_every": 1,
}


def test_a_sweep_over_two_sets(root: Path, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(SWEEP))
    out = tmp_path / "out"
    command = ["launch", str(tmp_path / "two.yaml"), "--data-dir", str(root), "--out", str(out)]
    command += ["--launcher", "debug", "--yes", "--keep-predictions"]
    launched = CliRunner().invoke(sweep.app, command)
    assert launched.exit_code == 0, launched.output
    assert "4 done of 4 runs" in launched.output
    assert "Selection val_env: mean over the validation" in " ".join(launched.output.split())
    results = Results(out)
    frames = results.load()
    for run_id, spec in results.plan()["runs"].items():
        dataset = opened(spec["dataset"], root, **spec["options"])
        kept = predictions.read(results.run(run_id), 2)
        assert set(kept) == set(dataset.evaluation_environments)
        own = frames.metrics[(frames.metrics["id"] == run_id) & (frames.metrics["step"] == 2)]
        for split in dataset.evaluation_environments:
            seen = torch.from_numpy(kept[split].logits).float()
            wanted = dataset.split_metrics(split, torch.arange(len(seen)), seen)
            found = own[own["environment"] == split].set_index("metric")["value"]
            assert {m: found[m] for m in wanted} == pytest.approx(wanted)
    board = leaderboard(frames, "val_env")
    assert set(board.frame["metric"]) == {"acc_avg", "10th_percentile_acc"}
    assert set(board.frame["environment"]) == {"test", "average"}
    assert board.higher == {"acc_avg": True, "10th_percentile_acc": True}
    chosen = choose(frames, "val_env")
    for row in board.frame[board.frame["environment"] == "test"].itertuples():
        cell = chosen[(chosen["dataset_label"] == row.dataset) & (chosen["label"] == row.label)]
        values = frames.metrics[frames.metrics["id"] == cell["id"].iloc[0]]
        for split, value in (("test", row.mean), ("val", cell["score"].iloc[0])):
            there = (values["environment"] == split) & (values["metric"] == row.metric)
            there &= values["step"] == cell["step"].iloc[0]
            assert values[there]["value"].tolist() == [value]
    table = CliRunner().invoke(report.app, ["table", str(out)])
    assert "10th_percentile_acc (%)" in table.output and "acc_avg (%)" in table.output
