"""A user's pictures in a Parquet file, or in a folder of Hugging Face's `datasets`."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from oodbench.data.cells import arrow_table, table_files
from oodbench.data.images import image_metadata
from oodbench.datasets import register
from oodbench.errors import UserError, unknown
from oodbench.hparams import hparam

from .manifest import Manifest


@register("HuggingFace", image_metadata(paper="none", licence="the file's", shift="the file's"))
class HuggingFace(Manifest):
    """Pictures that a column holds, as Hugging Face's feature `Image` has them: bytes, or a path.

    The bytes become files in `.oodbench` beside the file or folder, once. A table without pictures is
    the dataset `Table`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Manifest.Options):
        """The file, what its columns mean, and how pictures are read."""

        image: str = hparam("image", neutral="image")
        """The column of pictures."""

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        columns = self.rows.columns
        if options.image not in columns:
            raise unknown("column", options.image, columns, f"{self.path} (the option `image`)")

    @property
    def image_column(self) -> str:
        """The option `image`."""
        return str(self.options.image)

    @property
    def files_read(self) -> list[Path]:
        """The file, or those of the folder."""
        return table_files(self.path)

    @cached_property
    def files(self) -> list[Path]:
        """The picture of each row; raises UserError, with the row, where there is none."""
        folder = self.root / ".oodbench" / f"pictures-{self.options.md5[:16]}"
        if not folder.is_dir():
            self._unpack(folder)
        return [
            self.root / data if isinstance(data, str) else folder / name
            for name, data in self._pictures()
        ]

    def _unpack(self, folder: Path) -> None:
        """Write the pictures into a folder, which other processes see when it is complete."""
        folder.parent.mkdir(exist_ok=True)
        unpacked = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            for name, data in self._pictures():
                if isinstance(data, bytes):
                    (unpacked / name).write_bytes(data)
            with contextlib.suppress(OSError):  # another process was faster
                unpacked.rename(folder)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)

    def _pictures(self) -> Iterator[tuple[str, bytes | str]]:
        """Yield a name for each row's picture, and its bytes or its path."""
        table, name = arrow_table(self.path), self.image_column
        for row, cell in enumerate(table[name]):
            value: Any = cell.as_py()
            found = value if isinstance(value, dict) else {"bytes": value}
            data, path = found.get("bytes"), found.get("path") or ""
            if not isinstance(data, bytes) and not path:
                raise UserError(f"{self.rows.place(row)}: '{name}' holds no picture")
            yield f"{row:08}{PurePath(path).suffix}", data if isinstance(data, bytes) else path
