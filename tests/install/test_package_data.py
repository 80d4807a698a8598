"""The files beside the code: setuptools takes those that pyproject.toml names, and no others."""

import tomllib
from pathlib import Path

from oodbench.board.files import frozen_folder
from tests.helpers.paths import ROOT

ENTRY = ("submission.json", "verified.json", "method/mine.py", "parts/SEM.parquet")
"""The files of an entry, which a board of the package may get."""


def test_every_file_of_a_board_is_named() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = data["package-data"]["oodbench.board"]
    files = [p.relative_to(frozen_folder().parent) for p in frozen_folder().rglob("*")]
    files = [p for p in files if (frozen_folder().parent / p).is_file() and p.suffix != ".md"]
    files += [Path("frozen/small.v2/entries/Mine") / name for name in ENTRY]
    missing = [str(path) for path in files if not any(path.match(p) for p in patterns)]
    assert len(files) > 400 and not missing
