"""CLIP's image tower with a head that may start from texts about the classes."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.data.encodings import pretrained, transformers
from oodbench.datasets import Dataset
from oodbench.errors import UserError, missing_package
from oodbench.hparams import hparam
from oodbench.networks.base import Network, register
from oodbench.networks.timm import FILES, ModelInputs
from oodbench.networks.vision import require_image
from oodbench.networks.weights import REPLACED, Pretrained

PIXELS = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "interpolation": "bicubic",
}
"""How CLIP standardises and resizes images (`clip.load` in its authors' code)."""
ADAPTED = ["q_proj", "v_proj"]
"""The layers that LoRA changes: attention's queries and values (arXiv:2106.09685, section 4.2)."""


class _Images(nn.Module):
    """Images (N, C, H, W) to unit vectors (N, F) in the space that images and texts share."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tower, self.projection = model.vision_model, model.visual_projection

    def forward(self, x: Tensor) -> Tensor:
        vectors: Tensor = self.projection(self.tower(pixel_values=x).pooler_output)
        return nn.functional.normalize(vectors, dim=-1)


@register("CLIP")
class CLIP(Pretrained):
    """CLIP's image tower, projection and normalisation, then a linear head (arXiv:2103.00020).

    With `head_init: text` the head starts as the zero-shot classifier of the paper's section 3.1: its
    weights are the text tower's unit vectors of a prompt for each class, times the exponential of the
    learned temperature, so that logits are scaled cosines; in a binary task, the difference of two.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """By default all weights of the tower are trained."""

        weights: str = hparam("openai/clip-vit-base-patch32")
        """A folder with the files of transformers' CLIPModel, a name in transformers' local cache, or
        `none`: random weights in the architecture ViT-B/32. Nothing is downloaded."""
        sha256: str = hparam("")
        """The SHA-256 of the file of the weights, set by the plan; a run refuses any other file."""
        head_init: str = hparam("random", options=("random", "text"))
        """Whether the head starts at random or from the texts of the classes."""
        template: str = hparam("a photo of a {}.", neutral="a photo of a {}.")
        """The prompt; {} is the name of the class."""
        classes: tuple[str, ...] = hparam((), neutral=())
        """The names of the classes in the order of their numbers; by default the dataset's."""
        tuning: str = hparam("all", options=("all", "head", "bias", "lora"))
        """What is trained in addition to the head: the whole tower (`all`), nothing (`head`), the tower's
        biases (`bias`: BitFit, arXiv:2106.10199), or a low-rank change of attention's queries and values
        (`lora`: arXiv:2106.09685, by the package peft)."""
        rank: int = hparam(8, low=1, neutral=8)
        """The rank of the low-rank change; its factor alpha / rank is 1."""
        normalized: bool | None = hparam(None)
        """Whether the dataset standardises inputs with ImageNet's moments; set by the plan."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        """Raise UserError if weights are missing, or class names for a text head."""
        super().__init__(hparams)
        channels = require_image("CLIP", input_shape, 1)
        if channels not in (1, 3):
            raise UserError(f"the network CLIP takes images of 1 or 3 channels, not {channels}")
        if hparams.weights == "none":
            model = transformers().CLIPModel(transformers().CLIPConfig())
        else:
            model = pretrained("CLIPModel", hparams.weights)
        self.checked_file(vars(hparams))
        side = int(model.config.vision_config.image_size)
        inputs = ModelInputs(PIXELS, 3, side, bool(hparams.normalized))
        images = _Images(model)
        _freeze(images, hparams)
        self.num_features = int(model.config.projection_dim)
        self.featurizer = nn.Sequential(*([_Grey()] if channels == 1 else []), inputs, images)
        head = nn.Linear(self.num_features, num_outputs)
        self.classifier = head
        if hparams.head_init == "text" and not REPLACED.get():
            _begin_at_texts(head, hparams)

    @classmethod
    def weights_file(cls, values: Mapping[str, Any]) -> Path | None:
        """The file that `weights` names; raises UserError if it is missing."""
        name = str(values["weights"])
        if name == "none":
            return None
        for file in FILES:
            in_folder = Path(name).expanduser() / file
            if in_folder.is_file():
                return in_folder
            cached = transformers().utils.cached_file(
                name,
                file,
                local_files_only=True,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
                _raise_exceptions_for_gated_repo=False,
            )
            if cached is not None:
                return Path(cached)
        raise UserError(f"there is no {' or '.join(FILES)} of the weights {name} of CLIP")

    @classmethod
    def resolved(cls, values: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
        """Add the dataset's class names for a text head."""
        if values["head_init"] == "text" and not values.get("classes"):
            values = {**values, "classes": tuple(dataset.classes)}
        return super().resolved(values, dataset)

    @classmethod
    def is_zero_shot(cls, values: Mapping[str, object]) -> bool:
        """Whether the head starts from the texts of the classes."""
        return values["head_init"] == "text"


class _Grey(nn.Module):
    """Images (N, 1, H, W) to (N, 3, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


def _begin_at_texts(head: nn.Linear, hparams: CLIP.Hparams) -> None:
    if hparams.weights == "none":
        raise UserError("`head_init: text` of CLIP needs `weights`")
    wanted = max(2, head.out_features)
    if len(hparams.classes) != wanted:
        raise UserError(
            f"`head_init: text` of CLIP needs the names of {wanted} classes, not {len(hparams.classes)}: "
            "name them in the dataset's `classes`, or the network's"
        )
    prompts = tuple(hparams.template.format(name) for name in hparams.classes)
    vectors = text_vectors(hparams.weights, prompts)
    with torch.no_grad():
        weights = vectors if head.out_features > 1 else vectors[1:] - vectors[:1]
        head.weight.copy_(weights)
        head.bias.zero_()


def _freeze(images: _Images, hparams: CLIP.Hparams) -> None:
    if hparams.tuning == "lora":
        try:
            peft: Any = importlib.import_module("peft")
        except ModuleNotFoundError as error:
            raise missing_package("`tuning: lora` of CLIP", "peft", "clip") from error
        change = peft.LoraConfig(
            r=hparams.rank, lora_alpha=hparams.rank, target_modules=ADAPTED, lora_dropout=0.0
        )
        peft.inject_adapter_in_model(change, images)
    elif hparams.tuning != "all":
        for name, parameter in images.named_parameters():
            parameter.requires_grad = hparams.tuning == "bias" and name.endswith("bias")


@lru_cache(maxsize=8)
def text_vectors(weights: str, prompts: tuple[str, ...]) -> Tensor:
    """The text tower's unit vectors of C prompts, times exp(temperature), (C, F)."""
    model, tokenizer = pretrained("CLIPModel", weights), pretrained("CLIPTokenizer", weights)
    tokens = tokenizer(list(prompts), padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = model.eval().text_model(**tokens).pooler_output
        vectors = nn.functional.normalize(model.text_projection(states), dim=-1)
        scaled: Tensor = model.logit_scale.exp() * vectors
    return scaled
