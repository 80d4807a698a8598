"""The wheel, installed away from the checkout, has everything and takes nobody's name."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from oodbench.list.catalogue import own_entries
from oodbench.results.boards import board_names, find_board, frozen_datasets
from oodbench.sweep.file import named_sweeps
from oodbench.verify.targets import experiment_names
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with the sdist and the wheel that it makes, and what building them printed."""
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)]
    done = subprocess.run(build, check=True, capture_output=True, text=True)
    return target, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(built: tuple[Path, str]) -> Path:
    """The files of the wheel, beside a stand-in for Hugging Face's `datasets`."""
    target, _ = built
    (wheel,) = target.glob("*.whl")
    site = target / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (site / "datasets").mkdir()
    (site / "datasets" / "__init__.py").write_text("def load_dataset() -> str:\n    return 'hf'\n")
    return site


def python(site: Path, code: str) -> str:
    """What a program prints that finds oodbench in the wheel's files alone."""
    program = f"import sys; sys.path.insert(0, {str(site)!r})\n{code}"
    command = [sys.executable, "-P", "-c", program]
    found = subprocess.run(command, cwd=site.parent, capture_output=True, text=True, check=True)
    return found.stdout


def test_the_wheel_holds_every_algorithm_dataset_sweep_and_board(site: Path) -> None:
    code = """
import oodbench
from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.report.html import render
from oodbench.results.boards import board_names, find_board, frozen_datasets
from oodbench.sweep.file import find_sweep, named_sweeps, read_sweep
from oodbench.sweep.plan import make_plan
from oodbench.verify.targets import experiment_names, load_experiment
boards = [f"{name} {frozen_datasets(find_board(name))}" for name in board_names()]
targets = [load_experiment(name).name for name in experiment_names()]
print([[*algorithms], [*datasets], [*named_sweeps()], targets, boards])
print(oodbench.__file__)
print(len(render({"version": "", "title": ""})))
print(len(make_plan(read_sweep(find_sweep("quickstart"), ["trials=1"])).runs))
"""
    names, file, page, runs = python(site, code).splitlines()
    assert file.startswith(str(site))
    boards = [f"{name} {frozen_datasets(find_board(name))}" for name in board_names()]
    own = [[e.name for e in own_entries() if e.kind == kind] for kind in ("algorithm", "dataset")]
    assert names == str([*own, [*named_sweeps()], experiment_names(), boards])
    assert int(page) > 10_000 and int(runs) == 80  # with its scripts


def test_building_warns_of_nothing(built: tuple[Path, str]) -> None:
    assert "Successfully built" in built[1]
    assert "WARNING" not in built[1], built[1]


def test_the_wheel_leaves_other_packages_alone(site: Path) -> None:
    assert {p.name for p in site.iterdir() if p.suffix != ".dist-info"} == {"oodbench", "datasets"}
    code = "import oodbench.datasets, datasets; print(datasets.load_dataset())"
    assert python(site, code).strip() == "hf"
