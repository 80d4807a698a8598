"""What importing the package does to the process that imports it: nothing; and its commands."""

import pydoc
from pathlib import Path
from typing import Any

import pytest
import typer.main

import oodbench
from oodbench.__main__ import main
from tests.helpers.commands import installed, python, type_in
from tests.helpers.paths import ROOT
from tests.helpers.results.made import Made, rising

METHOD = '''
from oodbench.algorithms import Algorithm, register


@register("Foreign", paper="none")
class Foreign(Algorithm):
    """Another package's method."""

    def objective(self, out):
        return out.risks.max()
'''
RULE = """
from oodbench.selection import Rule, records_on, register


@register("seen")
class Seen(Rule):
    summary, needs = "mean over the training examples", "nothing"

    def evidence(self, runs):
        return records_on(runs, "training_environments", "in")
"""
PROGRAM = """
import ctypes, os, random, signal, sys
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

load = ctypes.CDLL.__getattr__
def watched(library, name):
    assert name != "mallopt", "an option of the allocator is set"
    return load(library, name)
ctypes.CDLL.__getattr__ = watched

before = state()
import oodbench
oodbench.algorithms.Algorithm, oodbench.datasets.Dataset, oodbench.networks.base.Network
oodbench.hparams.hparam, oodbench.errors.UserError, oodbench.tasks.Task
assert {"algorithms", "selection", "metrics"} <= {*dir(oodbench)}
try:
    oodbench.algorithm
except AttributeError as error:
    print(error)

import oodbench.train
from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.networks import networks
algorithms.get("ERM"), datasets.get("Spirals"), networks.get("MLP")
heavy = {"matplotlib", "numba", "pandas", "scipy.stats", "sklearn", "torchvision", "transformers", "wilds"}
print(*sorted(heavy & set(sys.modules)))

from oodbench.selection import selection_rules
print(selection_rules.get("seen").__module__, "oracle" in list(selection_rules))
print(algorithms.get("Foreign").__module__, "ERM" in list(algorithms))
list(datasets)
import oodbench.train.execute
after = state()
print([name for name in before if before[name] != after[name]])
"""


@pytest.mark.slow
def test_importing_everything_changes_nothing_in_the_process(tmp_path: Path) -> None:
    """Modules for a user's classes need no import of their own, installed packages register, and what
    a run does not use is not imported.
    """
    (tmp_path / "foreign_methods.py").write_text(METHOD)
    (tmp_path / "foreign_rules.py").write_text(RULE)
    installed(tmp_path, "algorithms", "foreign_methods")
    installed(tmp_path, "selection_rules", "foreign_rules")
    done = python(Path("/"), "-c", PROGRAM, PYTHONPATH=f"{tmp_path}:{ROOT}")
    unknown, heavy, *others = done.stdout.splitlines() or [done.stderr]
    assert (unknown, heavy) == ("module 'oodbench' has no attribute 'algorithm'", ""), done.stderr
    assert others == ["foreign_rules True", "foreign_methods True", "[]"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


LIGHT = """
import sys
import oodbench
oodbench.arithmetic.prepare()  # before torch is imported
assert not {"torch", "numpy"} & set(sys.modules)

from oodbench.list.catalogue import own_entries
assert own_entries() and not {"torch", "numpy"} & set(sys.modules)

import oodbench.__main__, oodbench.results.directory, oodbench.sweep
import oodbench.report.html, oodbench.report.why
from oodbench.report.__main__ import app
app(["table", "out", "--plugin", "seen_rule"], standalone_mode=False)
print("seen_rule" in sys.modules, "torch" in sys.modules)
"""


@pytest.mark.slow
def test_lists_do_without_numpy_and_what_only_reads_without_torch(tmp_path: Path) -> None:
    """Commands, records and reports; a table also with a plug-in that defines a rule."""
    (tmp_path / "seen_rule.py").write_text(RULE)
    made = Made(tmp_path / "out")
    made.add("D", "ERM", ("a",), 0, rising(0.5))
    made.write_plan()
    done = python(tmp_path, "-c", LIGHT, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ERM" in done.stdout and done.stdout.endswith("\nTrue False\n")


def test_help_lists_what_there_is_with_a_line_each() -> None:
    plain: Any = vars(pydoc)["plaintext"]
    shown = pydoc.render_doc(oodbench, renderer=plain)
    introduced = shown.partition("PACKAGE CONTENTS")[0].splitlines()
    for name in oodbench.__all__:
        assert any(line.strip().startswith(f"{name}(") for line in introduced), name
        assert name in dir(oodbench) and callable(getattr(oodbench, name))
    assert "\n    load_model(directory: " in shown and "class Results(" in shown


def test_every_room_with_a_command_line_is_a_command_with_a_help() -> None:
    folder = Path(oodbench.__file__).parent
    rooms = sorted(path.parent.name for path in folder.glob("*/__main__.py"))
    command = typer.main.get_command(main)
    assert sorted(getattr(command, "commands")) == rooms  # noqa: B009
    for room in rooms:
        assert f" {room} [OPTIONS]" in type_in(room, "--help", code=0).output
