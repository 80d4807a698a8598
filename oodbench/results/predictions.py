"""Kept predictions on disk.

kept/<id>/predictions/examples.npz   classes' names, targets and splits of every environment, once a run
                      <step>.npz     logits of every environment in half precision
"""

import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from oodbench.errors import UserError
from oodbench.files import open_regular, whole_file
from oodbench.results.directory import RunDirectory
from oodbench.results.schemas import UNREADABLE

LARGEST = float(np.finfo(np.float16).max)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Predictions:
    """The predictions of a run on one environment at one step."""

    kind: str
    """The `Task`'s kind."""
    logits: Array
    """Logits (N, C), float16, as `Task` describes them, clipped to what float16 can hold. Of `tokens`
    (N, length) integers, see `Task.kept`; of targets in a user's units float64."""
    targets: Array
    """The targets: (N,) classes, or (N, C) probabilities, labels or real numbers."""
    out: Array
    """Whether each of the N examples is of the `out` split, (N,)."""
    classes: tuple[str, ...] = ()
    """The names of the classes in the order of their numbers, if they have names."""
    inputs: str = ""
    """A digest of the inputs, FITTED where these depend on the training examples, or empty if unknown."""


FITTED = "fitted"
"""In place of a digest of inputs that are fitted to the training examples, as by standardization."""


def write_examples(
    run: RunDirectory,
    kind: str,
    environments: Mapping[str, tuple[Array, Array]],
    classes: Sequence[str] = (),
    inputs: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write what the predictions of all steps share: the kind of the task, the names of its classes (if
    any) and, by environment, targets, whether an example is of the `out` split, and digests of inputs.
    """
    arrays = {"names": np.array(list(environments)), "kind": np.array(kind)}
    arrays["classes"] = np.array(classes, dtype=str)
    for i, (name, (targets, out)) in enumerate(environments.items()):
        arrays |= {f"targets{i}": targets, f"out{i}": out}
        arrays[f"inputs{i}"] = np.array(inputs.get(name, ""))
    _save(run.kept / "predictions" / "examples.npz", arrays)


def write_predictions(run: RunDirectory, step: int, logits: Mapping[str, Array]) -> None:
    """Keep the logits (N, C) of every environment at a step."""
    arrays = {"names": np.array(list(logits))}
    for i, values in enumerate(logits.values()):
        half = np.clip(values, -LARGEST, LARGEST).astype(np.float16)
        is_exact = values.dtype.kind == "i" or values.dtype == np.float64
        arrays[f"logits{i}"] = values if is_exact else half
    _save(run.kept / "predictions" / f"{step}.npz", arrays)


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        np.savez(file, allow_pickle=False, **dict(arrays))


def opened_arrays(file: BinaryIO) -> Any:
    """Open arrays without code in them; raises ValueError where they would unpack to more than the file."""
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as members:
        if sum(member.file_size for member in members.infolist()) > size:
            raise ValueError("its arrays unpack to more than the file; write it with numpy.savez")
        for name in members.namelist():
            with members.open(name) as member:
                _check_header(name, member, members.getinfo(name).file_size)
    file.seek(0)
    return np.load(file, allow_pickle=False)


def _check_header(name: str, member: IO[bytes], size: int) -> None:
    """Raise ValueError for an array that claims more bytes than are there."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, kind = read(member)
    if math.prod(shape) * kind.itemsize > size:
        raise ValueError(f"{name} claims to be an array {shape} of {kind}, and has {size} bytes")


def read_predictions(run: RunDirectory, step: int) -> dict[str, Predictions]:
    """Return the predictions of a run at a step by environment; raises UserError if none are kept."""
    folder = run.kept / "predictions"
    try:
        with (
            open_regular(folder / "examples.npz") as first,  # numpy leaves a torn file open
            open_regular(folder / f"{step}.npz") as second,
            opened_arrays(first) as examples,
            opened_arrays(second) as kept,
        ):
            index = {str(name): i for i, name in enumerate(examples["names"])}
            classes = tuple(map(str, examples["classes"])) if "classes" in examples else ()
            predictions = {
                str(name): Predictions(
                    str(examples["kind"]),
                    kept[f"logits{i}"],
                    examples[f"targets{index[str(name)]}"],
                    examples[f"out{index[str(name)]}"],
                    classes,
                    str(examples.get(f"inputs{index[str(name)]}", "")),
                )
                for i, name in enumerate(kept["names"])
            }
        if any(not len(p.logits) == len(p.targets) == len(p.out) for p in predictions.values()):
            raise ValueError("logits and targets differ in length")
        return predictions
    except FileNotFoundError:
        raise UserError(
            f"{folder} keeps no predictions of step {step}; `sweep launch --keep-predictions` does"
        ) from None
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{folder} cannot be read at step {step}: {reason}") from None
