from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import oodbench
from oodbench.errors import UserError
from oodbench.networks.base import build
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.plan import single
from tests.helpers.data.wilds_images import globalwheat
from tests.helpers.results.sweeps import ended

pytestmark = pytest.mark.slow

SMALL = {"weights": "none", "body": "resnet18"}
SHAPE = (3, 32, 32)


def detector(**hparams: object) -> Any:
    return build("FasterRCNN", SMALL | hparams, SHAPE, 7, seed=0)


def images(count: int) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def targets() -> Tensor:
    """Two boxes, then one, then none."""
    found = torch.full((3, 2, 4), torch.nan)
    found[0] = torch.tensor([[2.0, 2, 15, 15], [16, 4, 30, 20]])
    found[1, 0] = torch.tensor([5.0, 10, 25, 30])
    return found


def torchvisions(network: Any) -> Any:
    """The same layers in torchvision's own detector."""
    from torchvision.models.detection import FasterRCNN

    plain: Any = {"image_mean": (0.0,) * 3, "image_std": (1.0,) * 3}
    plain |= {"min_size": SHAPE[1], "_skip_resize": True}  # in training a size would be drawn
    whole = FasterRCNN(network.featurizer, 2, **plain)
    whole.rpn, whole.roi_heads = network.classifier
    return whole


def test_losses_are_torchvisions_own_of_each_image() -> None:
    network = detector().train()
    whole = torchvisions(network).train()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()  # the images then do not see each other
    x, y = images(3), targets()
    for image, boxes in zip(x, y, strict=True):
        true = boxes[boxes.isfinite().all(1)]
        labels = torch.ones(len(true), dtype=torch.long)
        torch.manual_seed(3)  # of the anchors that are looked at
        wanted = whole([image], [{"boxes": true, "labels": labels}])
        torch.manual_seed(3)
        (found,) = network.losses(image[None], boxes[None])
        torch.testing.assert_close(found, sum(wanted.values()))
    losses = network.losses(x, y)
    assert losses.shape == (3,)
    losses.mean().backward()
    assert all(p.grad is not None for p in network.parameters() if p.requires_grad)


def test_predictions_are_torchvisions_boxes_padded() -> None:
    network = detector().eval()
    x = images(2)
    with torch.no_grad():
        found, wanted = network(x), torchvisions(network).eval()(list(x))
    assert found.shape == (2, 7, 5)
    for row, seen in zip(found, wanted, strict=True):
        count = len(seen["boxes"])
        torch.testing.assert_close(row[:count, :4], seen["boxes"])
        torch.testing.assert_close(row[:count, 4], seen["scores"])
        assert row[count:].isnan().all()


@pytest.mark.nightly
def test_weights_from_a_file(tmp_path: Path) -> None:
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    file = tmp_path / "wheat.pth"
    model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=2)
    torch.save(model.state_dict(), file)
    network = detector(weights=str(file), body="resnet50")
    wanted = model.state_dict()["backbone.body.conv1.weight"]
    torch.testing.assert_close(network.featurizer.body.conv1.weight, wanted)
    assert not network.featurizer.body.conv1.weight.requires_grad
    other = tmp_path / "other.pth"
    torch.save({"fc1": torch.zeros(1)}, other)
    with pytest.raises(UserError, match="is not a file of fasterrcnn_resnet50_fpn: missing: "):
        detector(weights=str(other), body="resnet50")


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:the gradients of")  # of layers that are not ours
def test_a_plan_asks_for_the_file_of_weights_and_a_kept_model_does_not(tmp_path: Path) -> None:
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    globalwheat(tmp_path, 2)
    options = {"size": 32}

    def planned(file: Path, **own: str) -> RunSpec:
        own |= {"body": "resnet18", "weights": str(file)}
        network = {"name": "FasterRCNN", "hparams": own}
        data = {"name": "GlobalWheat", **options}
        return single(data, {"name": "ERM"}, tmp_path, network=network, steps=1)

    file = tmp_path / "wheat.pth"
    with pytest.raises(UserError, match=r"weights: there is no file .*wheat\.pth"):
        planned(file)
    torch.manual_seed(2)
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    torch.save(FasterRCNN(backbone, 2).state_dict(), file)
    with pytest.raises(UserError, match=r"wheat\.pth is not the file of weights with SHA-256 0a"):
        planned(file, sha256="0a")
    spec = planned(file)
    directory = ended(spec, tmp_path / "runs" / spec.id, data_dir=tmp_path, keep_weights=("last",))
    file.unlink()
    with pytest.raises(UserError, match="there is no file"):
        planned(file)
    model = oodbench.load_model(directory.path, data_dir=tmp_path)
    found = oodbench.evaluate(
        model,
        "GlobalWheat",
        options,
        environments=model.dataset.evaluation_environments,
        holdout=spec.holdout,
        data_dir=tmp_path,
    )
    (record,) = directory.records()
    assert found.to_dict("records") == record["evaluations"]


@pytest.mark.nightly
def test_cocos_weights_come_from_torchs_cache_but_for_the_last_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.models.detection import fasterrcnn_resnet50_fpn
    from torchvision.ops import FrozenBatchNorm2d

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("oodbench.networks.weights.sha256", lambda file: "258fb6c6" + 56 * "0")
    file = tmp_path / "checkpoints" / "fasterrcnn_resnet50_fpn_coco-258fb6c6.pth"
    file.parent.mkdir()
    model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91)
    torch.save(model.state_dict(), file)
    network = detector(weights="coco", body="resnet50")
    for ours, whole in zip(network.classifier, (model.rpn, model.roi_heads), strict=True):
        wanted = whole.state_dict()
        for name, value in ours.state_dict().items():
            if not name.startswith("box_predictor."):
                assert torch.equal(value, wanted[name]), name
    assert network.classifier[1].box_predictor.cls_score.out_features == 2
    frozen = [m for m in network.modules() if isinstance(m, FrozenBatchNorm2d)]
    assert frozen and {m.eps for m in frozen} == {0.0}
