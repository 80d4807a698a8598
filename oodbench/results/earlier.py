"""Converts results directories of 0.4.0, which had other files for each run."""

import hashlib
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock
from pydantic_core import from_json

from oodbench.errors import UserError
from oodbench.results.parquet import spec_columns
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.schemas import SPEC, UNREADABLE, DamagedFile, read_bytes
from oodbench.terminal import counted, terminal

BEGINNING = b'{"schema": 1,'
"""The first bytes of sweep.json in a directory of 0.4.0."""
SEAL = re.compile(rb', "checksum": "([0-9a-f]{8})"\}\s*\Z')


def convert(results: Any) -> None:
    """Convert the ended and failed runs of a directory of 0.4.0; others will be trained again.

    An interrupted conversion continues at the next call, because sweep.json is written last. A second
    process waits. Raises UserError if the directory cannot be written to.
    """
    path = results.path / "sweep.json"
    try:
        with FileLock(results.path / "conversion.lock"):
            if (read_bytes(path) or b"").startswith(BEGINNING):
                _convert(results, _content(path))
        (results.path / "conversion.lock").unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"{results.path} is of 0.4.0 and must be moved to today's form: {error.strerror}"
        ) from None


def _convert(results: Any, stored: dict[str, Any]) -> None:
    specs = {old: SPEC.validate_python(values) for old, values in stored["runs"].items()}
    moved = sum(_moved(results, old, spec) for old, spec in specs.items())
    rows = spec_columns([*specs.values()], [spec.id for spec in specs.values()])
    results.store(stored["name"], stored["settings"], pd.DataFrame(rows))
    (results.path / "cache.arrow").unlink(missing_ok=True)
    others = "; the next launch trains the others from their first step" * (moved < len(specs))
    terminal(stderr=True).say(
        f"{results.path} is of 0.4.0: {moved} of {counted(len(specs), 'run')} moved to today's form{others}"
    )


def _moved(results: Any, old: str, spec: RunSpec) -> bool:
    """Convert a run and move it to its new id; returns whether it had ended or failed."""
    before, now = results.path / "runs" / old, results.run(spec.id)
    if not before.is_dir() or before == now.path:
        return False
    try:
        run, end, failed = (_content(before / f"{n}.json") for n in ("run", "done", "failed"))
        text = read_bytes(before / "metrics.jsonl") or b""
        if end and end["sha256"] != hashlib.sha256(text).hexdigest():
            return False
        records = [*_records(text)]
        if end or failed:
            shutil.rmtree(now.path, ignore_errors=True)
            now.path.mkdir(parents=True)
            now.start(spec, run["context"], run["provenance"])
            for record in records:
                now.append(record)
            for kind in ("weights", "predictions"):
                if (before / kind).is_dir():
                    now.kept.mkdir(parents=True, exist_ok=True)
                    shutil.move(before / kind, now.kept / kind)
        if end:
            now.finish(State(end["status"]), end["step"])
        elif failed:
            now.fail(failed["error"], failed["traceback"])
    except (*UNREADABLE, DamagedFile):
        return False
    shutil.rmtree(before)
    return bool(end or failed)


def _content(path: Path) -> Any:
    text = read_bytes(path) or b"null"
    seal = SEAL.search(text)
    if seal and int(seal[1], 16) != zlib.crc32(text[: -len(seal[0])]):
        raise DamagedFile(f"{path} is damaged: it is not what was written")
    return from_json(text)


def _records(text: bytes) -> Iterator[dict[str, Any]]:
    """The records in a file of 0.4.0, where a line has names only if they differ from the last line's."""
    columns: list[dict[str, Any]] = []
    shares: list[str] = []
    for line in map(from_json, text.splitlines()):
        if "columns" in line:
            shares = line.pop("counted", [])
            columns = [
                {"environment": environment, "split": split, "metric": metric, "count": count}
                for block in line.pop("columns")
                for environment, split, counts in block["splits"]
                for metric, count in zip(block["metrics"], counts, strict=True)
            ]
        values = zip(columns, line.pop("values", []), strict=True)
        yield line | {
            "evaluations": [
                {**c, "value": v / c["count"] if c["metric"] in shares and v is not None else v}
                for c, v in values
            ]
        }
