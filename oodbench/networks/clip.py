"""CLIP with both of its sides: a tower for images, and a head made of the names of classes."""

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
from oodbench.identity import sha256
from oodbench.networks.base import Network, register
from oodbench.networks.timm import ModelInputs
from oodbench.networks.vision import require_image
from oodbench.networks.weights import REPLACED, require_sha256

PIXELS = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "interpolation": "bicubic",
}
"""How CLIP's images are standardised and resized (section 2 of its authors' code, `clip.load`)."""
FILES = ("model.safetensors", "pytorch_model.bin")
ADAPTED = ["q_proj", "v_proj"]
"""The layers that get a low-rank change: the queries and values of attention (arXiv:2106.09685, 4.2)."""


class _Images(nn.Module):
    """Images (N, C, H, W) to unit vectors (N, F), with which those of texts are compared."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tower, self.projection = model.vision_model, model.visual_projection

    def forward(self, x: Tensor) -> Tensor:
        vectors: Tensor = self.projection(self.tower(pixel_values=x).pooler_output)
        return nn.functional.normalize(vectors, dim=-1)


@register("CLIP")
class CLIP(Network):
    """CLIP's image tower, projection and normalisation, then a linear head (arXiv:2103.00020).

    With `head_init: text` the head is the zero-shot classifier of the paper's section 3.1: its weights are
    the unit vectors of one prompt a class, times the exponential of the learned temperature, so that
    logits are scaled cosines. A binary task has the difference of its two classes.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """All weights of the tower are trained unless `tuning` says otherwise."""

        weights: str = hparam("openai/clip-vit-base-patch32")
        """A folder of the files of transformers' CLIPModel, a name in its local cache, or none: random
        weights of the size of ViT-B/32. Nothing is downloaded."""
        sha256: str = hparam("")
        """The SHA-256 of the file of the weights; a plan sets it, and a run stops at another file."""
        head_init: str = hparam("random", options=("random", "text"))
        """Whether the head begins at random or at the texts of the classes."""
        template: str = hparam("a photo of a {}.", neutral="a photo of a {}.")
        """The prompt, in which {} stands for the name of a class."""
        classes: tuple[str, ...] = hparam((), neutral=())
        """The names of the classes in the order of their numbers; a plan takes the dataset's."""
        tuning: str = hparam("all", options=("all", "head", "bias", "lora"))
        """The parameters trained beside the head: `all` of the tower, none (`head`), its biases (BitFit,
        arXiv:2106.10199), or a low-rank change of attention's queries and values (LoRA,
        arXiv:2106.09685; the package peft)."""
        rank: int = hparam(8, low=1, neutral=8)
        """The rank of the low-rank change, whose factor alpha / rank is 1."""
        normalized: bool | None = hparam(None)
        """Whether the inputs are standardised with ImageNet's moments; a plan asks the dataset."""

    check_by_building = True

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        """Raise UserError for weights that are not there, and for a text head without class names."""
        super().__init__()
        self.hparams = hparams
        channels = require_image("CLIP", input_shape, 1)
        if channels not in (1, 3):
            raise UserError(f"the network CLIP takes images of 1 or 3 channels, not {channels}")
        model = _model(hparams.weights)
        require_sha256(self.weights_file(vars(hparams)), hparams.sha256)
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
        """The file of the weights, None for random ones; raises UserError if it is missing."""
        name = str(values["weights"])
        if name == "none":
            return None
        for file in FILES:
            folder = Path(name).expanduser() / file
            known = transformers().utils.cached_file(
                name,
                file,
                local_files_only=True,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
                _raise_exceptions_for_gated_repo=False,
            )
            if folder.is_file() or known is not None:
                return folder if folder.is_file() else Path(known)
        raise UserError(f"there is no {' or '.join(FILES)} of the weights {name} of CLIP")

    @classmethod
    def resolved(cls, values: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
        """The hyperparameters with the weights' checksum and, for a text head, classes' names."""
        resolved = dict(values)
        if resolved["normalized"] is None:
            resolved["normalized"] = dataset.normalization is not None
        if resolved["head_init"] == "text" and not resolved.get("classes"):
            resolved["classes"] = tuple(dataset.classes)
        file = cls.weights_file(resolved)
        require_sha256(file, resolved["sha256"])
        resolved["sha256"] = "" if file is None else sha256(file)
        return super().resolved(resolved, dataset)

    @classmethod
    def is_zero_shot(cls, values: Mapping[str, object]) -> bool:
        """Whether the head's weights are the text tower's vectors of prompts."""
        return values["head_init"] == "text"


class _Grey(nn.Module):
    """Images (N, 1, H, W) with their only channel three times."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


def _model(weights: str) -> Any:
    if weights == "none":
        return transformers().CLIPModel(transformers().CLIPConfig())
    return pretrained("CLIPModel", weights)


def _begin_at_texts(head: nn.Linear, hparams: CLIP.Hparams) -> None:
    if hparams.weights == "none":
        raise UserError("`head_init: text` of CLIP needs `weights`")
    wanted = max(2, head.out_features)
    if len(hparams.classes) != wanted:
        raise UserError(
            f"`head_init: text` of CLIP needs the names of {wanted} classes, and there are "
            f"{len(hparams.classes)}: name them in the dataset's `classes`, or the network's"
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
    """The unit vectors of prompts under CLIP's text tower, times exp(temperature), (C, F)."""
    model, tokenizer = pretrained("CLIPModel", weights), pretrained("CLIPTokenizer", weights)
    tokens = tokenizer(list(prompts), padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = model.eval().text_model(**tokens).pooler_output
        vectors = nn.functional.normalize(model.text_projection(states), dim=-1)
        scaled: Tensor = model.logit_scale.exp() * vectors
    return scaled
