"""Between `Dataset.load` and a run: checks of the data, and what is fitted to a part of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from oodbench.data.facts import label
from oodbench.data.streams import Changed, Part, Stored
from oodbench.datasets import Dataset, Environment
from oodbench.errors import UserError

CHUNK = 4096
"""Examples in memory whose inputs are looked at together."""


def load_checked(dataset: Dataset, trial: int) -> dict[str, Environment]:
    """The environments of a trial, as `Dataset.load` gives them.

    Raises UserError, with the dataset, the environment and what is wrong, unless the names are the
    dataset's, the names of classes are as many as the classes, every input has a target, inputs in
    memory are finite numbers, targets are those of the task, and groups, attributes and the `out` split
    belong to the examples.
    """
    found = dataset.load(trial)
    if set(found) != set(dataset.environments):
        raise UserError(
            f"{label(dataset)}: the environments that were loaded are {', '.join(found)}, "
            f"and those that it names are {', '.join(dataset.environments)}"
        )
    count = max(2, dataset.task.num_outputs)
    if dataset.classes and len(dataset.classes) != count:
        raise UserError(
            f"{label(dataset)}: `classes` has {len(dataset.classes)} names, and there are {count} classes"
        )
    for name, environment in found.items():
        mistake = _mistake(environment) or dataset.task.mistake(environment.y)
        mistake = mistake or _mistake_of_attributes(environment.attributes, dataset.attributes)
        if mistake is not None:
            raise _error(dataset, name, mistake)
    return found


def fitted(
    dataset: Dataset, environments: dict[str, Environment], training: Mapping[str, Tensor]
) -> dict[str, Environment]:
    """The environments with all inputs as `Dataset.fit` changes them.

    It is shown the examples at the places (n,) in `training`, by environment, and no others. Raises
    UserError unless every environment's inputs then fit the network.
    """
    if fits(dataset):
        change = fit(dataset, environments, training)
        environments = {
            name: replace(environment, x=_changed(environment.x, change))
            for name, environment in environments.items()
        }
    for name, environment in environments.items():
        mistake = _mistake_of_inputs(dataset, environment)
        if mistake is not None:
            raise _error(dataset, name, mistake)
    return environments


def fit(
    dataset: Dataset, environments: Mapping[str, Environment], training: Mapping[str, Tensor]
) -> Callable[[Tensor], Tensor]:
    """What `Dataset.fit` makes of the examples at the places (n,) in `training`, by environment."""
    return dataset.fit({name: _part(environments[name], at) for name, at in training.items()})


def fits(dataset: Dataset) -> bool:
    """Whether the inputs depend on what is trained on."""
    return type(dataset).fit is not Dataset.fit


def is_discrete(dataset: Dataset, environments: Mapping[str, Environment]) -> bool:
    """Whether inputs are numbers of words, by one of the examples."""
    for environment in environments.values():
        if len(environment.y):
            return not _first(dataset, environment).is_floating_point()
    return False


def _first(dataset: Dataset, environment: Environment) -> Tensor:
    """The first example's inputs as the network has them, (1, ...)."""
    first = torch.zeros(1, dtype=torch.long)
    x = environment.x.read(first) if isinstance(environment.x, Stored) else environment.x[:1]
    return dataset.transform(x, None)


def is_finite(x: Tensor) -> bool:
    """Whether no input is NaN or infinite."""
    return not x.is_floating_point() or bool(x.isfinite().all())


def _error(dataset: Dataset, environment: str, mistake: str) -> UserError:
    return UserError(f"{label(dataset)}, environment '{environment}': {mistake}")


def _mistake(environment: Environment) -> str | None:
    """What is wrong with an environment, whatever the task."""
    x, y = environment.x, environment.y
    if not isinstance(x, Tensor | Stored):
        return f"inputs are a tensor or oodbench.data.streams.Stored, not {type(x).__name__}"
    parts = {"targets": y, "groups": environment.groups, "out": environment.out}
    for what, values in {**parts, "attributes": environment.attributes}.items():
        if values is None:
            continue
        if not isinstance(values, Tensor):
            return f"`{what}` is a tensor, not {type(values).__name__}"
        if len(values) != len(x):
            return f"it has {len(x)} inputs and {len(values)} {what}"
    if environment.out is not None and environment.out.dtype != torch.bool:
        return f"`out` is true or false of each example, not {environment.out.dtype}"
    if isinstance(x, Tensor):
        for start, piece in enumerate(torch.split(x, CHUNK)):
            if not is_finite(piece):
                odd = (~piece.flatten(1).isfinite().all(1)).nonzero()[0, 0]
                return f"the input of example {start * CHUNK + int(odd)} is not finite"
    return None


def _mistake_of_attributes(found: Tensor | None, names: Sequence[str]) -> str | None:
    """What keeps attributes from being those that the dataset names."""
    if (found is None) != (not names):
        return "it has attributes and the dataset names none, or none of those that it names"
    if found is not None:
        if found.dtype != torch.int64:
            return f"attributes are torch.int64, not {found.dtype}"
        if len(found) and not (0 <= found.min() and found.max() < len(names)):
            odd = int(found.min()) if found.min() < 0 else int(found.max())
            return f"an example has the attribute {odd}, and there are {len(names)}, from 0 on"
    return None


def _mistake_of_inputs(dataset: Dataset, environment: Environment) -> str | None:
    """What keeps the inputs from being those of the dataset's networks."""
    if not len(environment.y):
        return None
    x = _first(dataset, environment)
    shape = tuple(x.shape[1:])
    if shape != tuple(dataset.input_shape):
        return f"an input has the shape {shape}, and the dataset's `input_shape` is {dataset.input_shape}"
    if x.dtype not in (torch.float32, torch.int16, torch.int32, torch.int64):
        return f"inputs are torch.float32, or signed integers for words and atoms, not {x.dtype}"
    return None


def _part(environment: Environment, places: Tensor) -> Environment:
    x = environment.x
    return Environment(
        Part(x, places.cpu()) if isinstance(x, Stored) else x[places], environment.y[places]
    )


def _changed(x: Tensor | Stored, change: Callable[[Tensor], Tensor]) -> Tensor | Stored:
    return Changed(x, change) if isinstance(x, Stored) else change(x)
