"""Puts the race's dataset into a DomainBed process, when it is on PYTHONPATH.

DomainBed has no such dataset and no option for the workers of its loaders or for when it evaluates.
The file that OODBENCH_RACE names says what they are to be; nothing else of DomainBed is changed.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def enter(race: dict[str, Any]) -> None:
    """Import DomainBed and change what it has of the race's dataset, loaders and hyperparameters."""
    import numpy as np
    import torch
    from domainbed import datasets, hparams_registry

    class Spirals(datasets.MultipleDomainDataset):  # type: ignore[misc]
        ENVIRONMENTS = ("test",)
        """The environments that a sweep holds out in turn; the training environments follow them."""
        CHECKPOINT_FREQ = race["evaluate_every"]
        if race["loader_workers"] is not None:
            N_WORKERS = race["loader_workers"]

        def __init__(self, root: str, test_envs: list[int], hparams: dict[str, Any]) -> None:
            stored = np.load(race["data"])
            self.datasets = [
                torch.utils.data.TensorDataset(
                    torch.from_numpy(stored[f"x{i}"]), torch.from_numpy(stored[f"y{i}"]).long()
                )
                for i in range(len(stored.files) // 2)
            ]
            self.input_shape = stored["x0"].shape[1:]
            self.num_classes = 2

    datasets.Spirals = Spirals

    def sized(hparams: Callable[..., dict[str, Any]], size: int) -> Callable[..., dict[str, Any]]:
        return lambda *given: {**hparams(*given), **race["network"], "batch_size": size}

    first, second = race["batch_sizes"]
    hparams_registry.default_hparams = sized(hparams_registry.default_hparams, first)
    hparams_registry.random_hparams = sized(hparams_registry.random_hparams, second)


if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("domainbed.scripts."):
    enter(json.loads(Path(os.environ["OODBENCH_RACE"]).read_text()))
