"""What importing the package does to the process that imports it: nothing."""

import pytest

from tests.helpers.commands import python
from tests.helpers.paths import ROOT

PROGRAM = """
import os, random, signal
import numpy as np
import torch

def state():
    optimizers = {
        name: (cls.step, cls.zero_grad, tuple(sorted(vars(cls))))
        for name, cls in vars(torch.optim).items()
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)
    }
    return {
        "optimizers": optimizers,
        "environment": dict(os.environ),
        "signals": {s: signal.getsignal(s) for s in signal.valid_signals()},
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "python": random.getstate(),
        "numpy": repr(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "directory": os.getcwd(),
    }

import ctypes
load = ctypes.CDLL.__getattr__
def watched(library, name):
    assert name != "mallopt", "an option of the allocator is set"
    return load(library, name)
ctypes.CDLL.__getattr__ = watched

before = state()
import oodbench, oodbench.algorithms, oodbench.datasets
list(oodbench.algorithms.algorithms)
list(oodbench.datasets.datasets)
import oodbench.train.execute
after = state()
changed = [name for name in before if before[name] != after[name]]
assert not changed, changed
print("unchanged")
"""


@pytest.mark.slow
def test_importing_everything_changes_nothing_in_the_process() -> None:
    """A fresh process imports the package, its methods and datasets, and the engine."""
    done = python(ROOT, "-c", PROGRAM)
    assert (done.returncode, done.stdout, done.stderr) == (0, "unchanged\n", "")
