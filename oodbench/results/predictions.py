"""Kept predictions on disk: of the runs of a directory, and of a board's chosen steps.

kept/<id>/predictions/examples.npz   classes' names, targets and splits of every environment, once a run
                      <step>.npz     logits of every environment in half precision
BOARD/predictions/<dataset>.parquet  a row for each example of a test environment at a chosen step
"""

import math
import os
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from oodbench.errors import UserError, brief
from oodbench.files import open_regular, whole_file
from oodbench.results.boards import find_board
from oodbench.results.directory import Directory
from oodbench.results.run_directory import RunDirectory
from oodbench.results.schemas import UNREADABLE

if TYPE_CHECKING:
    import pyarrow as pa

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
    """Mask (N,) of the examples in the `out` split."""
    classes: tuple[str, ...] = ()
    """The names of the classes in the order of their numbers, if they have names."""
    inputs: str = ""
    """A digest of the inputs; FITTED if they depend on the training examples; empty if unknown."""


FITTED = "fitted"
"""Stands for inputs that depend on the training examples, for example by standardization."""


def write_examples(
    run: RunDirectory,
    kind: str,
    environments: Mapping[str, tuple[Array, Array]],
    classes: Sequence[str] = (),
    inputs: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write what the predictions of all steps share.

    `environments` has targets and masks of the `out` split by environment, and `inputs` digests of inputs.
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
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        np.savez(file, allow_pickle=False, **dict(arrays))


def opened_arrays(file: BinaryIO) -> Any:
    """Open arrays without pickles; raises ValueError if they would unpack to more than the file has."""
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as members:
        if sum(member.file_size for member in members.infolist()) > size:
            raise ValueError("its arrays unpack to more than the file; write it with numpy.savez")
        for member in members.infolist():
            with members.open(member) as array:
                _check_header(member.filename, array, member.file_size)
    file.seek(0)
    return np.load(file, allow_pickle=False)


def _check_header(name: str, array: IO[bytes], size: int) -> None:
    """Raise ValueError if an array's header claims more than `size` bytes."""
    form = np.lib.format
    is_first = form.read_magic(array) == (1, 0)
    read = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
    shape, _, dtype = read(array)
    if math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"{name} claims to be an array {shape} of {dtype}, and has {size} bytes")


def read_predictions(run: RunDirectory, step: int) -> dict[str, Predictions]:
    """The predictions of a run at a step, by environment; raises UserError if they are not kept."""
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
            predictions = {}
            for k, name in enumerate(map(str, kept["names"])):
                i = index[name]
                predictions[name] = Predictions(
                    kind=str(examples["kind"]),
                    logits=kept[f"logits{k}"],
                    targets=examples[f"targets{i}"],
                    out=examples[f"out{i}"],
                    classes=classes,
                    inputs=str(examples.get(f"inputs{i}", "")),
                )
        if any(not len(p.logits) == len(p.targets) == len(p.out) for p in predictions.values()):
            raise ValueError("logits and targets differ in length")
        return predictions
    except FileNotFoundError:
        raise UserError(
            f"{folder} keeps no predictions of step {step}: `sweep launch --keep-predictions` keeps them, "
            "but does not train ended runs again; launch into another directory (`--out`)"
        ) from None
    except UNREADABLE as error:
        raise UserError(f"{folder} cannot be read at step {step}: {brief(error)}") from None


PREDICTION_KEY = ["id", "step", "environment"]
"""The columns that identify the predictions of a run on an environment."""


def predictions_file(board: Path, dataset: str) -> Path:
    """The file of a board's predictions on a dataset, by its label."""
    return board / "predictions" / f"{quote(dataset, safe=' ,')}.parquet"


def freeze_predictions(
    file: Path, chosen: Iterable[tuple[RunDirectory, int, Collection[str]]]
) -> None:
    """Write the predictions of chosen steps on the named environments; other runs in the file stay.

    The columns are PREDICTION_KEY, `index` (of the example in its environment), `split` (`in`), `kind`
    (that of the `Task`), `target` and `output_0`, `output_1` and so on: logits, or values in the task's
    units. Half precision is stored as float32, which more readers support, or as float64 if the file has
    float64 rows, such as scikit-learn's. Targets with several numbers are `target_0` and so on. Raises
    UserError if no predictions are kept.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    steps = list(chosen)
    known: list[pa.Table] = []
    file.parent.mkdir(exist_ok=True)
    try:
        if file.is_file():
            again = pa.array([run.id for run, *_ in steps], pa.string())
            before = pq.read_table(file)
            known = [before.filter(pc.invert(pc.is_in(before["id"], again)))]
        for run, step, environments in steps:
            found = read_predictions(run, step)
            known += [_table_of(run.id, step, name, found[name]) for name in environments]
        _write(pa.concat_tables(known, promote_options="permissive"), file)
    except pa.ArrowInvalid as error:
        raise UserError(f"{file} is not of these predictions; remove it: {brief(error)}") from None


def _write(table: "pa.Table", file: Path) -> None:
    import pyarrow.parquet as pq
    import pyarrow.types as types

    outputs = (f for f in table.schema if f.name.startswith("output_"))
    encodings = {f.name: "BYTE_STREAM_SPLIT" for f in outputs if types.is_floating(f.type)}
    with whole_file(file) as sink:
        pq.write_table(
            table,
            sink,
            compression="zstd",
            use_dictionary=[*PREDICTION_KEY, "split", "kind"],
            column_encoding=encodings | {"index": "DELTA_BINARY_PACKED"},
            write_page_checksum=True,
            store_schema=False,
        )


def _table_of(run_id: str, step: int, environment: str, p: Predictions) -> "pa.Table":
    """The rows of an environment's `in` split, as in a board's records."""
    import pyarrow as pa

    (index,) = np.nonzero(~p.out)
    columns: dict[str, Any] = {
        "id": pa.array([run_id] * len(index)),
        "step": np.full(len(index), step, "int32"),
        "environment": pa.array([environment] * len(index)),
        "index": index.astype("int32"),
        "split": pa.array(["in"] * len(index)),
        "kind": pa.array([p.kind] * len(index)),
    }
    outputs = p.logits.reshape(len(p.logits), -1)[index]
    columns |= _columns("target", p.targets[index]) | _columns("output", outputs)
    return pa.table(columns)


def _columns(name: str, values: Array) -> dict[str, Array]:
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    if values.ndim == 1:
        return {name: values}
    flat = values.reshape(len(values), -1)
    return {f"{name}_{i}": np.ascontiguousarray(flat[:, i]) for i in range(flat.shape[1])}


def frozen_predictions(board: Path, dataset: str) -> Callable[[str, int], dict[str, Predictions]]:
    """Read a board's predictions on a dataset, by its label.

    The returned function gives the predictions of a run at a step by environment, as
    `read_predictions` does; they are empty if not frozen. Raises UserError for a damaged file.
    """
    import pyarrow.parquet as pq

    file = predictions_file(board, dataset)
    if not file.is_file():
        return lambda run_id, step: {}
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            table = opened.read()
        outputs = _side_by_side(table, "output_")
        if outputs.dtype == np.float32:
            outputs = outputs.astype(np.float16)
        is_plain = "target" in table.column_names
        targets = table["target"].to_numpy() if is_plain else _side_by_side(table, "target_")
        out, kinds = table["split"].to_numpy() == "out", table["kind"]
        parts: dict[Any, dict[str, Array]] = {}
        rows = table.select(PREDICTION_KEY).to_pandas().groupby(PREDICTION_KEY, sort=False).indices
        for (run_id, step, name), own in rows.items():
            parts.setdefault((run_id, step), {})[name] = own
    except UNREADABLE as error:
        raise UserError(f"{file} is torn or no file of predictions: {brief(error)}") from None

    def predictions_of(run_id: str, step: int) -> dict[str, Predictions]:
        return {
            name: Predictions(str(kinds[int(own[0])]), outputs[own], targets[own], out[own])
            for name, own in parts.get((run_id.partition("@")[0], step), {}).items()
        }

    return predictions_of


def _side_by_side(table: "pa.Table", name: str) -> Array:
    count = sum(column.startswith(name) for column in table.column_names)
    return np.stack([table[f"{name}{i}"].to_numpy() for i in range(count)], axis=1)


def predictions_of_runs(runs: Any) -> Callable[[str, int], dict[str, Predictions]]:
    """Read the predictions of runs in the form of `Tables.runs`, of directories and of boards.

    A frozen run without predictions has none; raises UserError where another keeps none.
    """
    of_dataset = cache(lambda name, dataset: frozen_predictions(find_board(name), dataset))
    names = ["id", "directory", "dataset_label"]
    frozen = set(runs.loc[runs["frozen"].eq(True), "id"])
    places = {run_id: place for run_id, *place in runs[names].itertuples(index=False, name=None)}

    def predictions_of(run_id: str, step: int) -> dict[str, Predictions]:
        directory, dataset = places[run_id]
        if run_id in frozen:
            found: dict[str, Predictions] = of_dataset(directory, dataset)(run_id, step)
            return found
        return read_predictions(Directory(Path(directory)).run(run_id), step)

    return predictions_of
