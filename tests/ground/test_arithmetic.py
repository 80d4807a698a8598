"""Portable arithmetic: how it is asked for, what says that it is in force, and runs whose bits it fixes."""

import json
import os
import runpy
import subprocess
import sys
from typing import Any

import pytest
import torch

from oodbench import arithmetic
from oodbench.train.process import clean_process
from tests import golden_runs
from tests.helpers.algorithms.methods import tiny
from tests.helpers.paths import GOLDEN, ROOT

DIGESTS = json.loads((GOLDEN / "runs.json").read_text())["digests"]
LIKE = {"dataset": {"name": "LinearSEM", "num_examples": 20}, "steps": 1, "evaluate_every": 1}
"""A run of one step."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not arithmetic.variables(), reason=str(arithmetic.why_native())),
]


def python(code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """A process with native arithmetic unless its code, or a variable, says otherwise."""
    env = dict(os.environ.items() - arithmetic.variables().items()) | variables
    options: Any = {"cwd": ROOT, "env": env, "capture_output": True, "text": True, "check": True}
    return subprocess.run([sys.executable, "-c", code], **options)


@pytest.mark.parametrize("name", golden_runs.RUNS)
def test_short_runs_have_the_same_bits_on_every_x86_64_processor(name: str) -> None:
    assert golden_runs.digest(name) == DIGESTS[name]


@pytest.mark.nightly
def test_importing_the_package_changes_nothing_and_a_run_there_warns_once_and_records_it() -> None:
    told = python(
        "import glob, json, os, tempfile\n"
        "import oodbench, oodbench.arithmetic as a\n"
        "with tempfile.TemporaryDirectory() as out:\n"
        f"    for trial in (0, 1): oodbench.run(**{LIKE}, trial=trial, out=out + str(trial))\n"
        "    runs = [json.load(open(f)) for f in glob.glob(out + '*/runs/*/run.json')]\n"
        "print({r['provenance']['arithmetic'] for r in runs}, a.variables().keys() & os.environ.keys())"
    )
    assert told.stdout == "{'native'} set()\n"
    assert told.stderr.count("on another processor the last bits of these results may differ") == 1


@pytest.mark.nightly
def test_what_comes_too_late_is_not_called_portable() -> None:
    code = "import torch; torch.ones(9, 9) @ torch.ones(9, 9); torch.ones(99).sqrt()\n"
    code += "from oodbench import arithmetic; arithmetic.prepare(); print(arithmetic.why_native())"
    assert "used before portable arithmetic was asked for" in python(code).stdout


def test_a_command_leaves_its_process_alone_where_the_user_says_so() -> None:
    code = "import oodbench.__main__, os; print('MKL_CBWR' in os.environ)"
    assert python(code).stdout == "True\n"
    assert python(code, OODBENCH_ARITHMETIC="native").stdout == "False\n"


def test_tests_compute_portably() -> None:
    assert arithmetic.why_native() is None


@pytest.mark.parametrize("least", [1.2e-38, 1e-44])
def test_flushing_changes_masks_below_the_smallest_normal_number_alone(least: float) -> None:
    generator = torch.Generator().manual_seed(0)
    exponents = torch.rand(4, 10_000, generator=generator, dtype=torch.double)
    signs = torch.randint(2, exponents.shape, generator=generator) * 2 - 1
    gradients = (signs * least**exponents).float()  # of sizes from `least` to 1
    method = tiny("ANDMask", environments=4, rescale=False)
    kept = method.combine(gradients) != 0
    with clean_process(1):
        flushed = method.combine(gradients) != 0
    normal = (gradients.abs() >= torch.finfo(torch.float).tiny).all(0)
    assert kept.any() and torch.equal(kept[normal], flushed[normal])
    assert torch.equal(kept, flushed) == bool(normal.all())


@pytest.mark.parametrize("room", "board conformance data diagnose sweep train verify".split())
def test_each_command_computes_portably(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(arithmetic, "prepare", lambda: calls.append(room))
    monkeypatch.setattr(sys, "argv", [room, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "oodbench" / room / "__main__.py"), run_name="__main__")
    assert calls == [room]
