"""A submission: the rows of an author's method in one file, to be verified and added to a board.

NAME.zip has `submission.json` (see `oodbench.board.entries.About`), the method's file under method/ and, as
on a board, the parts of its rows under parts/. The SHA-256 of every file stands in `submission.json`.
"""

import inspect
import platform
import shutil
import stat
import zlib
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version as installed
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from oodbench.algorithms import algorithms
from oodbench.board.checks import LARGEST, refuse, too_large, wrong_rows
from oodbench.board.entries import (
    ABOUT,
    METHOD,
    RECEIPT,
    About,
    Entry,
    entry_of,
    read_receipt,
    receipt_file,
    sha256,
)
from oodbench.board.files import ENTRIES, PROTOCOL_FILE, alone, dataset_file, find_board, part_files
from oodbench.board.freeze import parts_of
from oodbench.board.parts import Part, known_parts, read_parts, write_parts
from oodbench.board.protocol import label_of, protocol_of
from oodbench.board.summary import write_summary
from oodbench.errors import UserError
from oodbench.files import whole_file, whole_folder
from oodbench.results.provenance import code
from oodbench.results.schemas import parse_json
from oodbench.version import __version__

UNPACKED = 2 * LARGEST
"""The most bytes that the files of a submission may have."""


class Submission:
    """A submission that has been unpacked into a folder, and whose files are those that it names."""

    def __init__(self, folder: Path, about: About) -> None:
        self.folder, self.about = folder, about

    @property
    def parts(self) -> list[Part]:
        """The parts of its rows."""
        return read_parts(self.folder)

    @property
    def method_file(self) -> Path:
        """The file that defines the method."""
        (file,) = (self.folder / METHOD).iterdir()
        return file


def submit(
    results: Path, board: Path, out: Path, author: str, pretraining: str, data_dir: Path | None
) -> About:
    """Write a submission of those rows of a results directory that the board does not have.

    Raises UserError as `freeze` does, if there is no such row, and for rows of several methods.
    """
    frozen = {(part.dataset, part.label) for part in known_parts(board)}
    made = parts_of(results, board, data_dir)
    parts = [part for part in made if (part.dataset, part.label) not in frozen]
    methods = sorted({str(part.about.spec["algorithm"]) for part in parts})
    if not methods:
        raise UserError(f"{results} has no row that the board {board.name} has not")
    if len(methods) > 1:
        raise UserError(f"{results} has rows of {', '.join(methods)}: submit one method at a time")
    source = inspect.getsourcefile(algorithms.get(methods[0]))
    assert source is not None
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for dataset in dict.fromkeys(part.dataset for part in parts):
            of_dataset = [part for part in parts if part.dataset == dataset]
            write_parts(of_dataset, dataset_file(folder, dataset))
        (folder / METHOD).mkdir()
        shutil.copy(source, folder / METHOD)
        about = About(
            board=board.name,
            protocol=sha256(board / PROTOCOL_FILE),
            rows=list(dict.fromkeys(part.label for part in parts)),
            algorithm=methods[0],
            author=author,
            day=date.today().isoformat(),
            paper=algorithms.papers.get(methods[0], ""),
            pretraining=pretraining,
            versions=_versions(parts),
            files={str(file.relative_to(folder)): sha256(file) for file in _files(folder)},
        )
        refuse(wrong_parts(Submission(folder, about), board), f"{results} cannot be submitted")
        (folder / ABOUT).write_text(about.model_dump_json(indent=1))
        _pack(folder, out)
    return about


def _versions(parts: Sequence[Part]) -> dict[str, str]:
    made = dict(parts[0].about.provenance)
    known = {"oodbench": code(made), "python": platform.python_version()}
    known |= {"torch": str(made.get("torch", installed("torch")))}
    return known | {"machine": str(made.get("machine", "unknown"))}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _pack(folder: Path, out: Path) -> None:
    with whole_file(out) as stream, ZipFile(stream, "w", ZIP_DEFLATED) as archive:
        for file in _files(folder):
            archive.write(file, str(file.relative_to(folder)))


def unpack(archive: Path, folder: Path) -> Submission:
    """Unpack a submission into an empty folder, and compare its files with the digests that it names.

    Raises UserError for a file that is no submission, or with other files than those it names.
    """
    try:
        with ZipFile(archive) as packed:
            members = packed.infolist()
            if ABOUT not in packed.namelist():
                raise UserError(f"{archive} is no submission: it has no {ABOUT}")
            if sum(member.file_size for member in members) > UNPACKED:
                raise UserError(f"{archive} unpacks to more than {UNPACKED >> 20} MB")
            about = parse_json(packed.read(ABOUT), About, f"{ABOUT} of {archive}")
            names = [member.filename for member in members if member.filename != ABOUT]
            strange = sorted({*names} ^ {*about.files} | {n for n in names if not _is_allowed(n)})
            if strange or len(names) != len({*names}):
                raise UserError(
                    f"{archive} has other files than it names: {', '.join(strange) or 'one twice'}"
                )
            if any(m.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for m in members):
                raise UserError(f"{archive} is compressed otherwise than `board submit` does")
            if any(stat.S_ISLNK(member.external_attr >> 16) for member in members):
                raise UserError(f"{archive} has links")
            packed.extractall(folder)
    except (BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise UserError(f"{archive} is no zip file, an encrypted or a torn one") from error
    for name, digest in about.files.items():
        if sha256(folder / name) != digest:
            raise UserError(f"{archive}: {name} is not the file that was submitted")
    if sum(name.startswith(f"{METHOD}/") for name in names) != 1:
        raise UserError(f"{archive} must have one file of a method")
    return Submission(folder, about)


def inspected(archive: Path, board: str | None) -> About:
    """Check a submission without running its code, and return its statement; raises UserError as `unpack`.

    It is compared with `board`, by default with the board that it names.
    """
    with TemporaryDirectory() as scratch:
        submission = unpack(archive, Path(scratch))
        wrong = wrong_parts(submission, find_board(board or submission.about.board))
        refuse(wrong, f"{archive} is refused")
        return submission.about


def _is_allowed(name: str) -> bool:
    """Whether a file may stand in a submission: a part, or the file of a method."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or str(path) != name or name == ".":
        return False
    first, *rest = path.parts
    ends = {"parts": ".parquet", METHOD: ".py"}
    return first in ends and len(rest) == 1 and path.suffix == ends[first]


def wrong_parts(submission: Submission, board: Path) -> list[str]:
    """Why a submission cannot stand on a board, a sentence each, as far as can be told without its code."""
    about, parts = submission.about, submission.parts
    if about.protocol != sha256(board / PROTOCOL_FILE):
        return [f"it is of another protocol than that of the board {board.name}"]
    labels = sorted({part.label for part in parts})
    methods = {str(part.about.spec["algorithm"]) for part in parts}
    if labels != sorted(about.rows) or methods != {about.algorithm}:
        return ["its parts are not of the rows and the method that it names"]
    if not about.author.strip() or not about.pretraining.strip():
        return ["it names no author, or says nothing on pretraining"]
    protocol, known = protocol_of(board), known_parts(board)
    there = {part.label for part in known} | {label_of(row) for row in protocol.algorithms}
    if taken := sorted(there.intersection(labels)):
        return [f"the board has a row {', '.join(taken)} already: a row never changes"]
    provenances = [dict(part.about.provenance) for part in parts]
    versions = sorted({str(made.get("oodbench")) for made in provenances} - {__version__})
    if versions:
        return [f"it was trained by oodbench {', '.join(versions)}, and this is {__version__}"]
    files = list(part_files(submission.folder))
    if {*files} != {dataset_file(submission.folder, part.dataset) for part in parts}:
        return ["its files do not have the names of the datasets of their parts"]
    return [*wrong_rows(parts, known, protocol), *too_large([*part_files(board), *files])]


def add(archive: Path, board: Path) -> Entry:
    """Add the rows of a submission to a board, as verified if its receipt stands beside it.

    Raises UserError for a submission that cannot stand on the board.
    """
    with TemporaryDirectory() as scratch:
        submission = unpack(archive, Path(scratch))
        receipt = read_receipt(archive)
        place = board / ENTRIES / submission.about.algorithm
        with alone(board):
            if place.exists():
                write_summary(board)  # which an `add` that was killed has not written
                raise UserError(f"{place} is there already: a method enters a board once")
            refuse(wrong_parts(submission, board), f"{archive} is refused")
            place.parent.mkdir(exist_ok=True)
            with whole_folder(place) as folder:
                shutil.copytree(submission.folder, folder, dirs_exist_ok=True)
                if receipt:
                    shutil.copy(receipt_file(archive), folder / RECEIPT)
            try:
                write_summary(board)
            except BaseException:
                shutil.rmtree(place)
                raise
    return entry_of(submission.about, receipt)
