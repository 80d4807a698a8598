"""Packages as an installer leaves them behind."""

from pathlib import Path


def installed(folder: Path, group: str, module: str) -> None:
    """Make `folder` hold what is left of a package whose entry point in a group of ours is `module`."""
    information = folder / f"{module}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[oodbench.{group}]\n{module} = {module}\n")
