"""Puts the race's dataset into a DomainBed process and takes its times, when it is on PYTHONPATH.

DomainBed has no such dataset and no option for the workers of its loaders or for when it evaluates.
The file that OODBENCH_RACE names says what they are to be; nothing else of DomainBed is changed.
"""

import atexit
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAME = "Spirals"


def age() -> float:
    """Seconds since this process was started."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def enter(race: dict[str, Any]) -> None:
    """Import DomainBed and change what it has of the race's dataset, loaders and clock."""
    start = time.perf_counter() - age()
    import numpy as np
    import torch
    from domainbed import algorithms, datasets, hparams_registry
    from domainbed.lib import fast_data_loader, misc

    seconds: defaultdict[str, float] = defaultdict(float)
    marks: dict[str, float] = {}

    def timed(what: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            marks.setdefault(what, began)
            try:
                return work(*arguments, **options)
            finally:
                seconds[what] += time.perf_counter() - began

        return run

    class Race(datasets.MultipleDomainDataset):  # type: ignore[misc]
        ENVIRONMENTS = ("test",)
        """The environments that a sweep holds out in turn; the training environments follow them."""
        CHECKPOINT_FREQ = race["evaluate_every"]
        if race["loader_workers"] is not None:
            N_WORKERS = race["loader_workers"]

        def __init__(self, root: str, test_envs: list[int], hparams: dict[str, Any]) -> None:
            marks["dataset"] = time.perf_counter()
            stored = np.load(race["data"])
            self.datasets = [
                torch.utils.data.TensorDataset(
                    torch.from_numpy(stored[f"x{i}"]), torch.from_numpy(stored[f"y{i}"]).long()
                )
                for i in range(len(stored.files) // 2)
            ]
            self.input_shape = stored["x0"].shape[1:]
            self.num_classes = 2

    setattr(datasets, NAME, Race)

    def sized(hparams: Callable[..., dict[str, Any]], size: int) -> Callable[..., dict[str, Any]]:
        return lambda *given: {**hparams(*given), **race["network"], "batch_size": size}

    first, second = race["batch_sizes"]
    hparams_registry.default_hparams = sized(hparams_registry.default_hparams, first)
    hparams_registry.random_hparams = sized(hparams_registry.random_hparams, second)

    batches = fast_data_loader.InfiniteDataLoader.__iter__

    def iterate(loader: Any) -> Iterator[Any]:
        following = timed("loading", batches(loader).__next__)
        while True:
            yield following()

    fast_data_loader.InfiniteDataLoader.__iter__ = iterate
    misc.accuracy = timed("evaluating", misc.accuracy)
    algorithm_class = algorithms.get_algorithm_class

    def algorithm(name: str) -> Any:
        cls = algorithm_class(name)
        cls.update = timed("stepping", cls.update)
        return cls

    algorithms.get_algorithm_class = algorithm

    def report() -> None:
        if "dataset" not in marks:  # the sweep's own process
            return
        seconds["importing"] = marks["dataset"] - start
        seconds["setting up"] = marks["loading"] - marks["dataset"]
        Path(race["times"], f"{os.getpid()}.json").write_text(json.dumps(seconds))

    atexit.register(report)


if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("domainbed.scripts."):
    enter(json.loads(Path(os.environ["OODBENCH_RACE"]).read_text()))
