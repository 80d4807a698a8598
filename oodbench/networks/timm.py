"""Backbones of the package timm: ResNets, ViTs, DINOv2, CLIP's image towers, ConvNeXts, Swins."""

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from oodbench.datasets import IMAGENET
from oodbench.errors import UserError, counted, missing_package, unknown
from oodbench.hparams import choice, hparam
from oodbench.networks.base import Network, register
from oodbench.networks.vision import add_mix_style, require_image
from oodbench.networks.weights import (
    Pretrained,
    existing,
    load_fitting,
    misfit,
    read_weights,
    without_heads,
    without_prefix,
)

FILES = ("model.safetensors", "pytorch_model.bin")
"""The names of files of weights on Hugging Face's hub, in the order in which timm looks for them."""


class ModelInputs(nn.Module):
    """Resize and standardise a dataset's images as a model's configuration says."""

    def __init__(
        self, config: Mapping[str, Any], channels: int, size: int, normalized: bool
    ) -> None:
        """Resize to the side `size`, if not 0; if `normalized`, first undo ImageNet's normalisation."""
        super().__init__()
        rgb = torch.arange(channels, device="cpu") % 3
        mean, std = (torch.tensor(config[k], device="cpu")[rgb] for k in ("mean", "std"))
        scale, shift = 1 / std, -mean / std
        if normalized:
            old = [torch.tensor(values, device="cpu")[rgb] for values in IMAGENET]
            scale, shift = old[1] / std, (old[0] - mean) / std
        same = bool((scale == 1).all() and (shift == 0).all())
        self._identical, self._size = same, size
        self._mode = "bicubic" if config["interpolation"] == "bicubic" else "bilinear"
        self.register_buffer("scale", scale[:, None, None], persistent=False)
        self.register_buffer("shift", shift[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, C, H, W), resized and standardised."""
        if self._size and x.shape[-2:] != (self._size, self._size):
            size = (self._size, self._size)
            x = nn.functional.interpolate(x, size, mode=self._mode, antialias=True)
        return x if self._identical else x * self.get_buffer("scale") + self.get_buffer("shift")


@register("timm")
class Timm(Pretrained):
    """A model of timm up to its pooled features, with the preprocessing of the model's configuration.

    Pixels are standardised by the configuration's mean and standard deviation, not the dataset's. timm
    adapts the first layer's stored weights to images with one channel or more than three.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """On datasets of the family `images` the default weights are those in timm's cache."""

        model: str = hparam("resnet18")
        """timm's name, with or without a tag for the weights: `vit_small_patch14_dinov2.lvd142m`."""
        weights: str = hparam("none", by_family={"images": ("cached", None)})
        """`none`: random; `cached`: the weights in timm's local cache; or a safetensors or torch file with
        the names of timm or of the model's authors."""
        sha256: str = hparam("")
        """The SHA-256 of the file of the weights, set by the plan; a run refuses any other file."""
        size: int = hparam(0, low=0)
        """The side in pixels to which inputs are resized, by the model's interpolation; 0: no resizing."""
        normalized: bool | None = hparam(None)
        """Whether the dataset standardises inputs with ImageNet's moments; set by the plan."""
        freeze_batch_norm: bool = hparam(False, by_family={"images": (True, None)})
        """Whether batch normalisation keeps the running statistics of the weights."""
        freeze: int = hparam(0, low=-1)
        """The number of frozen stages, from the input on (as layers in arXiv:1411.1792; here with the
        statistics of batch normalisation). The stem is one stage, and so is each block of a transformer.
        -1: the whole model is frozen, and only the head is trained."""
        layer_decay: float = hparam(1.0, low=0.0, high=1.0)
        """The ratio of a layer's learning rate to the next layer's; the head has the full rate (BEiT,
        arXiv:2106.08254). Layers are timm's groups, with the last norm in the last block."""
        mix_style: float = hparam(0.0, low=0.0, high=1.0)
        """The probability that a batch's styles are mixed after the first stages of a convolutional model
        (MixStyle, arXiv:2104.02008)."""
        mix_style_stages: int = hparam(3, low=1, high=4, neutral=3)
        """The number of stages after which styles are mixed."""
        drop_path: float = hparam(0.0, low=0.0, high=0.99)
        """The probability with which the last residual branch is skipped for an example; smaller for
        earlier branches (stochastic depth, arXiv:1603.09382)."""
        dropout: float = hparam(
            0.0, low=0.0, high=0.99, by_family={"images": (0.0, choice(0.0, 0.1, 0.5))}
        )
        """The share of the features that dropout sets to 0."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        """Raise UserError if the model, the weights and the inputs do not fit each other."""
        super().__init__(hparams)
        channels = require_image("timm", input_shape, 1)
        config = _configuration(hparams.model)
        body = _body(hparams, config, channels, input_shape[1:])
        self.num_features = int(getattr(body, "head_hidden_size", None) or body.num_features)
        inputs = ModelInputs(config, channels, hparams.size, bool(hparams.normalized))
        self.featurizer = nn.Sequential(inputs, body, nn.Dropout(hparams.dropout))
        self.classifier = nn.Linear(self.num_features, num_outputs)
        self._scales: dict[str, float] = {}
        if hparams.layer_decay != 1:
            layers = _groups(body, hparams.model, coarse=False)
            last = max(layers.values()) + 1
            for name, layer in layers.items():
                self._scales[f"featurizer.1.{name}"] = hparams.layer_decay ** (last - layer)
        if hparams.freeze:
            stages = _groups(body, hparams.model, coarse=True)
            if hparams.freeze > max(stages.values()) + 1:
                raise UserError(
                    f"`freeze` of {hparams.model} must be at most {max(stages.values()) + 1}, the number "
                    f"of stages, not {hparams.freeze}"
                )
            for name, p in body.named_parameters():
                p.requires_grad = 0 <= hparams.freeze <= stages[name]

        self._stages = [
            f"featurizer.1.{each['module']}" for each in getattr(body, "feature_info", None) or ()
        ]
        if hparams.mix_style:
            if not self._stages or hasattr(body, "patch_embed"):
                raise UserError(f"{hparams.model} has no early feature maps for `mix_style` to mix")
            after_stem = 1 if len(self._stages) > 4 else 0
            early = self._stages[after_stem : after_stem + hparams.mix_style_stages]
            add_mix_style(self, early, hparams.mix_style)

    @property
    def stages(self) -> tuple[str, ...]:
        """The modules that timm lists in `feature_info`, or the whole featurizer."""
        return tuple(self._stages) or super().stages

    @property
    def rate_scales(self) -> dict[str, float]:
        """The factors of `layer_decay`."""
        return self._scales

    @classmethod
    def weights_file(cls, values: Mapping[str, Any]) -> Path | None:
        """The file that `weights` names; raises UserError if it is missing."""
        weights = str(values["weights"])
        if weights in ("none", "cached"):
            return None if weights == "none" else _cached(str(values["model"]))
        return existing(weights, "`none`, `cached`, or a file of safetensors or torch")

    def train(self, mode: bool = True) -> Self:
        """Switch modes; frozen stages stay in evaluation mode."""
        super().train(mode)
        if self.hparams.freeze:
            for module in self.featurizer[1].modules():  # type: ignore[index]
                parameters = list(module.parameters())
                if parameters and not any(p.requires_grad for p in parameters):
                    module.eval()
        return self


def _groups(body: Any, model: str, *, coarse: bool) -> dict[str, int]:
    # the number of each parameter's layer, or stage if coarse, from the input on
    if not hasattr(body, "group_matcher"):
        raise UserError(f"timm lists no layers of {model}: leave out `freeze` and `layer_decay`")
    matcher = body.group_matcher(coarse=coarse)
    numbers: dict[str, int] = _timm().models.group_parameters(body, matcher, reverse=True)
    return numbers


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise missing_package("the network timm", "timm", "timm") from error


def _configuration(model: str) -> dict[str, Any]:
    timm = _timm()
    name, _, tag = model.partition(".")
    if ":" in model or "/" in model or not timm.is_model(name):
        raise unknown("model", name, timm.list_models(), "the hyperparameters of the network timm")
    try:
        published = timm.get_pretrained_cfg(model, allow_unregistered=True)
    except RuntimeError as error:
        tags = [each.partition(".")[2] for each in timm.list_pretrained(f"{name}.*")]
        raise unknown("weights", tag, tags, f"the model {name}") from error
    usual = {"mean": IMAGENET.mean, "std": IMAGENET.std, "interpolation": "bicubic"}
    return usual if published is None else usual | published.to_dict()


def _cached(model: str) -> Path:
    from huggingface_hub import try_to_load_from_cache

    config = _configuration(model)
    repository, _, revision = str(config.get("hf_hub_id") or "").partition("@")
    names = [config["hf_hub_filename"]] if config.get("hf_hub_filename") else list(FILES)
    for name in names if repository else []:
        path = try_to_load_from_cache(repository, name, revision=revision or None)
        if isinstance(path, str):
            return Path(path)
    url = str(config.get("url") or "")
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if url and file.is_file():
        return file
    if not repository and not url:
        raise UserError(f"timm knows no weights of {model}: set `weights` to none or to a file")
    command = f"python -c \"import timm; timm.create_model('{model}', pretrained=True)\""
    raise UserError(
        f"the weights of {model} are not in timm's cache: `{command}` fetches them, "
        "or set the network's `weights` to none or to a file"
    )


def _body(
    hparams: Timm.Hparams, config: Mapping[str, Any], channels: int, pixels: tuple[int, ...]
) -> Any:
    timm = _timm()
    entries: dict[str, Tensor] = {}
    sides = (hparams.size, hparams.size) if hparams.size else pixels
    settings: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    if hparams.drop_path:
        settings["drop_path_rate"] = hparams.drop_path
    fixed, trained_on = config.get("fixed_input_size"), tuple(config.get("input_size", ()))[1:]
    if fixed and sides != trained_on:
        if hparams.weights != "none" and not hparams.size:
            height, width = trained_on
            raise UserError(
                f"{hparams.model} was trained on images of {height} x {width} pixels, and the inputs have "
                f"{pixels[0]} x {pixels[1]}: resize them by the network's `size: {height}` "
                "(or a dataset's), or adapt it to another `size`"
            )
        settings["img_size"] = sides
    if (file := Timm.checked_file(vars(hparams))) is not None:
        entries = _entries(read_weights(file), hparams.model, config, file)
        # as if timm had published these entries without a head: timm then converts authors' names, and
        # loads strictly
        source = {"num_classes": 0, "label_offset": 0, "custom_load": False, "source": ""}
        overlay = source | {"state_dict": dict(entries)}
        settings |= {"pretrained": True, "pretrained_cfg_overlay": overlay}
    try:
        body = timm.create_model(hparams.model, **settings)
    except Exception as error:  # timm and torch raise errors of many types
        said = misfit(error) or f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
        if file is None:
            what = f"timm cannot build {hparams.model} for images of {sides[0]} x {sides[1]} pixels"
            raise UserError(f"{what} ({said})") from error
        what = f"the weights in {file} do not have the names and shapes of timm's {hparams.model}"
        if not misfit(error):  # timm could not convert them
            model = timm.create_model(hparams.model.partition(".")[0], num_classes=0)
            load_fitting(model, entries, what)
        raise UserError(f"{what}: {said}") from error
    patch = getattr(getattr(body, "patch_embed", None), "patch_size", (1, 1))
    patch = (patch, patch) if isinstance(patch, int) else patch
    if fixed and any(side % step for side, step in zip(sides, patch, strict=True)):
        raise UserError(
            f"{hparams.model} cuts images into patches of {patch[0]} x {patch[1]} pixels, and "
            f"{sides[0]} x {sides[1]} pixels are not a multiple: set the network's `size`"
        )
    return body


def _entries(
    state: Mapping[str, Tensor], model: str, config: Mapping[str, Any], file: Path
) -> dict[str, Tensor]:
    # the entries without heads, under timm's names if they are EfficientNet-PyTorch's (or
    # efficientnet_lite_pytorch's): these number blocks through, timm within stages, in the same order of
    # layers; their padding is that of timm's `tf_...` models
    name = model.partition(".")[0]
    wanted = _timm().create_model(name, num_classes=0).state_dict()
    unprefixed = without_prefix(state, wanted, file)
    entries = _clip({k.removeprefix("module."): v for k, v in unprefixed.items()}, file)
    if "_conv_stem.weight" in entries:
        names = _timm().create_model(name).state_dict()
        if len(names) == len(entries):
            entries = dict(zip(names, entries.values(), strict=True))
    heads = config.get("classifier") or ()
    own = (heads,) if isinstance(heads, str) else tuple(heads)
    return without_heads(entries, wanted, file, own, int(config.get("num_classes") or 1000))


def _clip(state: dict[str, Tensor], file: Path) -> dict[str, Tensor]:
    """The image tower of CLIP's authors, or open_clip, without the projection; else all entries."""
    found = [k.removesuffix("class_embedding") for k in state if k.endswith("class_embedding")]
    towers = [prefix for prefix in found if f"{prefix}ln_pre.weight" in state]
    if len(towers) > 1:
        names = " and ".join(f"`{prefix}`" for prefix in towers)
        raise UserError(f"{file} holds CLIP's image tower under {names}: save one of them alone")
    if not towers:
        return state
    tower = towers[0]
    inside = {k.removeprefix(tower): v for k, v in state.items() if k.startswith(tower)}
    inside.pop("proj", None)
    if others := len(state) - len(inside):
        other = counted(others, "other tensor")
        warnings.warn(f"{file}: CLIP's image tower is read, {other} left out", stacklevel=2)
    return {f"visual.{k}": v for k, v in inside.items()}
