"""Noise in the labels or targets that runs train on: a dataset's keys `label_noise` and `target_noise`."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oodbench.datasets import Dataset
from oodbench.errors import UserError, unknown
from oodbench.seeds import derive

KEYS = ("label_noise", "target_noise")
PARTS = ("amount", "pairs", "validation")
VALIDATION = ("noisy", "clean")


def checked(dataset: Dataset, keys: Mapping[str, Any]) -> dict[str, Any] | None:
    """The noise that a sweep file asks for by `KEYS`, as a run's spec has it; None if all amounts are 0.

    `label_noise: 0.25` replaces each label with probability 0.25, `{art: 0.1, photo: 0.4}` by environment.
    `{amount: ..., pairs: {dog: fox}, validation: clean}` replaces dogs alone, by foxes, and leaves
    validation data clean. `target_noise` adds normal noise to real targets, in their standard deviations.
    Raises UserError for an unknown environment or class, or an amount out of range.
    """
    if len(keys) > 1:
        raise UserError(f"{dataset.label}: give `label_noise` or `target_noise`, not both")
    for kind, value in keys.items():
        where = f"'{kind}' of {dataset.label}"
        _check_task(dataset, kind, where)
        has_parts = isinstance(value, dict) and not {*map(str, value)} & {*dataset.environments}
        parts = value if has_parts else {"amount": value}
        if "amount" not in parts:
            name = next(iter(parts), "amount")
            if name not in (*PARTS, "amount"):
                raise unknown("environment or key", name, [*dataset.environments, *PARTS], where)
            raise UserError(f"{where} lacks its `amount`")
        for name in parts.keys() - set(PARTS):
            raise unknown("key", name, PARTS, where)
        validation = parts.get("validation", "noisy")
        if validation not in VALIDATION:
            raise unknown("value", validation, VALIDATION, f"'validation' in {where}")
        amount = _amount(dataset, kind, parts["amount"], where)
        pairs = _pairs(dataset, kind, parts.get("pairs", {}), where)
        if any(amount.values()) if isinstance(amount, dict) else amount:
            return {"kind": kind, "amount": amount, "pairs": pairs, "validation": validation}
    return None


def _check_task(dataset: Dataset, kind: str, where: str) -> None:
    if kind == "label_noise" and not dataset.task.has_classes:
        hint = " (`target_noise` is for real ones)" if dataset.task.kind == "regression" else ""
        raise UserError(f"{where}: its targets are not single classes{hint}")
    if kind == "target_noise" and dataset.task.kind != "regression":
        raise UserError(f"{where}: its targets are not real numbers (`label_noise` is for classes)")


def _amount(dataset: Dataset, kind: str, value: Any, where: str) -> float | dict[str, float]:
    if isinstance(value, dict):
        for name in value:
            if str(name) not in dataset.environments:
                raise unknown("environment", name, dataset.environments, where)
        return {str(name): _number(kind, each, where) for name, each in value.items()}
    return _number(kind, value, where)


def _number(kind: str, value: Any, where: str) -> float:
    most = 1.0 if kind == "label_noise" else math.inf
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most or not math.isfinite(value):
        wanted = "a number between 0 and 1" if most == 1 else "a finite number from 0 on"
        raise UserError(f"{where} must be {wanted}, not {value!r}")
    return float(value)


def _pairs(dataset: Dataset, kind: str, value: Any, where: str) -> dict[str, str]:
    if value and kind != "label_noise":
        raise UserError(f"{where} has no classes, and so no 'pairs'")
    if not isinstance(value, dict):
        raise UserError(f"'pairs' in {where} must be classes with others, not {value!r}")
    names = _classes(dataset)
    for name in (*value, *value.values()):
        if str(name) not in names:
            raise unknown("class", name, names, f"'pairs' in {where}")
    for old, new in value.items():
        if str(old) == str(new):
            raise UserError(f"'pairs' in {where} replace the class {old} by itself")
    return {str(old): str(new) for old, new in value.items()}


def _classes(dataset: Dataset) -> tuple[str, ...]:
    return tuple(dataset.classes or map(str, range(dataset.task.classes)))


def noisy(
    noise: Mapping[str, Any],
    dataset: Dataset,
    environment: str,
    trial: int,
    targets: Tensor,
    deviation: Tensor | float = 1.0,
) -> Tensor:
    """The targets (N, ...) of an environment with noise; real ones are in units of `deviation` (C,).

    The draws depend on the trial and the example's position alone, so that a larger amount of label noise
    changes the same labels to the same classes, and more of them.
    """
    generator = torch.Generator().manual_seed(
        derive(noise["kind"], dataset.name, environment, trial)
    )
    given, y = noise["amount"], targets.cpu()
    # environments that the sweep does not name stay clean
    amount = float(given.get(environment, 0.0) if isinstance(given, dict) else given)
    if noise["kind"] == "target_noise":
        drawn = torch.randn(y.shape, generator=generator, dtype=torch.float64)
        scale = torch.as_tensor(deviation, dtype=torch.float64).cpu()
        return (y + amount * scale * drawn).to(targets)
    is_changed = torch.rand(len(y), generator=generator) < amount
    others = _others(noise, dataset, y.long(), generator)
    return torch.where(is_changed, others.to(y.dtype), y).to(targets)


def _others(
    noise: Mapping[str, Any], dataset: Dataset, y: Tensor, generator: torch.Generator
) -> Tensor:
    """The class that replaces each label: another one, uniformly, or by the pairs."""
    if noise["pairs"]:
        names = _classes(dataset)
        table = [names.index(noise["pairs"].get(name, name)) for name in names]
        return torch.tensor(table)[y]
    count = dataset.task.classes
    return (y + torch.randint(1, count, (len(y),), generator=generator)) % count
