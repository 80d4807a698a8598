"""Where algorithms/, datasets/ and sweeps/ lie: beside the package in a checkout, inside it in a wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The folder `name` of the project, in a checkout and in an installed wheel alike."""
    checkout = _PACKAGE.parent
    return (checkout if (checkout / "pyproject.toml").is_file() else _PACKAGE) / name
