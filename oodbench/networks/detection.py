"""torchvision's detector of one class of objects."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.hparams import hparam
from oodbench.networks.base import Network, register
from oodbench.networks.vision import require_image
from oodbench.networks.weights import FromTorchvision, load_fitting, read_weights


@register("FasterRCNN")
class FasterRCNN(FromTorchvision):
    """torchvision's Faster R-CNN on a feature pyramid (arXiv:1506.01497, arXiv:1612.03144).

    Predictions (N, num_outputs, 5) are an image's boxes with the best scores: x1, y1, x2, y2 in pixels, and
    the score; missing boxes are NaN. An image's loss is the sum of torchvision's four losses for the image
    alone.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """With pretrained weights, batch normalisation and the first two blocks are frozen."""

        weights: str = hparam("coco")
        """`none`: random; `coco`: torchvision's, from its cache, without the last layer; or a .pth file for
        torchvision's model with one class and the background. A run's id holds this value, even if it is a
        path, unless `sha256` is given."""
        sha256: str = hparam("", neutral="")
        """The SHA-256 of the file of the weights, which then replaces the path in a run's id; a run refuses
        any other file."""
        body: str = hparam("resnet50", options=("resnet18", "resnet50"))
        """The network below the pyramid; pretrained weights exist for resnet50."""

    model = "fasterrcnn_resnet50_fpn"

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        """Raise UserError if the inputs are not images, or if the weights cannot be loaded."""
        from torchvision.models import detection
        from torchvision.models.detection._utils import overwrite_eps
        from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
        from torchvision.ops import FrozenBatchNorm2d

        super().__init__(hparams)
        self.num_outputs = num_outputs
        require_image("FasterRCNN", input_shape, 32)
        random = hparams.weights == "none"
        backbone = resnet_fpn_backbone(
            backbone_name=hparams.body,
            weights=None,
            norm_layer=nn.BatchNorm2d if random else FrozenBatchNorm2d,
            trainable_layers=5 if random else 3,
        )
        classes = 91 if hparams.weights == "coco" else 2
        model = detection.FasterRCNN(backbone, classes, box_detections_per_img=num_outputs)
        if (file := self.checked_file(vars(hparams))) is not None:
            load_fitting(model, read_weights(file), f"{file} is not a file of {self.model}")
        if hparams.weights == "coco":
            overwrite_eps(model, 0.0)  # these weights were trained with eps = 0
        predictor = model.roi_heads.box_predictor
        self.num_features = predictor.cls_score.in_features
        if classes != 2:
            model.roi_heads.box_predictor = detection.faster_rcnn.FastRCNNPredictor(
                self.num_features, 2
            )
        self.featurizer = model.backbone
        self.classifier = nn.ModuleList([model.rpn, model.roi_heads])

    def losses(self, x: Tensor, targets: Tensor) -> Tensor:
        """Losses (N,) of images (N, 3, H, W) with boxes (N, M, 4); boxes without area are padding."""
        pyramid = self.featurizer(x)
        sums = []
        for i, boxes in enumerate(targets):
            true = boxes[(boxes[:, 2:] > boxes[:, :2]).all(1)].to(x.dtype)
            labels = torch.ones(len(true), dtype=torch.long, device=x.device)
            maps_of_one = {level: maps[i : i + 1] for level, maps in pyramid.items()}
            _, losses = self._heads(x[i : i + 1], maps_of_one, [{"boxes": true, "labels": labels}])
            sums.append(torch.stack(list(losses.values())).sum())
        return torch.stack(sums)

    def forward(self, x: Tensor) -> Tensor:
        """Boxes with scores, (N, num_outputs, 5), of images (N, 3, H, W)."""
        detections, _ = self._heads(x, self.featurizer(x))
        predictions = x.new_full((len(x), self.num_outputs, 5), torch.nan)
        for row, seen in zip(predictions, detections, strict=True):
            row[: len(seen["boxes"])] = torch.cat([seen["boxes"], seen["scores"][:, None]], 1)
        return predictions

    def _heads(
        self, x: Tensor, pyramid: dict[str, Tensor], targets: list[dict[str, Tensor]] | None = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        from torchvision.models.detection.image_list import ImageList

        sizes: Any = [tuple(x.shape[-2:])] * len(x)
        propose, judge = self.classifier.children()
        proposals, first = propose(ImageList(x, sizes), pyramid, targets)
        detections, second = judge(pyramid, proposals, sizes, targets)
        return detections, {**first, **second}
