"""Files of pretrained weights: finding, checking and reading them."""

import argparse
import hashlib
import json
import pickle
import re
import warnings
import zipfile
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from oodbench import identity
from oodbench.datasets import Dataset
from oodbench.errors import UserError, counted, unknown
from oodbench.files import nearest, require_data
from oodbench.networks.base import Network, check_by_building

PUBLISHED = {"imagenet": "IMAGENET1K_V1", "coco": "COCO_V1"}
"""torchvision's published weights: our names and torchvision's."""
WRAPPERS = (
    *("state_dict", "model_state_dict", "model_dict", "model", "net", "network", "weights"),
    *("state_dict_ema", "ema_state_dict", "model_ema", "params_ema", "params", "ema", "module"),
    *("teacher", "student"),
)
"""Keys under which training scripts store a state_dict, next to keys that are ignored."""
INDEX = ".index.json"
"""The end of the name of a file that says which shard holds which tensor, as on Hugging Face's hub."""
SCALAR = np.float64(0).__reduce__()[0]
NAMED = [(SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
HARMLESS: list[Any] = [
    *(argparse.Namespace, np.dtype, *(type(np.dtype(kind)) for kind in "?bhilqBHILQefd")),
    *(NAMED if torch.__version__ >= "2.6" else [SCALAR]),  # older versions take no names
]
"""What training scripts store next to weights: their arguments, and numbers such as the best accuracy."""
CHUNKED = re.compile(r"(.*\bblocks\.)(\d+)\.(\d+)\.")
"""A name in a chunk of a transformer's blocks, as in DINOv2's training: `blocks.CHUNK.BLOCK.`."""
HEADS = re.compile(
    r"fc|last_linear|(\w+_)?(heads?|classifier|projector|projection|predictor)(_\w+)?"
    r"|prototypes\w*|queue\w*|decoder\w*"
)
"""The first words of names of layers that features do not need."""
READ_ERRORS = (
    *(RuntimeError, OSError, EOFError, KeyError, zipfile.BadZipFile),
    *(pickle.UnpicklingError, safetensors.SafetensorError),
)
"""The errors of torch and safetensors for a truncated file or another format."""
REPLACED: ContextVar[bool] = ContextVar("replaced", default=False)
"""Whether networks are built without reading weights; see `replaced_weights`."""


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
    """A network with hyperparameters `weights` and `sha256`, and perhaps `freeze_batch_norm`.

    If there is also a hyperparameter `normalized`, a run's id has the checksum of the weights' file instead
    of its path.
    """

    @classmethod
    @abstractmethod
    def weights_file(cls, values: Mapping[str, Any]) -> Path | None:
        """The file of the weights, None for random weights; raises UserError if it is missing."""

    @classmethod
    def checked_file(cls, values: Mapping[str, Any]) -> Path | None:
        """The file of the weights to read, if any; raises UserError unless it has the SHA-256 given."""
        if REPLACED.get():
            return None
        if values["weights"] == "none" and values.get("freeze_batch_norm"):
            raise UserError("without the network's `weights` there are no statistics to freeze")
        file = cls.weights_file(values)
        require_sha256(file, str(values.get("sha256", "")))
        return file

    @classmethod
    def resolved(cls, values: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
        """Set `sha256` and, from the dataset, `normalized`; the network is built once as a check."""
        resolved, file = dict(values), cls.checked_file(values)
        if "normalized" in resolved:
            resolved["sha256"] = "" if file is None else sha256(file)
            if resolved["normalized"] is None:
                resolved["normalized"] = dataset.normalization is not None
        check_by_building(cls, resolved, dataset)
        return resolved

    def train(self, mode: bool = True) -> Self:
        """Switch modes; frozen batch normalisation stays in evaluation mode."""
        super().train(mode)
        if getattr(self.hparams, "freeze_batch_norm", False):
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self


class FromTorchvision(Pretrained):
    """A network of torchvision, whose published weights are looked for in torch's cache."""

    model: str
    """torchvision's name."""

    @classmethod
    def weights_file(cls, values: Mapping[str, Any]) -> Path | None:
        """The file of `weights`, a name in PUBLISHED or a path; raises UserError if it is missing."""
        weights = str(values["weights"])
        if weights == "none":
            return None
        if weights not in PUBLISHED:
            names = ", ".join(f"`{name}`" for name in ("none", *PUBLISHED))
            return existing(weights, f"{names} or a .pth file")
        from torchvision.models import get_model_weights

        url: str = get_model_weights(cls.model)[PUBLISHED[weights]].url
        file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
        if not file.is_file():
            raise UserError(
                f"the weights `{weights}` of {cls.model} are not in torch's cache: put {url} into "
                f"{file.parent}, or have a file or none in the network's `hparams: {{weights: none}}`"
            )
        if not sha256(file).startswith(file.stem.rpartition("-")[2]):
            raise UserError(
                f"{file} is damaged (its SHA-256 is not in its name): download it again"
            )
        return file


def existing(weights: str, forms: str) -> Path:
    """The file that `weights` names; raises UserError, with the `forms` of the value, if it is missing."""
    file = Path(weights).expanduser()
    if file.is_dir():
        held = ", ".join(sorted(each.name for each in file.iterdir())[:6]) or "nothing"
        raise UserError(f"weights: {file} is a folder: name a file of it (it holds {held})")
    if not is_there(file):
        raise UserError(f"weights: there is no file {file} ({forms}){nearest(file)}")
    return file


def parts_of(file: Path) -> tuple[Path, str]:
    """The file and the key of `FILE#KEY`, which names the weights under one key of a checkpoint."""
    path, mark, key = str(file).rpartition("#")
    return (file, "") if file.exists() or not mark else (Path(path), key)


def is_there(file: Path) -> bool:
    """Whether the file of `FILE` or `FILE#KEY` exists."""
    return parts_of(file)[0].is_file()


def sha256(file: Path) -> str:
    """The SHA-256 of a file of weights, or of the SHA-256 of its parts: shards, or the file and the key."""
    path, key = parts_of(file)
    whole, *others = map(identity.sha256, shards_of(path))
    if others:
        whole = hashlib.sha256(" ".join([whole, *others]).encode()).hexdigest()
    return hashlib.sha256(f"{whole}#{key}".encode()).hexdigest() if key else whole


def shards_of(file: Path) -> list[Path]:
    """The file itself or, if it is an index, its sorted shards; raises UserError for a single shard."""
    if not file.name.endswith(INDEX):
        if shard := re.match(r"(.+)-\d{5}-of-(?!00001)\d{5}(\.\w+)$", file.name):
            index = file.with_name(f"{shard[1]}{shard[2]}{INDEX}")
            raise UserError(f"{file} is one of several shards: give their index, {index}")
        return [file]
    try:
        names = sorted({*json.loads(file.read_text())["weight_map"].values()})
        files = [file.parent / Path(name).name for name in names or [""]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{file} is not an index of shards, with a `weight_map`") from None
    for each in files:
        if not each.is_file():
            raise UserError(f"{file} names {each.name}, which is not in the same folder")
    return files


def require_sha256(file: Path | None, wanted: str) -> None:
    """Raise UserError unless `wanted` is empty or the file's SHA-256."""
    if wanted and (file is None or sha256(file) != wanted):
        given = "`weights: none`" if file is None else file
        raise UserError(f"{given} is not the file of weights with SHA-256 {wanted}")


def read_weights(file: Path) -> Mapping[str, Tensor]:
    """The state_dict in a file of safetensors or torch, unwrapped from training scripts' dictionaries.

    `FILE#KEY` selects one key of a checkpoint, such as `student`. Reading runs no code from the file.
    Raises UserError for truncated files and other formats. The last file's tensors stay in memory.
    """
    path, key = parts_of(file)
    whole, wrapped = _read(path)
    if not key:
        return whole
    start = f"{key}."
    inside = {k.removeprefix(start): v for k, v in whole.items() if k.startswith(start)}
    if found := wrapped.get(key) or inside:
        return found
    raise unknown("key", key, [*wrapped, *{k.partition(".")[0]: 0 for k in whole}], str(path))


@identity.by_stamp(1)
def _read(file: Path) -> tuple[Mapping[str, Tensor], Mapping[str, Mapping[str, Tensor]]]:
    """The state_dict of a file, and those under keys of training scripts."""
    shards = shards_of(file)
    if shards != [file]:
        return {k: v for shard in shards for k, v in _loaded(shard)[0].items()}, {}
    return _loaded(file)


def _loaded(file: Path) -> tuple[Mapping[str, Tensor], Mapping[str, Mapping[str, Tensor]]]:
    state: Any
    require_data(file)
    try:
        if _is_safetensors(file):
            state = safetensors.torch.load_file(file)
        elif zipfile.is_zipfile(file) and any(
            entry.compress_type for entry in zipfile.ZipFile(file).infolist()
        ):
            if any(e.filename.endswith("/constants.pkl") for e in zipfile.ZipFile(file).infolist()):
                raise UserError(f"{file} is a TorchScript program: save its `state_dict()` alone")
            # unpacking could fill the memory; torch itself never compresses
            raise UserError(f"{file} is compressed, which torch's files never are: unpack it")
        else:
            # torch 2.4 has no `safe_globals`, and reads plain state_dicts without it
            safe = getattr(torch.serialization, "safe_globals", lambda _: nullcontext())
            known = safe(HARMLESS)
            with known, file.open("rb") as stream:  # torch decides by the file name's ending
                state = torch.load(stream, map_location="cpu", weights_only=True)
        flat = _flat(state) if isinstance(state, Mapping) else {}
    except READ_ERRORS as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        more = f": it holds {found[1]}, save a state_dict alone" if found else ""
        raise UserError(f"{file} is not a file of weights that torch can read{more}") from error
    if not flat:
        is_named = isinstance(state, Mapping)
        held = ", ".join(map(str, [*state][:6])) if is_named else f"a {type(state).__name__}"
        raise UserError(
            f"{file} does not hold a state_dict of tensors but {held or 'nothing'}"[:300]
        )
    wrapped = {k: _flat(state[k]) for k in WRAPPERS if isinstance(state.get(k), Mapping)}
    return flat, wrapped


def _is_safetensors(file: Path) -> bool:
    """Whether a file, with any ending, begins with the length of a header in JSON."""
    with file.open("rb") as stream:
        return stream.read(9)[8:] == b"{"


def _flat(state: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The tensors of nested dictionaries, under keys joined by dots; a single key is left out."""
    values = {k: v for k, v in state.items() if isinstance(k, str)}
    nested = {k: part for k, v in values.items() if isinstance(v, Mapping) and (part := _flat(v))}
    wrapped = {k: nested[k] for k in WRAPPERS if k in nested}
    tensors = {
        k: v for k, v in values.items() if isinstance(v, Tensor) and not (wrapped or v.is_meta)
    }
    parts = wrapped or nested
    if len(parts) == 1 and not tensors:
        return next(iter(parts.values()))
    return tensors | {f"{k}.{name}": v for k, part in parts.items() for name, v in part.items()}


def _without_chunks(
    state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], file: Path
) -> Mapping[str, Tensor]:
    """The entries, renamed to have no chunks unless the wanted names have chunks."""
    if not any(re.match(r"blocks\.\d+\.\D", name) for name in wanted):
        return state
    numbers: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for match in filter(None, map(CHUNKED.match, state)):
        numbers[match[1]].add((int(match[2]), int(match[3])))
    for prefix, found in numbers.items():
        blocks = [block for _, block in sorted(found)]
        if blocks != [*range(len(blocks))]:
            raise UserError(
                f"{file}: the blocks in the chunks `{prefix}CHUNK.BLOCK.` should be 0, 1, 2, ... and are "
                f"{', '.join(map(str, blocks[:40]))}; save them as `{prefix}BLOCK.`"
            )
    return {CHUNKED.sub(r"\1\3.", name): value for name, value in state.items()}


def without_prefix(
    state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], file: Path
) -> Mapping[str, Tensor]:
    """The entries under the prefix under which most `wanted` names are found, without this prefix.

    A prefix fits if at least half of the wanted entries are found under it, by name and shape, or else by
    name. If none fits, all entries are returned. A warning names a removed prefix. Raises UserError if two
    prefixes fit with different weights, such as a student's and its teacher's.
    """
    state = _without_chunks(state, wanted, file)
    named, shaped = Counter[str](), Counter[str]()
    for name, value in state.items():
        words = name.split(".")
        for i in range(len(words)):
            if (rest := ".".join(words[i:])) in wanted:
                prefix = name.removesuffix(rest)
                named[prefix] += 1
                shaped[prefix] += value.shape == wanted[rest].shape
    many = ([p for p, n in counts.items() if 2 * n >= len(wanted)] for counts in (shaped, named))
    fitting = sorted(next(filter(None, many), [""]), key=lambda p: (-named[p], len(p)))
    parts = [{k.removeprefix(p): v for k, v in state.items() if k.startswith(p)} for p in fitting]
    odd = [k for k, v in parts[0].items() if k in wanted and not v.isfinite().all()]
    if odd:
        raise UserError(f"{file}: not all values of '{fitting[0]}{odd[0]}' are finite")
    for name, value in parts[0].items():
        if name in wanted and wanted[name].is_floating_point() and not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(
                f"{file}: '{fitting[0]}{name}' is {kind}: quantized weights are not read"
            )
    for prefix, part in zip(fitting, parts, strict=True):
        same = (torch.equal(part[k], v) for k, v in parts[0].items() if k in wanted and k in part)
        if not all(same):
            first, second = sorted((fitting[0], prefix))
            raise UserError(
                f"{file} holds different weights under the prefixes `{first}` and `{second}`: "
                f"choose one by `weights: {file}#{first.removesuffix('.')}`"
            )
    if fitting[0]:
        others = Counter(".".join(k.split(".")[:2]) for k in state if not k.startswith(fitting[0]))
        begin = ", ".join([*others][:4]) + (", ..." if len(others) > 4 else "")
        count = counted(others.total(), "tensor")
        more = f"; {count} without it left out ({begin})" if others else ""
        warnings.warn(f"{file}: the prefix `{fitting[0]}` is removed{more}", stacklevel=2)
    return parts[0]


def without_heads(
    state: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    file: Path,
    own: tuple[str, ...],
    classes: int = 1000,
) -> dict[str, Tensor]:
    """The entries without heads; a warning names these, except the model's `own` head for `classes`."""
    heads = {}
    for name in state.keys() - wanted.keys():
        word = name.split(".")[0]
        inside = [head for head in own if name.startswith(f"{head}.")]
        if inside or HEADS.fullmatch(word):
            heads[name] = (*inside, word)[0]
    other = {h for k, h in heads.items() if h not in own or state[k].shape[:1] != (classes,)}
    if other:
        warnings.warn(f"{file}: heads are left out ({', '.join(sorted(other))})", stacklevel=2)
    return {k: v for k, v in state.items() if k not in heads}


def load_fitting(module: nn.Module, state: Mapping[str, Tensor], beginning: str) -> None:
    """Load a state_dict; raises UserError, which starts with `beginning`, if it does not fit the module."""
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"{beginning}: {misfit(error)}") from error


def misfit(error: Exception) -> str:
    """A summary of an error of `load_state_dict`, with an example of each kind; empty for others."""
    said = []
    for title, kind in (("Missing", "missing"), ("Unexpected", "unknown")):
        if listed := re.search(title + r" key\(s\) in state_dict: (.*)", str(error)):
            names = re.findall(r'"([^"]+)"', listed[1])
            said.append(f"{kind}: {counted(len(names), 'name')}, such as '{names[0]}'")
    shapes = re.findall(r"mismatch for (.+?): .*?Size\((.*?)\).*?Size\((.*?)\)", str(error))
    if shapes:
        name, found, wanted = shapes[0]
        what = f"'{name}' ({found} in the file, {wanted} wanted)"
        said.append(f"of another shape: {counted(len(shapes), 'name')}, such as {what}")
    return "; ".join(said)


def load_weights(body: nn.Module, file: Path) -> None:
    """Load weights from a file; raises UserError for weights of another architecture."""
    wanted, name = body.state_dict(), type(body).__name__
    beginning = f"the weights in {file} do not have the names and shapes of torchvision's {name}"
    old = {  # the oldest files of DenseNet
        re.sub(r"\b(norm|conv)\.([12])\b", r"\1\2", k): v for k, v in read_weights(file).items()
    }
    state = without_prefix(old, wanted, file)
    load_fitting(body, without_heads(state, wanted, file, ("fc", "classifier")), beginning)
