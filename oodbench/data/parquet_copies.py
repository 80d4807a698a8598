"""Sets of WILDS from Parquet copies, as people keep them on Hugging Face's hub."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from oodbench.errors import UserError
from oodbench.identity import sha256

BATCH = 1024
"""The rows that are held in memory at once."""
SUMS = "SHA256SUMS"
"""The file of a copy that has the checksums of the others, a line each, as `sha256sum` writes it."""
ORDER = ("image_id", "id", "Unnamed: 0", "__index_level_0__")
"""The columns that may number the rows of the package's table."""


@dataclass(frozen=True)
class Layout:
    """How a set of the package lies on disk."""

    table: str
    """The name of its table."""
    columns: tuple[str, ...]
    """The columns without which the package cannot read the table."""
    splits: dict[str, object]
    """What `split` is in files whose names begin so, where a copy has no such column."""
    other: object = None
    """What `split` is in all other files; None: they are left out."""
    names: dict[str, str] = field(default_factory=dict)
    """Other names that a copy may have for columns."""
    picture: str = ""
    """The path of a row's picture, by its columns."""


LAYOUTS = {
    "Camelyon17": Layout(
        "metadata.csv",
        ("patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split"),
        {"id_val": 1},
        0,
        {"label": "tumor"},
        "patches/patient_{patient}_node_{node}/"
        "patch_patient_{patient}_node_{node}_x_{x_coord}_y_{y_coord}.png",
    ),
    "CivilComments": Layout(
        "all_data_with_identities.csv",
        ("comment_text", "toxicity", "split"),
        {"train": "train", "val": "val", "test": "test"},
        names={"text": "comment_text"},
    ),
}


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files in a folder and its folders, but for those of unlabeled examples."""
    files = sorted(folder.rglob("*.parquet"))
    return [file for file in files if "unlabeled" not in file.name]


def rebuild(name: str, source: Path, target: Path) -> None:
    """Write the folder of a set from a Parquet copy, with its rows in the order of their numbers, if any.

    Raises UserError for another set, a file that is missing or not that of SHA256SUMS, and a column that is
    missing.
    """
    layout = LAYOUTS.get(name)
    if layout is None:
        raise UserError(f"only {' and '.join(LAYOUTS)} are read from Parquet; get its archive")
    files = parquet_files(source)
    _check_shards(files)
    _confirm(source, files)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".") as made:
        folder = Path(made) / "set"
        folder.mkdir()
        parts = [part for file in files for part in _parts(file, layout, folder)]
        if not parts:
            raise UserError(f"no file of {source} holds a labeled split of it")
        rows = pd.concat(parts, ignore_index=True)
        if number := next((key for key in ORDER if key in rows), None):
            rows = rows.sort_values(number, kind="stable", ignore_index=True)
        rows.to_csv(folder / layout.table)
        version = target.name.rpartition("_")[2]
        (folder / f"RELEASE_{version}.txt").touch()
        folder.rename(target)


def _check_shards(files: Sequence[Path]) -> None:
    shards: dict[tuple[Path, int], set[int]] = {}
    for file in files:
        if match := re.match(r"(.+)-(\d{5})-of-(\d{5})\b", file.name):
            shards.setdefault((file.parent / match[1], int(match[3])), set()).add(int(match[2]))
    for (start, count), found in shards.items():
        if missing := sorted({*range(count)} - found):
            raise UserError(f"{start}-{missing[0]:05}-of-{count:05}.parquet is missing")


def _confirm(source: Path, files: Sequence[Path]) -> None:
    if not (source / SUMS).is_file():
        return
    lines = re.findall(r"^([0-9a-f]{64}) [ *](.+)$", (source / SUMS).read_text(), re.MULTILINE)
    wanted = {name: digest for digest, name in lines}
    for file in files:
        if wanted.get(str(file.relative_to(source))) != sha256(file):
            raise UserError(f"{file} is damaged: its SHA-256 is {sha256(file)}, not that in {SUMS}")


def _parts(file: Path, layout: Layout, folder: Path) -> Iterator[pd.DataFrame]:
    from pyarrow.parquet import ParquetFile

    starts = (value for start, value in layout.splits.items() if file.name.startswith(start))
    split = next(starts, layout.other)
    for batch in ParquetFile(file).iter_batches(BATCH):
        rows = batch.to_pandas().rename(columns=layout.names)
        if "split" not in rows:
            if split is None:
                return
            rows["split"] = split
        wanted = [*layout.columns, *(["image"] if layout.picture else [])]
        if lacking := [column for column in wanted if column not in rows]:
            raise UserError(f"{file} has no column '{lacking[0]}'")
        if layout.picture:
            pictures = rows.pop("image")
            try:  # numbers alone, as they become paths
                numbers = rows[["patient", "node", "x_coord", "y_coord"]].astype("int64")
                data = [bytes(picture["bytes"]) for picture in pictures]
            except (TypeError, ValueError, KeyError) as error:
                raise UserError(
                    f"{file} has a row without numbers or bytes of a picture"
                ) from error
            rows[numbers.columns] = numbers
            rows["patient"] = [f"{patient:03d}" for patient in numbers["patient"]]
            for row, content in zip(rows.to_dict("records"), data, strict=True):
                path = folder / layout.picture.format_map(row)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        yield rows
