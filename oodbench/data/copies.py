"""The files of a dataset from a mirror, a folder or a Parquet copy, with checks."""

import gzip
import json
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

from oodbench.data.pictures.pixels import ENDINGS
from oodbench.data.pictures.published import Suite
from oodbench.data.streams import progress
from oodbench.data.tables.typed import check_shards
from oodbench.datasets import FileDataset
from oodbench.errors import UserError
from oodbench.files import is_disk_full, require_data, whole_file, whole_folder
from oodbench.identity import md5, sha256

if TYPE_CHECKING:
    import pandas as pd
    from rich.progress import Progress

SECONDS = 60
"""The timeout of a request to a mirror, in seconds."""
ABSENT = 403, 404, 410
"""HTTP statuses for a file that a mirror does not have."""
UNREADABLE = (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile)
ARCHIVES = ".tar.gz", ".tgz", ".zip"
BATCH = 1024
"""The rows of a Parquet copy that are in memory at a time."""
SUMS = "SHA256SUMS"
"""The file with the checksums of a copy, in the format of `sha256sum`."""
ORDER = ("image_id", "id", "Unnamed: 0", "__index_level_0__", "filename")
"""Columns that may number the rows; a copy is sorted by the first of them that it has."""


def fetch(dataset: FileDataset, source: str, data_dir: Path) -> None:
    """Fetch what is missing or damaged in `data_dir` from `source`, a folder or the address of a mirror.

    Files with a known md5 may be there under their path or name, with or without .gz. A dataset that is a
    folder is unpacked from an archive, which must match the file ARCHIVE.sha256 if there is one, or it is
    rebuilt from Parquet files. Raises UserError for a missing, damaged or different file.
    """
    is_address = source.startswith(("http://", "https://"))
    folder = data_dir / dataset.metadata.folder
    try:
        if not is_address and not Path(source).is_dir():
            raise UserError(f"{source} is neither a folder nor a mirror's address (https://...)")
        with progress("DownloadColumn") as bar:
            mirror = _Mirror(source, source if is_address else Path(source).resolve().as_uri(), bar)
            for path, checksum in dataset.checksums.items():
                _fetch_file(mirror, path, checksum, data_dir)
            if dataset.checksums or folder.is_dir():
                return
            shards = [] if is_address else sorted(Path(source).rglob("*.parquet"))
            if labeled := [file for file in shards if "unlabeled" not in file.name]:
                _rebuild(dataset, Path(source), labeled, folder)
            else:
                _fetch_folder(mirror, dataset.metadata.folder, folder)
    except UserError as error:
        raise error.at(dataset.name) from error
    except UNREADABLE as error:
        if is_disk_full(error, data_dir):
            raise
        reason = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
        raise UserError(f"{dataset.name}: {source} cannot be read ({reason})") from error


@dataclass(frozen=True)
class _Mirror:
    source: str
    """The address or folder as the user wrote it."""
    address: str
    bar: "Progress"

    @contextmanager
    def opened(self, *names: str) -> Iterator[tuple[str, IO[bytes]]]:
        """The first of the files `names` that exists: its name, and its content as a stream."""
        for name in names:
            if (stream := self._open(name)) is not None:
                size = int(stream.headers.get("Content-Length") or 0)
                with stream, self.bar.wrap_file(stream, size, description=name) as read:
                    yield name, read
                return
        raise UserError(f"{self.source} has no {names[0]}, nor {', '.join(names[1:])}")

    def text(self, name: str) -> str:
        """The content of a file; empty for a missing file."""
        return str(stream.read().decode(errors="replace")) if (stream := self._open(name)) else ""

    def _open(self, name: str) -> Any:
        try:
            return urlopen(f"{self.address.rstrip('/')}/{quote(name)}", timeout=SECONDS)
        except HTTPError as error:
            if error.code in ABSENT:
                return None
            raise
        except URLError as error:
            if isinstance(error.reason, FileNotFoundError | NotADirectoryError):
                return None
            raise


def _fetch_file(mirror: _Mirror, path: str, checksum: str, data_dir: Path) -> None:
    target = data_dir / path
    if target.is_file() and md5(target) == checksum:
        return
    names = dict.fromkeys((path, target.name, f"{path}.gz", f"{target.name}.gz"))
    with mirror.opened(*names) as (name, read):
        unpacked: Any = gzip.GzipFile(fileobj=read) if name.endswith(".gz") else read
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as file:
            shutil.copyfileobj(unpacked, file)
            file.flush()
            if (digest := md5(file.name)) != checksum:
                what = f"{name} of {mirror.source} is another file"
                raise UserError(f"{what}: its md5 is {digest}, not {checksum}")


def _fetch_folder(mirror: _Mirror, folder: str, target: Path) -> None:
    from oodbench.terminal import terminal

    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        mirror.opened(*(folder + ending for ending in ARCHIVES)) as (name, read),
        TemporaryDirectory(dir=target.parent, prefix=".") as made,
    ):
        archive, unpacked = Path(made) / Path(name).name, Path(made) / "unpacked"
        with archive.open("wb") as file:
            shutil.copyfileobj(read, file)
        digest = sha256(archive)
        wanted = mirror.text(f"{name}.sha256").lower().split()[:1]
        if wanted and wanted[0] != digest:
            what = f"{name} of {mirror.source} is damaged"
            raise UserError(f"{what}: its SHA-256 is {digest}, not {wanted[0]}")
        state = "as its .sha256 says" if wanted else f"with no {name}.sha256 to compare it with"
        terminal().say(f"{name} has the SHA-256 {digest}, {state}")
        safely: dict[str, Any] = {} if archive.suffix == ".zip" else {"filter": "data"}
        shutil.unpack_archive(archive, unpacked, **safely)
        inner = unpacked / target.name  # if the archive holds the folder itself
        (inner if [*unpacked.iterdir()] == [inner] else unpacked).rename(target)


@dataclass(frozen=True)
class Layout:
    """The files of a dataset on disk, and the columns of its Parquet copies."""

    tables: tuple[str, ...]
    """The names of the tables to write, all with the same rows."""
    columns: tuple[str, ...]
    """The required columns."""
    splits: dict[str, object]
    """The value of `split` in a copy without that column, by how the name of a file or folder begins."""
    other: object = None
    """The value of `split` in files with other names; None leaves these files out."""
    names: dict[str, str] = field(default_factory=dict)
    """Our names of columns, by other names in copies."""
    picture: str = ""
    """A template for the path of a picture; its fields are columns, and `filename` in the copy."""
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """The functions that convert values of columns; class labels come as names if the file has them."""
    also: dict[str, str] = field(default_factory=dict)
    """Our names of columns, by their names in the tables to write."""
    published: tuple[int, ...] = ()
    """The number of examples in each split."""


def _one_of(*names: str) -> Callable[[Any], int]:
    """A function that maps two names, false and true, or -1 and 1, to 0 and 1."""
    known = dict(zip((*names, "false", "true", "0", "1", "-1"), (0, 1, 0, 1, 0, 1, 0), strict=True))

    def number(value: object) -> int:
        if (text := re.sub(r"[\s_]", "", str(value).lower())) not in known:
            raise ValueError(f"{value!r} is neither {names[0]} nor {names[1]}")
        return known[text]

    return number


SPLITS: dict[str, object] = {"train": 0, "val": 1, "test": 2}
GROUPS = partial(Layout, columns=("y", "a"), splits=SPLITS)
BIRDS: dict[str, Any] = {
    "names": {"label": "y", "place": "a", "background": "a"},
    "values": {"y": _one_of("landbird", "waterbird"), "a": _one_of("land", "water")},
    "published": (4795, 1199, 5794),
}
FACES: dict[str, Any] = {
    "names": {"Blond_Hair": "y", "label": "y", "Male": "a"},
    "values": {"y": _one_of("notblond", "blond"), "a": _one_of("female", "male")},
    "picture": "img_align_celeba/{filename}",
    "published": (162770, 19867, 19962),
}
LAYOUTS = {
    "Camelyon17": Layout(
        ("metadata.csv",),
        ("patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split"),
        {"id_val": 1},
        0,
        {"label": "tumor"},
        "patches/patient_{patient}_node_{node}/"
        "patch_patient_{patient}_node_{node}_x_{x_coord}_y_{y_coord}.png",
        # only numbers, as they become parts of paths
        {"patient": lambda n: f"{int(n):03d}", "node": int, "x_coord": int, "y_coord": int},
    ),
    "CivilComments": Layout(
        ("all_data_with_identities.csv",),
        ("comment_text", "toxicity", "split"),
        {"train": "train", "val": "val", "test": "test"},
        names={"text": "comment_text"},
    ),
    "Waterbirds": GROUPS(
        ("metadata.csv",),
        picture="{filename}",
        also={"img_filename": "filename", "place": "a"},
        **BIRDS,
    ),
    "SubpopWaterbirds": GROUPS(
        ("metadata_waterbirds.csv",),
        picture="waterbird_complete95_forest2water2/{filename}",
        **BIRDS,
    ),
    "CelebA": GROUPS(
        ("list_attr_celeba.csv", "list_eval_partition.csv"),
        also={"Blond_Hair": "y", "Male": "a", "partition": "split", "image_id": "filename"},
        **FACES,
    ),
    "SubpopCelebA": GROUPS(("metadata_celeba.csv",), **FACES),
}


def _suite(suite: Suite) -> Layout:
    names = {"img": "image", "picture": "image"}
    names |= dict.fromkeys(("environment", "env", "style", "location", "source"), "domain")
    names |= dict.fromkeys(("labels", "class", "class_name", "category"), "label")
    values: dict[str, Callable[[Any], Any]]
    values = {"domain": partial(_folder, suite), "label": _class_name}
    return Layout((), tuple(values), {}, 0, names, "{domain}/{label}/{filename}", values)


def _class_name(label: object) -> str:
    if not isinstance(label, str) or not re.fullmatch(r"\w[^/\\:\0]*", label):
        raise ValueError(
            f"{label!r} is not the name of a class, and the file's metadata have none for it"
        )
    return label


def _folder(suite: Suite, texts: str) -> str:
    """The folder of the environment that some part of a path names, in full or by its beginning."""
    known = {place.folder: re.sub(r"[\W_]", "", place.folder.lower()) for place in suite.places}
    short = {place.folder: place.environment.lower() for place in suite.places}
    for text in str(texts).lower().replace("pascal", "voc").replace("vocvoc", "voc").split("/"):
        given = re.sub(r"-\d{5}-of.*|\.parquet|[\W_]", "", text)
        exact = [f for f, n in known.items() if given in (n, short[f], n.removeprefix("location"))]
        begun = [f for f, n in known.items() if len(given) > 2 and n.startswith(given)]
        if len(found := exact or begun) == 1:
            return found[0]
    raise ValueError(f"'{texts}' is not one of {', '.join(known)}")


def _rebuild(dataset: FileDataset, source: Path, files: Sequence[Path], target: Path) -> None:
    """Write the folder of a dataset from a Parquet copy, with rows sorted by their numbers, if any.

    Raises UserError for a dataset without a `Layout`, a file that is missing or differs from SHA256SUMS, a
    missing column, and another number of pictures than the published one.
    """
    import pandas as pd

    layout = _suite(dataset) if isinstance(dataset, Suite) else LAYOUTS.get(dataset.name)
    if layout is None:
        raise UserError("a Parquet copy of this dataset cannot be read; get its archive")
    check_shards(files)
    if (source / SUMS).is_file():
        lines = re.findall(r"^([0-9a-f]{64}) [ *](.+)$", (source / SUMS).read_text(), re.MULTILINE)
        for file in files:
            if (sha256(file), str(file.relative_to(source))) not in lines:
                digest = f"its SHA-256 is {sha256(file)}, not that in {SUMS}"
                raise UserError(f"{file} is damaged: {digest}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(target, durable=False) as folder:
        parts = [part for file in files for part in _parts(file, source, layout, folder)]
        if not parts:
            raise UserError(f"no file of {source} has a labeled split")
        rows = pd.concat(parts, ignore_index=True)
        if isinstance(dataset, Suite):
            _check_classes(dataset, rows, source, folder)
        for split, published in enumerate(layout.published):
            if (found := (rows["split"] == split).sum()) != published:
                what = f"{found} images in {[*SPLITS][split]}"
                raise UserError(f"{source} holds {what}, not the published {published}")
        if number := next((key for key in ORDER if key in rows), None):
            rows = rows.sort_values(number, kind="stable", ignore_index=True)
        if layout.published:
            rows = rows[["filename", "split", "y", "a"]]
        rows = rows.rename(columns={ours: name for name, ours in layout.also.items()})
        for table in layout.tables:
            rows.to_csv(folder / table)
        if "_v" in target.name:
            (folder / f"RELEASE_{target.name.rpartition('_')[2]}.txt").touch()


def _check_classes(suite: Suite, rows: "pd.DataFrame", source: Path, folder: Path) -> None:
    classes = sorted(set(rows["label"]))
    if len(classes) != suite.num_classes:
        raise UserError(f"{source} holds {len(classes)} classes, not {suite.num_classes}")
    for place in suite.places:
        labels = rows["label"][rows["domain"] == place.folder].map(classes.index).tolist()
        suite.require_published(place.images, labels, f"{source}, {place.folder},")
        for name in classes:
            (folder / place.folder / name).mkdir(parents=True, exist_ok=True)
    suite.require_published(suite.total, rows["label"].map(classes.index).tolist(), str(source))


def _parts(file: Path, source: Path, layout: Layout, folder: Path) -> "Iterator[pd.DataFrame]":
    from pyarrow.parquet import ParquetFile

    path = file.relative_to(source).parts
    starts = (v for start, v in layout.splits.items() if any(p.startswith(start) for p in path))
    split = next(starts, layout.other)
    require_data(file)
    try:
        parquet = ParquetFile(file)
    except ValueError as error:
        raise UserError(f"{file} is cut off or not a Parquet file: download it again") from error
    about = json.loads((parquet.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
    classes = {k: f.get("names") for k, f in about.get("info", {}).get("features", {}).items()}
    count = 0
    for batch in parquet.iter_batches(BATCH):
        rows = batch.to_pandas()
        for theirs, ours in layout.names.items():
            if ours not in rows and theirs in rows:
                rows, classes[ours] = rows.rename(columns={theirs: ours}), classes.get(theirs)
        if "split" not in rows:
            if split is None:
                return
            rows["split"] = split
        if layout.picture.startswith("{domain}") and "domain" not in rows:
            rows["domain"] = "/".join(reversed(path))
        wanted = [*layout.columns, *(["image"] if layout.picture else [])]
        if lacking := [column for column in wanted if column not in rows]:
            raise UserError(f"{file} has no column '{lacking[0]}'")
        for column, read in layout.values.items():
            names = dict(enumerate(classes.get(column) or ()))
            try:
                rows[column] = [read(names.get(value, value)) for value in rows[column]]
            except (TypeError, ValueError, KeyError) as error:
                raise UserError(f"{file}: '{column}' cannot be read ({error})") from error
        if layout.picture:
            pictures, records = rows.pop("image"), rows.to_dict("records")
            numbers = [f"{'-'.join(path)[:-8]}-{count + i:07}" for i in range(len(rows))]
            count += len(rows)
            saved = partial(_saved, file, folder, layout.picture)
            rows["filename"] = [*map(saved, pictures, records, numbers)]
        yield rows


def _saved(
    file: Path, folder: Path, template: str, picture: Any, row: dict[str, Any], number: str
) -> str:
    known = picture if isinstance(picture, dict) else {"bytes": picture}
    data = known.get("bytes")
    if not isinstance(data, bytes):
        raise UserError(f"{file} has a row without bytes of a picture")
    name = PureWindowsPath(known.get("path") or "").name
    path = folder / template.format_map(row | {"filename": name})
    is_named = Path(name).suffix.lower() in ENDINGS and re.fullmatch(r"\w[^:\0]*", name)
    if "{filename}" in template and (not is_named or path.exists()):
        name = f"{number}.{'png' if data[1:4] == b'PNG' else 'jpg'}"
        path = folder / template.format_map(row | {"filename": name})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return name
