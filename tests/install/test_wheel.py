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


def own_names(kind: str) -> list[str]:
    return [entry.name for entry in own_entries() if entry.kind == kind]


def test_the_wheel_holds_every_algorithm_dataset_sweep_and_board(site: Path) -> None:
    code = """
import oodbench
from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
print(oodbench.__file__)
print(",".join(algorithms))
print(",".join(datasets))
from oodbench.sweep.file import named_sweeps
print(",".join(named_sweeps()))
from oodbench.report.html import render
print(len(render({"version": "", "title": ""})))
from oodbench.verify.targets import experiment_names, load_experiment
print(",".join(load_experiment(n).name for n in experiment_names()))
from oodbench.results.boards import board_names, find_board, frozen_datasets
print(";".join(f"{n} {frozen_datasets(find_board(n))}" for n in board_names()))
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.plan import make_plan
print(len(make_plan(read_sweep(find_sweep("quickstart"), ["trials=1"])).runs))
"""
    found = python(site, code).splitlines()
    file, found_algorithms, found_datasets, sweeps, page, found_targets, boards, runs = found
    assert file.startswith(str(site))
    assert found_algorithms.split(",") == own_names("algorithm")
    assert found_datasets.split(",") == own_names("dataset")
    assert sweeps.split(",") == list(named_sweeps())
    assert found_targets.split(",") == experiment_names()
    assert int(page) > 10_000  # with its scripts
    frozen = [f"{name} {frozen_datasets(find_board(name))}" for name in board_names()]
    assert boards == ";".join(frozen) and int(runs) == 80


def test_building_warns_of_nothing(built: tuple[Path, str]) -> None:
    assert "Successfully built" in built[1]
    assert "WARNING" not in built[1], built[1]


def test_the_wheel_leaves_other_packages_alone(site: Path) -> None:
    assert {p.name for p in site.iterdir() if p.suffix != ".dist-info"} == {"oodbench", "datasets"}
    code = "import oodbench.datasets, datasets; print(datasets.load_dataset())"
    assert python(site, code).strip() == "hf"
