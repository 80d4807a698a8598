"""The weights that networks begin with, and whether their training data hold a dataset's pictures."""

from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from oodbench.yaml_values import read_yaml

FILE = Path(__file__).with_name("pretraining.yaml")
"""The table of weights and datasets, with sources."""


@cache
def _table() -> Mapping[str, Any]:
    values: Mapping[str, Any] = read_yaml(FILE)
    return values


def weights_of(values: object, dataset: str = "") -> str:
    """The weights in a network's hyperparameters, with what they have seen of a dataset; empty if random.

    Files are given by name and a prefix of their SHA-256, published weights by name.
    """
    if not isinstance(values, Mapping) or values.get("weights", "none") == "none":
        return ""
    model, weights = values.get("model"), str(values.get("file") or values["weights"])
    name = str(model) if weights == "cached" and model else PurePath(weights).name
    checksum = str(values.get("sha256") or "")
    text = f"{name} ({checksum[:8]})" if checksum else name
    seen, _ = seen_by(values, dataset)
    return f"{text}: {seen}" if seen else text


def seen_by(values: Mapping[str, Any], dataset: str) -> tuple[str, str]:
    """Whether weights have `seen` a dataset, and a sentence with the source; empty if it is not listed."""
    names = [str(values.get(key) or "") for key in ("weights", "model")]
    names += [str(values.get("sha256") or "")[:8]]
    for data, patterns in _table()["weights"].items():
        if any(fnmatch(name, str(pattern)) for name in names for pattern in patterns):
            seen, source = _table()["seen"].get(data, {}).get(dataset, ("", ""))
            return seen, f"{data} on {dataset}: {seen}; {source}." if seen else ""
    return "", ""
