"""The package `wilds` (arXiv:2012.07421): its data on disk, and the official evaluation.

The package is changed in two ways when it is first used. It and `ogb` do not ask PyPI on import whether a
newer version exists. Its mean by group, which needs torch_scatter without declaring it, is replaced by
`group_means`, which uses torch's scatter_reduce.
"""

import csv
import importlib
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from oodbench.data.encodings import pretrained
from oodbench.data.streams import Prepared
from oodbench.errors import MissingError, UserError, missing_package

Prediction = Literal["classes", "labels", "scores", "values", "tokens", "boxes"]
"""The predictions that a set's evaluation expects: class numbers, a 0 or 1 for each label, the network's
outputs for labels, real numbers, a class number for each token, or boxes with scores."""
LONGEST_ROW = 2**16
"""The last row of a table is searched in this number of bytes at its end."""
EXTRAS = {"transformers": "text", "torch_geometric": "graphs"}
"""Optional packages that some sets need, with the extra of ours that installs them."""


@lru_cache(maxsize=1)
def package() -> Any:
    """The package `wilds`; from now on its means over groups are `group_means`, in the whole process."""
    there = sys.modules.get("outdated")
    sys.modules["outdated"] = None  # type: ignore[assignment]  # its import then fails
    try:
        wilds = importlib.import_module("wilds")
        importlib.import_module("ogb")
    finally:
        del sys.modules["outdated"]
        if there is not None:
            sys.modules["outdated"] = there
    metric: Any = importlib.import_module("wilds.common.metrics.metric")
    metric.avg_over_groups = group_means
    return wilds


def group_means(v: Tensor, g: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
    """The mean of `v` (n,) over each group `g`, (n_groups,), 0 if empty; and the groups' sizes."""
    means = v.new_zeros(n_groups).scatter_reduce(0, g, v, "mean", include_self=False)
    return means, torch.bincount(g, minlength=n_groups).to(v.dtype)


def check_folder(folder: Path, name: str, version: str, files: tuple[str, ...]) -> None:
    """Raise UserError unless `folder` holds this version of a dataset, with the given files."""
    others = sorted(path.name for path in folder.parent.glob(f"{name}_v*") if path != folder)
    if others and not folder.is_dir():
        raise UserError(f"version {version} is needed; {folder.parent} has {', '.join(others)}")
    for file in files:
        if not (folder / file).exists():
            raise UserError(f"{folder / file} is missing")
        if file.endswith(".csv"):
            _check_end(folder / file)


def _check_end(table: Path) -> None:
    """Raise UserError for a CSV file that breaks off in its last row, which pandas would fill with NaN."""
    with table.open("rb") as file:
        header = next(csv.reader([file.readline().decode(errors="replace")]), [])
        file.seek(max(0, table.stat().st_size - LONGEST_ROW))
        *_, last = file.read().decode(errors="replace").split("\n")
    cells = next(csv.reader([last]), [])
    if last.count('"') % 2 == 0 and cells and (len(cells) < len(header) or not cells[-1]):
        raise UserError(f"{table} breaks off in its last row, '{last[:60]}'")


@lru_cache(maxsize=4)
def read(
    name: str,
    version: str | None,
    root: Path,
    settings: tuple[tuple[str, Any], ...],
    *,
    download: bool = False,
) -> Any:
    """The package's object for a set, kept in memory; with `download`, missing files are fetched.

    `settings` are further arguments of its constructor. Raises UserError for a package that is
    missing and for files that cannot be read.
    """
    import pandas as pd  # runs of other datasets start faster without it

    if name == "rxrx1" and int(pd.__version__.partition(".")[0]) > 2:
        raise UserError(f"wilds reads it with pandas 2 alone, and this is pandas {pd.__version__}")
    arguments: dict[str, Any] = {"version": version, "root_dir": str(root), "download": download}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # these packages warn of their own deprecated calls
            wilds = package()
            if name == "py150":  # the package would load its tokenizer from Hugging Face
                module: Any = importlib.import_module("wilds.datasets.py150_dataset")
                load = partial(pretrained, "GPT2TokenizerFast", download=download)
                module.GPT2Tokenizer = SimpleNamespace(from_pretrained=load)
            if name == "ogb-molpcba":  # torch_geometric has changed its arguments; it is not used
                module = importlib.import_module("wilds.datasets.ogbmolpcba_dataset")
                module.PyGCollater = lambda **arguments: None
            # torch 2.4 has no `safe_globals`, and reads the files without it
            safe = getattr(torch.serialization, "safe_globals", nullcontext)
            graphs = safe(_graph_classes() if name == "ogb-molpcba" else [])
            # CivilComments writes numbers into a column of texts, which pandas 3 refuses
            objects = pd.option_context("future.infer_string", False)
            with graphs, objects:
                data = wilds.get_dataset(name, **arguments, **dict(settings))
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing in EXTRAS:
            raise missing_package("it", missing, EXTRAS[missing]) from error
        command = f"pip install {missing}"
        raise MissingError(f"it needs the package {missing}: `{command}`", command) from error
    except UserError:
        raise
    except Exception as error:  # for a damaged file the package raises errors of any type
        text = " ".join(str(error).split()) or "no reason given"
        raise UserError(
            f"wilds {package().__version__} cannot read it from {root}: "
            f"{type(error).__name__}: {text[:300]}"
        ) from error
    if name == "sqf":  # pandas 2 returns booleans where pandas 1 returned numbers
        data._input_array = data._input_array.astype(np.float32)
    return data


def _graph_classes() -> list[Any]:
    data = importlib.import_module("torch_geometric.data.data")
    storage = importlib.import_module("torch_geometric.data.storage")
    return [data.DataEdgeAttr, data.DataTensorAttr, storage.GlobalStorage]


def groups(data: Any, fields: tuple[str, ...], index: Tensor) -> dict[str, Tensor]:
    """The indices of each group among `index`, by the package's grouper over metadata fields.

    Without fields there is a single group, `all`. Raises UserError for an unknown field.
    """
    unknown = [field for field in fields if field not in data.metadata_fields]
    if unknown:
        known = ", ".join(data.metadata_fields)
        raise UserError(f"there is no metadata field '{unknown[0]}' to group by; known: {known}")
    grouper_of = importlib.import_module("wilds.common.grouper").CombinatorialGrouper
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of groups that are empty
        grouper = grouper_of(data, list(fields) or None)
    group = grouper.metadata_to_group(data.metadata_array[index])
    order = group.argsort(stable=True)
    numbers, sizes = group[order].unique_consecutive(return_counts=True)
    parts = torch.split(index[order], sizes.tolist())
    return {
        grouper.group_field_str(number): part
        for number, part in zip(numbers.tolist(), parts, strict=True)
    }


def evaluate(
    data: Any, index: Tensor, outputs: Tensor, kind: Prediction, metric: str
) -> dict[str, float]:
    """The package's metrics of outputs (n, ...), as `Task.kept` keeps them, at the examples `index` (n,).

    Metrics of single groups are left out. A prediction that is not finite is wrong. For scores that are
    not finite and for the correlation with a constant, at which the package stops, only `metric` is
    returned, as NaN.
    """
    finite = outputs.isfinite()
    predicted: Any = outputs
    constant = kind == "values" and bool((outputs == outputs[:1]).all())
    if kind in ("scores", "values") and (constant or not finite.all()):
        return {metric: float("nan")}
    if kind == "boxes":
        known = (one[is_box] for one, is_box in zip(outputs, finite.all(-1), strict=True))
        predicted = [{"boxes": seen[:, :4], "scores": seen[:, 4]} for seen in known]
    elif kind == "labels":
        predicted = torch.where(finite, (outputs > 0).float(), -1.0)
    elif kind == "classes":
        predicted = torch.where(finite.all(-1), outputs.argmax(-1), -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of groups without examples
        y = data.y_array
        true = y[index] if isinstance(y, Tensor) else [y[i] for i in index.tolist()]
        results = data.eval(predicted, true, data.metadata_array[index])[0]
    return {name: float(value) for name, value in results.items() if ":" not in name}


def prepared(
    data: Any, index: Tensor, prepare: Callable[[Any], Tensor], shape: tuple[int, ...], name: str
) -> Prepared:
    """The inputs at `index` of one of the package's sets.

    `prepare` maps the package's object for an example to a tensor of `shape`. Reading raises UserError with
    the row of an example that cannot be read.
    """

    def example(row: int) -> Tensor:
        try:
            x = prepare(data.get_input(row))
        except Exception as error:  # a missing, truncated or foreign file
            text = re.sub(r"\s+", " ", str(error))
            raise UserError(
                f"{name}: the example of row {row} (counted from 0) of the metadata in {data.data_dir} "
                f"cannot be read: {text}"
            ) from error
        if tuple(x.shape) != shape:
            raise UserError(f"{name}: row {row} has the shape {tuple(x.shape)}, not {shape}")
        return x

    return Prepared(index.tolist(), example, shape)
