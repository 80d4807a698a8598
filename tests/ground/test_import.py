"""What importing the package does to the process that imports it: nothing; and its commands."""

import pydoc
from pathlib import Path
from typing import Any

import pytest
import typer.main

import oodbench
from oodbench.__main__ import main
from tests.helpers.commands import python, type_in
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


def test_portable_arithmetic_can_be_asked_for_before_torch_is_imported() -> None:
    program = "import sys, oodbench; oodbench.arithmetic.prepare(); print('torch' in sys.modules)"
    done = python(ROOT, "-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


@pytest.mark.slow
def test_importing_everything_changes_nothing_in_the_process() -> None:
    """A fresh process imports the package, its methods and datasets, and the engine."""
    done = python(ROOT, "-c", PROGRAM)
    assert (done.returncode, done.stdout, done.stderr) == (0, "unchanged\n", "")


def test_help_lists_what_there_is_with_a_line_each() -> None:
    plain: Any = vars(pydoc)["plaintext"]
    shown = pydoc.render_doc(oodbench, renderer=plain)
    introduced = shown.partition("PACKAGE CONTENTS")[0].splitlines()
    for name in oodbench.__all__:
        assert any(line.strip().startswith(f"{name}(") for line in introduced), name
        assert name in dir(oodbench) and callable(getattr(oodbench, name))
    assert "\n    load_model(directory: " in shown and "class Results(" in shown


def test_modules_that_a_class_is_written_with_need_no_import() -> None:
    code = """
import sys
import oodbench
assert "torch" not in sys.modules
oodbench.algorithms.Algorithm, oodbench.datasets.Dataset, oodbench.networks.base.Network
oodbench.hparams.hparam, oodbench.errors.UserError, oodbench.tasks.Task
assert {"algorithms", "selection", "metrics"} <= {*dir(oodbench)}
oodbench.algorithm
"""
    done = python(ROOT, "-c", code)
    assert done.stderr.splitlines()[-1].startswith("AttributeError: module 'oodbench' has no")


ROOMS = sorted(path.parent.name for path in Path(oodbench.__file__).parent.glob("*/__main__.py"))


def test_every_room_with_a_command_line_is_a_command() -> None:
    command = typer.main.get_command(main)
    assert sorted(getattr(command, "commands")) == ROOMS  # noqa: B009


@pytest.mark.parametrize("room", ROOMS)
def test_every_command_has_a_help(room: str) -> None:
    assert f" {room} [OPTIONS]" in type_in(room, "--help", code=0).output


@pytest.mark.slow
def test_lists_do_without_numpy_and_commands_records_and_reports_without_torch() -> None:
    rooms = "__main__", "results.directory", "sweep", "report.html", "report.why"
    code = f"""
import sys
from oodbench.list.catalogue import own_entries

assert own_entries() and not {{"torch", "numpy"}} & set(sys.modules)
import oodbench.{", oodbench.".join(rooms)}
assert "torch" not in sys.modules
"""
    done = python(ROOT, "-c", code)
    assert done.returncode == 0, done.stderr
