"""A user's pictures in a Parquet file, or in a folder of Hugging Face's `datasets`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

import pyarrow as pa
import pyarrow.compute as pc

from oodbench.data.pictures.folders import image_metadata
from oodbench.data.tables.typed import arrow_table, table_files
from oodbench.datasets import register
from oodbench.errors import UserError, unknown
from oodbench.files import whole_folder
from oodbench.hparams import hparam

from .manifest import Manifest


@register("HuggingFace", image_metadata(paper="none", licence="the file's", shift="the file's"))
class HuggingFace(Manifest):
    """Pictures in a column of Hugging Face's feature `Image`: bytes, or a path.

    The bytes become files in `.oodbench` next to the file or folder, once. A table without pictures is
    the dataset `Table`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Manifest.Options):
        """The file, what its columns mean, and how pictures are read."""

        image: str = hparam("image", neutral="image")
        """The column of pictures."""

    @property
    def image_column(self) -> str:
        """The option `image`; raises UserError if the file has no such column."""
        name, columns = str(self.options.image), self.rows.columns
        if name not in columns:
            raise unknown("column", name, columns, f"{self.path} (the option `image`)")
        return name

    @property
    def files_read(self) -> list[Path]:
        """The file, or those of the folder."""
        return table_files(self.path)

    @cached_property
    def files(self) -> list[Path]:
        """The file of each row's picture; raises UserError, with the row, for a row without a picture."""
        data, paths = self._pictures()
        held = pc.is_valid(data).to_pylist()
        names = [f"{row:08}{PurePath(path).suffix}" for row, path in enumerate(paths)]
        for row, (is_held, path) in enumerate(zip(held, paths, strict=True)):
            if not is_held and not path:
                kind = f"{arrow_table(self.path)[self.image_column].type}"[:60]
                has_others = any(held) or any(paths)
                what = (
                    "is empty: leave the row out" if has_others else f"holds no picture, but {kind}"
                )
                raise UserError(f"{self.rows.place(row)}: '{self.image_column}' {what}")
        folder = self.root / ".oodbench" / f"pictures-{self.options.md5[:16]}"
        if not folder.is_dir():
            folder.parent.mkdir(exist_ok=True)
            with whole_folder(folder, durable=False) as unpacked:
                for name, picture in zip(names, data, strict=True):
                    if picture.is_valid:
                        (unpacked / name).write_bytes(picture.as_py())
        each = zip(held, names, paths, strict=True)
        files = [folder / name if is_held else self.root / path for is_held, name, path in each]
        for row, file in enumerate(files):
            if not file.is_file():
                hint = "save the dataset with the pictures' bytes (`embed_external_files`)"
                raise UserError(f"{self.rows.place(row)}: there is no picture {file}: {hint}")
        return files

    def _pictures(self) -> tuple[pa.ChunkedArray, list[str]]:
        """The bytes of each row's picture, or null, and its path, or an empty text."""
        column = arrow_table(self.path)[self.image_column]
        if pa.types.is_struct(column.type):
            names = {field.name for field in column.type}
            paths = pc.struct_field(column, "path").to_pylist() if "path" in names else []
            data = pc.struct_field(column, "bytes") if "bytes" in names else None
        else:
            paths, data = [], column
        if data is None or data.type not in (pa.binary(), pa.large_binary()):
            data = pa.chunked_array([pa.nulls(len(column), pa.binary())])
        return data, [path or "" for path in paths] or [""] * len(column)
