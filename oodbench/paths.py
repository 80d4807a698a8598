"""Files: the folders beside the package in a checkout and inside it in a wheel, and checksums."""

import gzip
import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The folder `name` of the project, in a checkout and in an installed wheel alike."""
    checkout = _PACKAGE.parent
    return (checkout if (checkout / "pyproject.toml").is_file() else _PACKAGE) / name


def md5(file: Path) -> str:
    """The md5 of a file, as `Metadata.checksums` holds it: of what a .gz file unpacks to."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()
