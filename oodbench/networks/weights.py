"""Files of pretrained weights: finding, checking and reading them."""

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

from oodbench.datasets import Dataset
from oodbench.errors import UserError
from oodbench.identity import by_stamp
from oodbench.identity import sha256 as sha256
from oodbench.networks.base import Network, check_by_building

PUBLISHED = {"imagenet": "IMAGENET1K_V1", "coco": "COCO_V1"}
"""torchvision's published weights: our names and torchvision's."""
WRAPPERS = (
    *("state_dict", "model_state_dict", "model_dict", "model", "net", "network", "weights"),
    *("state_dict_ema", "ema_state_dict", "model_ema", "params_ema", "params", "ema", "module"),
)
"""Keys under which training scripts store a state_dict; the first one found is used."""
READ_ERRORS = (
    *(RuntimeError, OSError, EOFError, KeyError, zipfile.BadZipFile),
    *(pickle.UnpicklingError, safetensors.SafetensorError),
)
"""What torch and safetensors raise for a truncated file or another format."""
REPLACED: ContextVar[bool] = ContextVar("replaced", default=False)
"""Whether networks are built without reading weights, see `replaced_weights`."""


@contextmanager
def replaced_weights() -> Iterator[None]:
    """A context in which networks are built with random weights, for a caller that then overwrites them.

    Files of weights need not exist, except for networks of transformers.
    """
    token = REPLACED.set(True)
    try:
        yield
    finally:
        REPLACED.reset(token)


class Pretrained(Network):
    """A network with hyperparameters `weights`, `sha256` and `normalized`.

    A run's id holds the checksum of the file of the weights, so that it does not depend on the file's path.
    """

    @classmethod
    def weights_file(cls, values: Mapping[str, Any]) -> Path | None:
        """The file of the weights, None for random weights; raises UserError if it is missing."""
        raise NotImplementedError

    @classmethod
    def resolved(cls, values: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
        """Set `sha256` and, from the dataset, `normalized`; the network is built once as a check."""
        resolved = dict(values)
        if resolved["normalized"] is None:
            resolved["normalized"] = dataset.normalization is not None
        file = cls.weights_file(resolved)
        require_sha256(file, resolved["sha256"])
        resolved["sha256"] = "" if file is None else sha256(file)
        check_by_building(cls, resolved, dataset)
        return resolved


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
            f"{file} is damaged (its SHA-256 is not the one in its name): download it again"
        )
    return file


def require_sha256(file: Path | None, wanted: str) -> None:
    """Raise UserError if a SHA-256 is `wanted`, not empty, and the file has another one."""
    if wanted and (file is None or sha256(file) != wanted):
        given = "`weights: none`" if file is None else file
        raise UserError(f"{given} is not the file of weights with SHA-256 {wanted}")


@by_stamp(1)
def read_weights(file: Path) -> Mapping[str, Tensor]:
    """The state_dict in a file of safetensors or torch, unwrapped from training scripts' dictionaries.

    Reading runs no code from the file. Raises UserError for truncated files and other formats. The last
    file's state_dict stays in memory.
    """
    state: Any
    try:
        if file.suffix == ".safetensors":
            state = safetensors.torch.load_file(file)
        elif zipfile.is_zipfile(file) and any(
            entry.compress_type for entry in zipfile.ZipFile(file).infolist()
        ):
            # unpacking could fill the memory; torch itself never compresses
            raise UserError(
                f"{file} is a compressed archive, which torch does not write: unpack it"
            )
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except READ_ERRORS as error:
        raise UserError(f"{file} is not a file of weights that torch can read") from error
    while isinstance(state, Mapping) and (
        keys := [k for k in WRAPPERS if isinstance(state.get(k), Mapping)]
    ):
        if len(keys) > 1:
            warnings.warn(f"{file} holds {', '.join(keys)}: the first is read", stacklevel=2)
        state = state[keys[0]]
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        held = f" but {', '.join(map(str, [*state][:6]))}" if isinstance(state, Mapping) else ""
        raise UserError(f"{file} does not hold a state_dict of tensors{held}"[:300])
    return state


def _without_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        re.sub(r"\b(norm|conv)\.([12])\b", r"\1\2", k): v  # in the oldest files of DenseNet
        for k, v in state.items()
        if not k.startswith(("fc.", "classifier."))
    }


def without_prefix(
    state: Mapping[str, Tensor], wanted: Collection[str], file: Path
) -> Mapping[str, Tensor]:
    """The entries under the prefix with which most `wanted` names are found, without the prefix.

    `state` is returned unchanged if most names need no prefix, or if no prefix gives half of the wanted
    names. A removed prefix is told in a warning. Raises UserError if two prefixes fit equally well with
    different weights, such as a student's and its teacher's.
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
                f"{file} holds different weights under the prefixes `{fitting[0]}` and `{prefix}`: "
                "save one of the two alone"
            )
    others = len(state) - len(parts[0])
    more = f"; {others} entries without it are left out" if others else ""
    warnings.warn(f"{file}: the prefix `{fitting[0]}` is removed from names{more}", stacklevel=2)
    return parts[0]


def load_fitting(module: nn.Module, state: Mapping[str, Tensor], beginning: str) -> None:
    """Load a state_dict; raises UserError, which starts with `beginning`, if it does not fit the module."""
    wanted = module.state_dict()
    problems = {
        f"of {len(wanted)} entries are missing": [k for k in wanted if k not in state],
        f"of {len(wanted)} have another shape": [
            k for k in wanted if k in state and state[k].shape != wanted[k].shape
        ],
        "are unknown": [k for k in state if k not in wanted],
    }
    said = [
        f"{len(names)} {what}, such as '{names[0]}'" for what, names in problems.items() if names
    ]
    if said:
        raise UserError(f"{beginning}: {'; '.join(said)}")
    module.load_state_dict(state)


def load_weights(body: nn.Module, file: Path) -> None:
    """Load weights from a file; raises UserError for weights of another architecture."""
    name = type(body).__name__
    beginning = f"the weights in {file} do not have the names and shapes of torchvision's {name}"
    state = without_prefix(read_weights(file), body.state_dict(), file)
    load_fitting(body, _without_head(state), beginning)
