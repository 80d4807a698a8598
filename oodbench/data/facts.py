"""Facts about a dataset beyond its interface, which the engine needs.

Most follow from the interface. A dataset for which one does not defines the name that the function here
looks up: `label`, `network`, `network_hparams`, `metric`, `higher_is_better`, `holdout`, `repeats`,
`normalization`, `evaluation_environments`, `resolved_options`, `split_metrics`, `predictor_metrics`,
`files_read`, `columns`, `readings`, `notes`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from oodbench.hparams import defaults
from oodbench.metrics import known_direction

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from oodbench.data.columns import Columns
    from oodbench.data.readings import Reading
    from oodbench.datasets import Dataset, FileDataset, Normalization

    SplitMetrics = Callable[[str, Tensor, Tensor], dict[str, float]]


NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?%?")
"""The names that are sorted as numbers."""


def label(dataset: "Dataset") -> str:
    """The dataset as tables call it: its name with the options that are not at their defaults."""
    if (own_label := getattr(dataset, "label", None)) is not None:
        return str(own_label)
    return labelled(dataset.name, changed_options(dataset))


def changed_options(dataset: "Dataset") -> dict[str, Any]:
    """The options that are not at their defaults."""
    usual = defaults(type(dataset.options))
    return {k: v for k, v in asdict(dataset.options).items() if v != usual[k]}


def labelled(name: str, options: Mapping[str, object]) -> str:
    """A name with options in parentheses, if there are any."""
    return name + (f"({', '.join(f'{k}={v}' for k, v in options.items())})" if options else "")


def run_options(dataset: "Dataset", pretrained: bool) -> dict[str, Any]:
    """Return the options as part of a run's identity, given whether its network is pretrained.

    `resolved_options(pretrained)` of a dataset gives the values of options that it resolves for a run.
    """
    resolve = getattr(dataset, "resolved_options", None)
    return asdict(dataset.options) | (resolve(pretrained) if resolve else {})


def network(dataset: "Dataset") -> str:
    """The network that is trained unless a sweep names another."""
    return getattr(dataset, "network", dataset.metadata.network)


def network_hparams(dataset: "Dataset") -> Mapping[str, Any]:
    """The hyperparameters of that network unless a sweep says otherwise."""
    return getattr(dataset, "network_hparams", {})


def metric(dataset: "Dataset") -> str:
    """The metric that selection and tables use by default: the task's."""
    return getattr(dataset, "metric", dataset.task.metric)


def higher_is_better(dataset: "Dataset") -> bool:
    """Whether a larger `metric` is better; raises UserError if its direction is not declared."""
    higher: bool | None = getattr(dataset, "higher_is_better", None)
    return known_direction(metric(dataset)) if higher is None else higher


def holdout(dataset: "Dataset") -> float:
    """The share of the `out` splits unless a sweep says otherwise."""
    return float(getattr(dataset, "holdout", 0.2))


def standardises_targets(dataset: "Dataset") -> bool:
    """Whether runs train on real targets in standard units of their training environments.

    Metrics and predictions are in the targets' own units either way. A dataset whose units have a meaning,
    such as a structural equation model, leaves it out.
    """
    return bool(getattr(dataset, "standardises_targets", False))


def repeats(dataset: "Dataset") -> bool:
    """Return whether inputs repeat by design, so that `data check` does not report repeated ones."""
    return bool(getattr(dataset, "repeats", False))


def normalization(dataset: "Dataset") -> "Normalization | None":
    """The mean and deviation that standardise the channels of images in [0, 1]; None: none do."""
    return getattr(dataset, "normalization", None)


def columns(dataset: "Dataset") -> "Columns | None":
    """The columns that the inputs of a table are made of; None: it is no table."""
    return getattr(dataset, "columns", None)


def group_names(dataset: "Dataset") -> tuple[str, ...]:
    """The names of the groups, by the numbers of `Task.groups`; none without attributes."""
    if not dataset.task.has_classes:
        return tuple(dataset.attributes)
    classes = dataset.classes or tuple(map(str, range(dataset.task.classes)))
    return tuple(f"{each}, {attribute}" for each in classes for attribute in dataset.attributes)


def evaluation_environments(dataset: "Dataset") -> tuple[str, ...]:
    """The evaluation splits that the data came with; they are never trained on.

    Where there are some, only these and held-out environments are scored, and there is no `out` split.
    """
    return getattr(dataset, "evaluation_environments", ())


def training_environments(dataset: "Dataset", held_out: Collection[str]) -> tuple[str, ...]:
    """The training environments when others are held out, in the dataset's order."""
    never = {*held_out, *evaluation_environments(dataset)}
    return tuple(name for name in dataset.environments if name not in never)


def split_metrics(dataset: "Dataset") -> "SplitMetrics | None":
    """Return the function for metrics of a split that are no means over its examples, or None.

    `split_metrics(environment, index, logits)` of a dataset takes the places of the split's examples in
    the environment, (n,), and their predictions, (n, ...), both on the CPU.
    """
    return getattr(dataset, "split_metrics", None)


def predictor_metrics(
    dataset: "Dataset", predict: "Callable[[Tensor], Tensor]", trial: int
) -> dict[str, float]:
    """Metrics of the predictor as a whole, such as the error of its weights.

    `predict` maps inputs (N, *input_shape) to logits (N, C), both on the CPU.
    """
    measure = getattr(dataset, "predictor_metrics", None)
    return measure(predict, trial) if measure else {}


def checksums(dataset: "Dataset") -> Mapping[str, str]:
    """The md5 of each file that is read; none of a dataset that is not made of files."""
    return getattr(dataset, "checksums", {})


def files_read(dataset: "Dataset") -> "Collection[Path]":
    """Files and folders that examples are read from without a checksum; of a folder, the names."""
    return getattr(dataset, "files_read", ())


def readings(dataset: "Dataset") -> "Sequence[Reading]":
    """What each column of a table is read as, and why; none of other data."""
    return getattr(dataset, "readings", ())


def notes(dataset: "Dataset") -> Sequence[str]:
    """Sentences on what is unusual in how the data are read, for `data check` and plans."""
    return getattr(dataset, "notes", ())


def check(dataset: "Dataset") -> None:
    """Raise UserError if a file of the data is missing or damaged."""
    from oodbench.datasets import FileDataset

    if isinstance(dataset, FileDataset):
        dataset.check()


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names as people count: numbers by their value, and other names by the numbers in them."""
    every = list(names)
    if all(NUMBER.fullmatch(name) for name in every):
        return sorted(every, key=lambda name: (float(name.rstrip("%")), name))
    return sorted(every, key=lambda name: (_pieces(name), name))


def _pieces(name: str) -> list[tuple[int, str]]:
    """Split a name into texts and numbers; longer numbers, without leading zeros, are larger."""
    split = re.split("([0-9]+)", name.casefold())
    texts = [text.lstrip("0") if i % 2 else text for i, text in enumerate(split)]
    return [(len(text) if i % 2 else 0, text) for i, text in enumerate(texts)]


def require_files(dataset: "Dataset") -> "FileDataset":
    """The dataset, typed as made of files; raises UserError for one that is not."""
    from oodbench.datasets import FileDataset
    from oodbench.errors import UserError

    if not isinstance(dataset, FileDataset):
        raise UserError(
            f"{dataset.name} is not made of files: it has nothing to download, to cache or to read"
        )
    return dataset
