"""Files of datasets from a mirror or a folder: the right ones or none."""

import gzip
import hashlib
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from oodbench.data.copies.parquet import parquet_files, rebuild
from oodbench.data.streams import progress
from oodbench.datasets import FileDataset
from oodbench.errors import UserError
from oodbench.files import is_disk_full, whole_file
from oodbench.identity import md5

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS = 60
"""The longest that a mirror is waited for."""
ABSENT = 403, 404, 410
"""The answers of mirrors for files that they do not have."""
UNREADABLE = (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile)
PIECE = 2**20
"""Bytes that are copied at once."""
ARCHIVES = ".tar.gz", ".tgz", ".zip"


def fetch(dataset: FileDataset, source: str, data_dir: Path) -> None:
    """Fetch what is missing or damaged in `data_dir` from `source`, the address of a mirror or a folder.

    Files whose md5 the dataset knows are taken under their paths or names, also with .gz. The folder of
    another dataset is unpacked from the archive of its name, whose SHA-256 is compared with that of a file
    NAME.sha256 next to it, or written from Parquet files. Raises UserError for what is missing, damaged or
    another file.
    """
    try:
        with progress("DownloadColumn") as bar:
            place = _Place(source, bar)
            for path, checksum in dataset.checksums.items():
                _fetch_file(place, path, checksum, data_dir)
            if not dataset.checksums and not place.is_address and parquet_files(Path(source)):
                if not (data_dir / dataset.metadata.folder).is_dir():
                    rebuild(dataset, Path(source), data_dir / dataset.metadata.folder)
            elif not dataset.checksums:
                _fetch_folder(place, dataset.metadata.folder, data_dir)
    except UserError as error:
        raise error.at(dataset.name) from error
    except UNREADABLE as error:
        if is_disk_full(error, data_dir):
            raise
        reason = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
        raise UserError(f"{dataset.name}: {source} cannot be read ({reason})") from error


class _Place:
    """Where files come from."""

    def __init__(self, source: str, bar: "Progress") -> None:
        self.source, self._bar = source, bar
        self.is_address = source.startswith(("http://", "https://"))
        if not self.is_address and not Path(source).is_dir():
            raise UserError(f"{source} is no folder and no address of a mirror (https://...)")

    @contextmanager
    def opened(self, names: tuple[str, ...]) -> Iterator[tuple[str, IO[bytes]]]:
        for name in names:
            if (stream := self._open(name)) is not None:
                with stream, self._bar.wrap_file(stream, _length(stream), description=name) as read:
                    yield name, read
                return
        raise UserError(f"{self.source} has no {names[0]}, nor {', '.join(names[1:])}")

    def text(self, name: str) -> str:
        stream = self._open(name)
        if stream is None:
            return ""
        with stream:
            content: bytes = stream.read()
        return content.decode(errors="replace")

    def _open(self, name: str) -> Any:
        if not self.is_address:
            file = Path(self.source) / name
            return file.open("rb") if file.is_file() else None
        try:
            return urlopen(f"{self.source.rstrip('/')}/{quote(name)}", timeout=SECONDS)
        except HTTPError as error:
            if error.code in ABSENT:
                return None
            raise


def _length(stream: Any) -> int:
    """Bytes of a file or of a mirror's answer; 0 where it does not say."""
    if hasattr(stream, "headers"):
        return int(stream.headers.get("Content-Length") or 0)
    return Path(stream.name).stat().st_size


def _fetch_file(place: _Place, path: str, checksum: str, data_dir: Path) -> None:
    target = data_dir / path
    if target.is_file() and md5(target) == checksum:
        return
    names = tuple(dict.fromkeys((path, target.name, f"{path}.gz", f"{target.name}.gz")))
    with place.opened(names) as (name, read):
        unpacked: Any = gzip.GzipFile(fileobj=read) if name.endswith(".gz") else read
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as file:
            digest = _copied(unpacked, file, hashlib.md5(usedforsecurity=False))
            if digest != checksum:
                what = f"{name} of {place.source} is another file"
                raise UserError(f"{what}: its md5 is {digest}, not {checksum}")


def _copied(source: IO[bytes], target: IO[bytes], digest: Any) -> str:
    while piece := source.read(PIECE):
        digest.update(piece)
        target.write(piece)
    return str(digest.hexdigest())


def _fetch_folder(place: _Place, folder: str, data_dir: Path) -> None:
    from oodbench.terminal import terminal

    target = data_dir / folder
    if target.is_dir():
        return
    names = tuple(folder + suffix for suffix in ARCHIVES)
    with place.opened(names) as (name, read):
        data_dir.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=data_dir, prefix=".") as made:
            archive, unpacked = Path(made) / Path(name).name, Path(made) / "unpacked"
            with archive.open("wb") as file:
                digest = _copied(read, file, hashlib.sha256())
            wanted = place.text(f"{name}.sha256").lower().split()[:1]
            if wanted and wanted[0] != digest:
                what = f"{name} of {place.source} is damaged"
                raise UserError(f"{what}: its SHA-256 is {digest}, not {wanted[0]}")
            state = "as its .sha256 says" if wanted else f"with no {name}.sha256 to compare it with"
            terminal().say(f"{name} has the SHA-256 {digest}, {state}")
            _unpack(archive, unpacked)
            inner = unpacked / target.name  # where the archive holds the folder, not what is in it
            target.parent.mkdir(exist_ok=True)
            (inner if [*unpacked.iterdir()] == [inner] else unpacked).rename(target)


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix == ".zip":
        shutil.unpack_archive(archive, folder)
    else:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(folder, filter="data")
