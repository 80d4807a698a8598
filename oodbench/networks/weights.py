"""Files of pretrained weights: where they are, what they hold, and their checksums."""

import pickle
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from oodbench.errors import UserError
from oodbench.identity import by_stamp
from oodbench.identity import sha256 as sha256

PUBLISHED = {"imagenet": "IMAGENET1K_V1", "coco": "COCO_V1"}
"""The weights that torchvision has published: our names of them, and torchvision's."""
WRAPPERS = (
    *("state_dict", "model_state_dict", "model_dict", "model", "net", "network", "weights"),
    *("state_dict_ema", "ema_state_dict", "model_ema", "params_ema", "params", "ema", "module"),
)
"""The keys under which training scripts keep a state_dict; the first that is there counts."""
READ_ERRORS = (
    *(RuntimeError, OSError, EOFError, KeyError, zipfile.BadZipFile),
    *(pickle.UnpicklingError, safetensors.SafetensorError),
)
"""The errors that torch and safetensors raise for a foreign or truncated file."""
REPLACED: ContextVar[bool] = ContextVar("replaced", default=False)
"""Whether networks are built without the files of their weights, see `replaced_weights`."""


@contextmanager
def replaced_weights() -> Iterator[None]:
    """A context in which networks are built with random weights, which the caller then overwrites.

    The files of weights need not exist, except for transformers'.
    """
    token = REPLACED.set(True)
    try:
        yield
    finally:
        REPLACED.reset(token)


def weights_file(model: str, weights: str) -> Path:
    """The file of `weights`, a name in PUBLISHED or a path; raises UserError if it is missing."""
    if weights not in PUBLISHED:
        file = Path(weights).expanduser()
        if not file.is_file():
            names = ", ".join(f"`{name}`" for name in ("none", *PUBLISHED))
            raise UserError(f"weights: there is no file {file} ({names} or a .pth file)")
        return file
    from torchvision.models import get_model_weights

    url: str = get_model_weights(model)[PUBLISHED[weights]].url
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not file.is_file():
        raise UserError(
            f"the weights `{weights}` of {model} are not in torch's cache: put {url} into "
            f"{file.parent}, or have a file or none in the network's `hparams: {{weights: none}}`"
        )
    if not sha256(file).startswith(file.stem.rpartition("-")[2]):
        raise UserError(
            f"{file} is damaged (its SHA-256 is not the one in its name); fetch it anew"
        )
    return file


def require_sha256(file: Path | None, wanted: str) -> None:
    """Raise UserError unless the file is the one with that SHA-256, where one is `wanted`."""
    if wanted and (file is None or sha256(file) != wanted):
        place = "`weights: none`" if file is None else file
        raise UserError(f"{place} is not the file of weights with SHA-256 {wanted}")


@by_stamp(1)
def read_weights(file: Path) -> Mapping[str, Tensor]:
    """The state_dict in a file of safetensors or torch; no code in it is run.

    Training scripts wrap it in a dictionary, under one of `WRAPPERS`. Raises UserError for other
    and for truncated files. The state_dict of the last file stays in memory.
    """
    state: Any
    try:
        if file.suffix == ".safetensors":
            state = safetensors.torch.load_file(file)
        elif zipfile.is_zipfile(file) and any(
            entry.compress_type for entry in zipfile.ZipFile(file).infolist()
        ):
            raise UserError(f"{file} is compressed, as torch writes no weights: unpack it")
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except READ_ERRORS as error:
        raise UserError(f"{file} is not a file of weights that torch can read") from error
    while isinstance(state, Mapping) and (
        keys := [k for k in WRAPPERS if isinstance(state.get(k), Mapping)]
    ):
        if len(keys) > 1:
            warnings.warn(f"{file}: of {', '.join(keys)} the first is read", stacklevel=2)
        state = state[keys[0]]
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        held = f" but {', '.join(map(str, [*state][:6]))}" if isinstance(state, Mapping) else ""
        raise UserError(f"{file} does not hold a state_dict of tensors{held}"[:300])
    return state


def stored_weights(file: Path) -> Mapping[str, Tensor]:
    """The state_dict in a file, without a classifier's last layer; raises UserError for others."""
    return _without_head(read_weights(file))


def _without_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        re.sub(r"\b(norm|conv)\.([12])\b", r"\1\2", k): v  # in the oldest files of DenseNet
        for k, v in state.items()
        if not k.startswith(("fc.", "classifier."))
    }


def without_prefix(
    state: Mapping[str, Tensor], wanted: Collection[str], file: Path
) -> Mapping[str, Tensor]:
    """The entries that have the `wanted` names after a prefix, without it; a warning says which.

    Names stay as they are where they need no prefix, or where no prefix gives half of the wanted names.
    Raises UserError where two prefixes fit as well and lead to different weights, such as those of a
    student and its teacher.
    """
    found: Counter[str] = Counter()
    for name in state:
        words = name.split(".")
        for i in range(len(words)):
            if ".".join(words[i:]) in wanted:
                found["".join(f"{word}." for word in words[:i])] += 1
    most = max(found.values(), default=0)
    fitting = sorted((prefix for prefix, count in found.items() if count == most), key=len)
    if "" in fitting or 2 * most < len(wanted):
        return state
    parts = [{k.removeprefix(p): v for k, v in state.items() if k.startswith(p)} for p in fitting]
    for prefix, part in zip(fitting, parts, strict=True):
        same = (k in part and torch.equal(part[k], v) for k, v in parts[0].items() if k in wanted)
        if not all(same):
            raise UserError(
                f"{file} holds weights with the prefixes `{fitting[0]}` and `{prefix}`, which differ: "
                "save those that are meant alone"
            )
    others = len(state) - len(parts[0])
    more = f"; {others} entries without it are left out" if others else ""
    warnings.warn(f"{file}: the prefix `{fitting[0]}` is taken off its names{more}", stacklevel=2)
    return parts[0]


def load_fitting(module: nn.Module, state: Mapping[str, Tensor], beginning: str) -> None:
    """Load a state_dict; raises UserError, beginning with `beginning`, if it does not fit the module."""
    wanted = module.state_dict()
    problems = {
        f"of {len(wanted)} entries are missing": [k for k in wanted if k not in state],
        f"of {len(wanted)} have another shape": [
            k for k in wanted if k in state and state[k].shape != wanted[k].shape
        ],
        "others are there": [k for k in state if k not in wanted],
    }
    said = [
        f"{len(names)} {what}, such as '{names[0]}'" for what, names in problems.items() if names
    ]
    if said:
        raise UserError(f"{beginning}: {'; '.join(said)}")
    module.load_state_dict(state)


def load_weights(body: nn.Module, file: Path) -> None:
    """Load the weights in a file into a network; raises UserError for another architecture's."""
    name = type(body).__name__
    beginning = f"{file} holds no weights of {name} as torchvision names and shapes them"
    state = without_prefix(read_weights(file), body.state_dict(), file)
    load_fitting(body, _without_head(state), beginning)
