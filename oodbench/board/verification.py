"""Verify a submission: train random runs of it again, and compare them with what it says."""

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc

from oodbench.arithmetic import variables
from oodbench.board.beside import board_frames
from oodbench.board.checks import refuse
from oodbench.board.differences import Agreement, compared, named, outcome
from oodbench.board.entries import Receipt, receipt_file, sha256
from oodbench.board.files import PROTOCOL_FILE
from oodbench.board.freeze import made_of
from oodbench.board.parts import Part
from oodbench.board.rerun import Runs, changed_data, runs_of
from oodbench.board.submission import Submission, unpack, wrong_parts
from oodbench.board.untrusted import Task
from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.registry import checkout
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames, subset
from oodbench.results.provenance import code, commit, method_digest
from oodbench.selection import choose
from oodbench.version import __version__

KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "OMP_NUM_THREADS", "LD_LIBRARY_PATH")
"""The environment variables that a stranger's code sees."""


def verify(
    archive: Path,
    board: Path,
    verifier: str,
    count: int = 20,
    seed: int | None = None,
    data_dir: Path | None = None,
    workers: int | None = None,
) -> Receipt:
    """Train random runs of a submission again, and write the receipt beside it if all are equal.

    The first runs are among those that a table shows: one of each dataset, then one of each row of each
    dataset. The others, as far as `count` goes, are any.
    The method's file runs in a process of its own, in an empty folder, with none of the environment
    variables of this one but `KEPT`; it is given specs and no number of the submission. This
    guards against accidents but is no sandbox: the file may read what the user may. Raises UserError with
    the reason for a submission that is refused.
    """
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    digest = sha256(archive)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        submission = unpack(archive, folder / "submission")
        refuse(wrong_parts(submission, board), f"{archive} is refused")
        refuse(changed_data(submission.parts, data_dir), f"{archive} is refused")
        sample = _sample(submission, count, seed)
        out = _train(submission, board, sample, folder, data_dir, workers)
        _compare(archive, submission, sample, out)
    receipt = Receipt(
        submission=digest,
        runs=len(sample),
        seed=seed,
        verifier=verifier,
        day=date.today().isoformat(),
        code=code({"oodbench": __version__, "commit": commit()}),
    )
    write_whole(receipt_file(archive), receipt.model_dump_json(indent=1) + "\n")
    return receipt


def _sample(submission: Submission, count: int, seed: int) -> Runs:
    """Random runs: of each dataset, then of each of its rows, one that a trial chose; then any."""
    parts = submission.parts
    chosen = set(choose(board_frames(parts))["id"])
    runs = runs_of(parts)
    random.Random(seed).shuffle(runs)
    firsts: dict[tuple[str, str], str] = {}
    for spec, _ in runs:
        if spec.id in chosen:
            firsts.setdefault((spec.dataset_name, spec.label), spec.id)
    of_datasets = {dataset: first for (dataset, _), first in firsts.items()}
    order = [*of_datasets.values(), *firsts.values()]
    runs.sort(key=lambda run: order.index(run[0].id) if run[0].id in order else len(order))
    return runs[:count]


def _train(
    submission: Submission,
    board: Path,
    sample: Runs,
    folder: Path,
    data_dir: Path | None,
    workers: int | None,
) -> Path:
    """Train the runs in a process of its own; returns the results directory, or raises UserError."""
    home, protocol = folder / "home", folder / board.name
    home.mkdir()
    protocol.mkdir()
    (protocol / PROTOCOL_FILE).write_bytes((board / PROTOCOL_FILE).read_bytes())
    method = home / submission.method_file.name
    method.write_bytes(submission.method_file.read_bytes())
    rows: dict[str, dict[str, list[str]]] = {}
    transductive: dict[str, list[str]] = {}
    for part in submission.parts:
        rows.setdefault(part.label, {})[part.dataset] = part.ids
        if part.about.spec.get("transductive"):
            transductive.setdefault(part.label, []).append(part.dataset)
    task = Task(
        board=protocol,
        algorithm=submission.about.algorithm,
        method=method,
        rows=rows,
        transductive=transductive,
        specs=[(json.loads(json.dumps(asdict(spec))), together) for spec, together in sample],
        out=folder / "results",
        data_dir=data_dir.resolve() if data_dir else None,
        workers=workers,
    )
    file = folder / "task.json"
    file.write_text(task.model_dump_json())
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    kept |= variables() | {"HOME": str(home), "PYTHONPATH": f"{checkout()}{os.pathsep}{home}"}
    command = [sys.executable, "-m", "oodbench.board.untrusted", str(file)]
    done = subprocess.run(command, cwd=home, env=kept, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        reason = " ".join(lines).removeprefix("error: ") if len(lines) < 9 else lines[-1]
        raise UserError(f"the submission is refused: {reason or 'its process ended early'}")
    return task.out


def _compare(archive: Path, submission: Submission, sample: Runs, out: Path) -> None:
    """Raise UserError unless the submitted file trained the runs, and all are equal bit for bit."""
    again = load_frames(Results(out))
    frozen = board_frames(submission.parts)
    ids = {spec.id for spec, _ in sample}
    table = compared(subset(frozen, frozen.runs[frozen.runs["id"].isin(ids)]), again)
    unlike = table[table["agreement"] != Agreement.EQUAL]
    sources = {part.about.provenance.get("source") for part in submission.parts}
    if {method_digest(made) for made in again.runs["provenance"] if made} - sources:
        raise UserError(
            f"{archive} is refused: the method's file is not the code that trained its runs"
        )
    if len(unlike):
        first = named(unlike.iloc[0])
        raise UserError(
            f"{archive} is refused: of {len(table)} runs that were trained again {outcome(table)} "
            f"(such as {first})"
        )
    made = {(part.dataset, part.label): part for part in made_of(again)}
    for part in submission.parts:
        place = part.dataset, part.label
        own = Part(part.about, part.table.filter(pc.is_in(part.table["id"], pa.array(sorted(ids)))))
        if own.table.num_rows and not own.equal_numbers(made[place]):
            raise UserError(f"{archive} is refused: runs of {part} give other rows of its part")
