"""Noise in the labels or targets that runs train on, by a sweep's keys `label_noise` and `target_noise`."""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oodbench.data.preparation import class_names
from oodbench.datasets import Dataset
from oodbench.errors import UserError, unknown
from oodbench.seeds import derive

KEYS = ("label_noise", "target_noise")
PARTS = ("amount", "pairs", "validation")
VALIDATION = ("noisy", "clean")


def checked(dataset: Dataset, keys: Mapping[str, Any]) -> dict[str, Any] | None:
    """The noise that a sweep's `keys` describe, in the form of a run's spec; None if all amounts are 0.

    `label_noise: 0.25` replaces each label with probability 0.25; `{art: 0.1, photo: 0.4}` sets the
    probability by environment. `{amount: ..., pairs: {dog: fox}, validation: clean}` replaces dogs only, by
    foxes, and leaves validation data clean. `target_noise` adds normal noise to real targets, in units of
    their standard deviation. Raises UserError for an unknown environment or class, or an amount out of
    range.
    """
    if not keys:
        return None
    if len(keys) > 1:
        raise UserError(f"{dataset.label}: give `label_noise` or `target_noise`, not both")
    ((kind, value),) = keys.items()
    where, task, is_of_labels = f"'{kind}' of {dataset.label}", dataset.task, kind == "label_noise"
    if is_of_labels and not task.has_classes:
        hint = " (`target_noise` is for real ones)" if task.kind == "regression" else ""
        raise UserError(f"{where}: its targets are not single classes{hint}")
    if not is_of_labels and task.kind != "regression":
        what = "its targets are not real numbers (`label_noise` is for classes)"
        raise UserError(f"{where}: {what}")
    has_parts = isinstance(value, dict) and not {*map(str, value)} & {*dataset.environments}
    parts = value if has_parts else {"amount": value}
    for name in parts.keys() - {*PARTS}:
        raise unknown("environment or key", name, [*dataset.environments, *PARTS], where)
    if "amount" not in parts:
        raise UserError(f"{where} lacks its `amount`")
    validation = parts.get("validation", "noisy")
    if validation not in VALIDATION:
        raise unknown("value", validation, VALIDATION, f"'validation' in {where}")
    pairs = _pairs(dataset, parts.get("pairs", {}), is_of_labels, where)
    amount = parts["amount"]
    if isinstance(amount, dict):
        for name in {*map(str, amount)} - {*dataset.environments}:
            hint = " (it is a key next to `amount`, which has the environments)" * (name in PARTS)
            raise unknown("environment", name, dataset.environments, where, hint)
        amount = {
            str(name): _number(is_of_labels, v, f"'{name}' in {where}")
            for name, v in amount.items()
        }
    else:
        amount = _number(is_of_labels, amount, where)
    is_noisy = any(amount.values()) if isinstance(amount, dict) else amount
    noise = {"kind": kind, "amount": amount, "pairs": pairs, "validation": validation}
    return noise if is_noisy else None


def _number(is_share: bool, value: Any, where: str) -> float:
    most = 1.0 if is_share else sys.float_info.max
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        wanted = "a number between 0 and 1" if is_share else "a finite number from 0 on"
        raise UserError(f"{where} must be {wanted}, not {value!r}")
    return float(value)


def _pairs(dataset: Dataset, value: Any, has_classes: bool, where: str) -> dict[str, str]:
    if value and not has_classes:
        raise UserError(f"{where} has no classes, and so no 'pairs'")
    if not isinstance(value, dict):
        raise UserError(f"'pairs' in {where} must map classes to other classes, not {value!r}")
    pairs = {str(old): str(new) for old, new in value.items()}
    for old, new in pairs.items():
        for name in {old, new} - {*class_names(dataset)}:
            raise unknown("class", name, class_names(dataset), f"'pairs' in {where}")
        if old == new:
            raise UserError(f"'pairs' in {where} replace the class {old} by itself")
    return pairs


def noisy(
    noise: Mapping[str, Any],
    dataset: Dataset,
    environment: str,
    trial: int,
    targets: Tensor,
    deviation: Tensor | float = 1.0,
) -> Tensor:
    """The targets (N, ...) of an environment with noise; `deviation` (C,) scales that of real targets.

    An environment's draws depend only on the trial and the example's position. A larger amount of label
    noise therefore changes the same labels to the same classes, and further labels.
    """
    seed = derive(noise["kind"], dataset.name, environment, trial)
    generator = torch.Generator().manual_seed(seed)
    given, y = noise["amount"], targets.cpu()
    # an environment that the sweep does not name stays clean
    amount = float(given.get(environment, 0.0) if isinstance(given, dict) else given)
    if noise["kind"] == "target_noise":
        drawn = torch.randn(y.shape, generator=generator, dtype=torch.float64)
        scale = torch.as_tensor(deviation, dtype=torch.float64).cpu()
        return (y + amount * scale * drawn).to(targets)
    is_changed, labels = torch.rand(len(y), generator=generator) < amount, y.long()
    if noise["pairs"]:
        names = class_names(dataset)
        renamed = [names.index(noise["pairs"].get(name, name)) for name in names]
        others = torch.tensor(renamed)[labels]
    else:  # one of the other classes, uniformly
        count = dataset.task.classes
        others = (labels + torch.randint(1, count, (len(y),), generator=generator)) % count
    return torch.where(is_changed, others.to(y.dtype), y).to(targets)
