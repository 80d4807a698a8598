"""The files beside the code: setuptools takes those that pyproject.toml names, and no others."""

import tomllib
from pathlib import Path

from oodbench.results.boards import frozen_folder
from tests.helpers.paths import ROOT


def test_every_file_of_a_board_is_named() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = data["package-data"]["oodbench.board"]
    written = (p for p in frozen_folder().rglob("*.*") if p.is_file() and p.suffix != ".md")
    files = [p.relative_to(frozen_folder().parent) for p in written]
    files.append(Path("frozen/small.v3/entries.csv"))  # which a board gets with its first entry
    named = {path for path in files if any(path.match(p) for p in patterns)}
    assert {p.name for p in named} >= {"runs.parquet", "records.parquet", "protocol.yaml"}
    left_out = {path for path in files if path.parent.name == "predictions"}  # they are large
    assert left_out == {*files} - named
