"""What a class's file and the files that it imports compute changes its digest, and nothing else."""

import os
from inspect import unwrap
from pathlib import Path

import pytest

from oodbench.algorithms import Algorithm, algorithms
from oodbench.identity import changed_files, code_at, code_of, is_of_package, sha256
from oodbench.networks.base import networks
from oodbench.results import stale
from oodbench.results.stale import DataFiles

FILES = {
    "__init__.py": "",
    "losses.py": "SCALE = 2\n\ndef spread(x):\n    return SCALE * x\n",
    "steps.py": "from .rates import *\n\ndef half(x):\n    return rate * x\n",
    "rates.py": "rate = 0.5\n",
    "later.py": "def late():\n    return 1\n",
    "others.py": "def never():\n    return 2\n",
    "method.py": '''"""A method."""
import numpy as np
from oodbench.algorithms import Algorithm
from . import losses
from pkg.steps import half as halved

class Mine(Algorithm):
    """Mine."""
    size: int = 3  # numbers

    def objective(self, out):
        from .later import late
        return losses.spread(halved(out)) + late() + np.pi

Mine.power = 1
''',
}
EDITS = [
    ("method.py", "= 3", "= 4"),
    ("method.py", "power = 1", "power = 2"),
    ("method.py", "import numpy as np", "import math as np"),
    ("losses.py", "SCALE = 2", "SCALE = 3"),
    ("steps.py", "rate * x", "rate + x"),
    ("rates.py", "0.5", "0.25"),
    ("later.py", "return 1", "return 3"),
]
NO_EDITS = [
    ("method.py", '"""A method."""\n', ""),
    ("method.py", "  # numbers", "  # a number"),
    ("method.py", "spread(halved(out)) + late()", "spread(\n halved(out,)\n) + late()"),
    ("others.py", "return 2", "return 4"),
]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pkg"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(("file", "old", "new"), [*EDITS, *NO_EDITS])
def test_an_edit_of_what_is_computed_is_seen(package: Path, file: str, old: str, new: str) -> None:
    recorded = code_at(package / "method.py")
    text = (package / file).read_text()
    assert old in text and changed_files(recorded) == []
    (package / file).write_text(text.replace(old, new))
    assert changed_files(recorded) == ([file] if (file, old, new) in EDITS else [])


def test_what_becomes_of_the_files(package: Path) -> None:
    recorded = code_at(package / "method.py")
    (package / "later.py").unlink()
    assert changed_files(recorded) == ["later.py"]
    (package / "method.py").write_text("class Mine(:")
    assert changed_files(recorded) == ["method.py", "later.py"]
    (package / "method.py").unlink()
    with pytest.raises(FileNotFoundError, match=r"^method\.py$"):
        changed_files(recorded)


def test_installed_packages_are_not_followed_but_the_methods_own(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    for name, text in (
        ("theirs/__init__.py", ""),
        (
            "theirs/method.py",
            "from theirs.loss import f\nfrom other import g\n\nclass M:\n    h = f, g\n",
        ),
        ("theirs/loss.py", "def f(): return 1\n"),
        ("other.py", "def g(): return 1\n"),
    ):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    files = code_at(site / "theirs" / "method.py")["files"]
    assert [Path(file).name for file in files] == ["method.py", "loss.py"]


def test_every_method_has_a_digest_of_files_of_its_folder() -> None:
    codes = {name: code_of(cls) for name, cls in algorithms.items() if "oodbench" in cls.__module__}
    assert all(code is not None and is_of_package(code) for code in codes.values())
    assert codes["IRM"] is not None
    assert {"algorithms/irm.py", "algorithms/penalized.py"} <= codes["IRM"]["files"].keys()
    assert code_of(Algorithm) is None and code_of(networks.get("MLP")) is None


def test_unchanged_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for this directory nor for one beside it."""
    monkeypatch.setattr(stale, "sha256", unwrap(sha256))
    file = tmp_path / "a.csv"
    file.write_text("1")
    listed = DataFiles(tmp_path / "one")
    (tmp_path / "one").mkdir()
    first, stat = listed.keep([file]), file.stat()
    file.write_text("2")
    other = listed.keep([file])
    assert other != first and listed.differing(first, other) == ["a.csv"]
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (tmp_path / "one" / "data" / f"{other}.json").unlink()
    assert listed.keep([file]) == DataFiles(tmp_path / "two").keep([file]) == first


def test_a_damaged_list_of_files_compares_with_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("1")
    digest = DataFiles(tmp_path).keep([file])
    assert DataFiles(tmp_path).changed_files(digest) == []
    path = tmp_path / "data" / f"{digest}.json"
    text = path.read_text()
    for other in ("", text[:-9], text.replace("a.csv", "b.csv")):
        path.write_text(other)
        with pytest.raises(FileNotFoundError, match=digest):
            DataFiles(tmp_path).changed_files(digest)
