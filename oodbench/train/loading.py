"""The data of a run: environments on its device, with their splits, and batches of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from oodbench.algorithms import Algorithm
from oodbench.data.streams import Part, Stored
from oodbench.datasets import Dataset, Environment, make
from oodbench.errors import UserError
from oodbench.results.run_spec import RunSpec
from oodbench.seeds import derive
from oodbench.train.batches import Batches
from oodbench.train.settings import TrainSettings
from oodbench.train.splits import split


@dataclass(frozen=True)
class Data:
    """A dataset's environments on the device of a run, with their splits."""

    dataset: Dataset
    environments: dict[str, Environment]
    splits: dict[str, dict[str, Tensor]]


@lru_cache(maxsize=2)
def _load(
    name: str, options: str, trial: int, holdout: float, data_dir: Path | None, device: str
) -> Data:
    dataset = make(name, json.loads(options), data_dir)
    environments, splits = {}, {}
    for environment, data in dataset.load(trial).items():
        parts = split(data, holdout, name, environment, trial)
        splits[environment] = {part: index.to(device) for part, index in parts.items()}
        x = data.x if isinstance(data.x, Stored) else data.x.to(device)
        environments[environment] = Environment(x, data.y.to(device))
    return Data(dataset, environments, splits)


def load_data(spec: RunSpec, settings: TrainSettings) -> Data:
    """The data of a run; those of the last two (dataset, trial) are kept in memory."""
    options = json.dumps(spec.options, sort_keys=True)
    return _load(
        spec.dataset, options, spec.trial, spec.holdout, settings.data_dir, settings.device
    )


def batches(
    spec: RunSpec, data: Data, names: Sequence[str], algorithm: Algorithm, settings: TrainSettings
) -> Batches:
    """The batches of the training environments `names`; raises UserError for one that is empty."""
    training = []
    for name in names:
        environment, index = data.environments[name], data.splits[name]["in"]
        if not len(index):
            raise UserError(f"{spec.dataset}: nothing to train on in environment '{name}'")
        x = environment.x
        inputs = Part(x, index.cpu()) if isinstance(x, Stored) else x[index]
        training.append((inputs, environment.y[index]))
    transform = data.dataset.transform
    return Batches(
        training,
        algorithm.hparams.batch_size,
        derive("batches", spec.dataset, spec.test_environments, spec.trial),
        transform=None if type(data.dataset).transform is Dataset.transform else transform,
        environments_at=algorithm.environments_at,
        repeat=algorithm.hparams.environments_per_step > 0,
        end=spec.steps,
        loader_workers=settings.loader_workers or 0,
    )
