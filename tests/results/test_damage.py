"""Every command on every kind of damaged file: an answer or one sentence, and the healthy runs told."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from oodbench.report.cli import app as report
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from oodbench.results.predictions import write_examples, write_predictions
from oodbench.sweep.cli import app as sweep
from tests.helpers.made import Made, flat

TRIALS = 3
COMMANDS: dict[str, tuple[typer.Typer, Sequence[str]]] = {
    "table": (report, ["table", "{dir}"]),
    "table with another metric": (report, ["table", "{dir}", "--metric", "calibration_error"]),
    "table by DomainBed's rules": (report, ["table", "{dir}", "--rules", "domainbed"]),
    "export into a missing folder": (report, ["export", "{dir}", "--out", "{out}/no/all.parquet"]),
    "html": (report, ["html", "{dir}", "--out", "{out}/report.html"]),
    "why": (report, ["why", "{dir}", "--algorithm", "ERM"]),
    "status": (sweep, ["status", "{dir}"]),
}
FILES = (
    *("run.json", "metrics.jsonl", "done.json", "failed.json", "heartbeat", "checkpoint.pt"),
    *("predictions/examples.npz", "predictions/30.npz", "sweep.json", "cache.arrow", "journal"),
    "submission.json",
)


def cut(text: bytes) -> bytes:
    return text[: len(text) // 2]


def emptied(text: bytes) -> bytes:
    return b""


def nuls(text: bytes) -> bytes:
    return text[: -len(text) // 3] + b"\0" * (len(text) - len(text[: -len(text) // 3]))


def other_type(text: bytes) -> bytes:
    """Every value is a list of a text; what is no JSON is a number."""
    try:
        lines = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return b"7"
    return b"\n".join(json.dumps({key: ["x"] for key in line}).encode() for line in lines) + b"\n"


def missing_key(text: bytes) -> bytes:
    """Without the last key, and without the last key of the last mapping in it."""
    try:
        lines = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return text[1:]
    for line in lines:
        key = list(line)[-1]
        inner = line[key]
        if isinstance(inner, dict) and inner:
            del inner[list(inner)[-1]]
        elif isinstance(inner, list) and inner and isinstance(inner[-1], dict):
            inner[-1].popitem()
        else:
            del line[key]
    return b"\n".join(json.dumps(line).encode() for line in lines) + b"\n"


def doubled(text: bytes) -> bytes:
    return text + text


def bad_bytes(text: bytes) -> bytes:
    return b"\xff\xfe" + text[::-1]


def nested(text: bytes) -> bytes:
    return b"[" * 100_000


DAMAGES: dict[str, Callable[[bytes], bytes] | str] = {
    "cut": cut,
    "emptied": emptied,
    "NULs": nuls,
    "other type": other_type,
    "missing key": missing_key,
    "doubled": doubled,
    "bad bytes": bad_bytes,
    "nested": nested,
    "foreign": "foreign",
    "folder": "folder",
    "missing": "missing",
}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two methods, with runs in most states, predictions, a cache and a submission."""
    made = Made(tmp_path_factory.mktemp("healthy") / "sweep")
    for label, value in (("ERM", 0.5), ("IRM", 0.6)):
        for trial in range(TRIALS):
            made.add(
                "D",
                label,
                ("a",),
                trial,
                flat(value + trial / 100),
                state="diverged" if trial == 2 else "done",
            )
    made.add("D", "VREx", ("a",), 0, flat(0.4), state="failed", error="why")
    made.add("D", "VREx", ("a",), 1, flat(0.4), state="running")
    made.add("D", "VREx", ("a",), 2, flat(0.4), state="planned")
    results = made.results
    generator = np.random.default_rng(0)
    for run_id in made.runs:
        run = results.run(run_id)
        if not run.path.exists():
            continue
        run.checkpoint.write_bytes(b"PK\x03\x04 checkpoint")
        targets, out = np.array([0, 1] * 4), np.array([False, True] * 4)
        write_examples(run, "multiclass", dict.fromkeys("abc", (targets, out)))
        for step in (10, 20, 30):
            write_predictions(run, step, {e: generator.random((8, 2)) for e in "abc"})
    ids = list(made.runs)
    folder = results.path / "jobs" / "name"
    folder.mkdir(parents=True)
    submission = {"name": "name", "packs": [ids[-1:]], "time": 1.0, "commit": None, "job": "5"}
    (folder / "submission.json").write_text(json.dumps(submission | {"cancelled": False}))
    (results.path / "searches").mkdir()
    stored = json.loads((results.path / "sweep.json").read_text())
    line = {"runs": {ids[-1]: stored["runs"].pop(ids[-1])}}
    (results.path / "sweep.json").write_text(json.dumps(stored))
    (results.path / "searches" / "study.jsonl").write_text(json.dumps(line) + "\n")
    load_frames(results)
    return results.path


def place(folder: Path, name: str, ids: Sequence[str]) -> Path:
    """Where a kind of file lies in a copy: of the first run, unless only another has one."""
    if name in ("sweep.json", "cache.arrow"):
        return folder / name
    if name == "journal":
        return folder / "searches" / "study.jsonl"
    if name == "submission.json":
        return folder / "jobs" / "name" / name
    run = ids[{"failed.json": 2 * TRIALS, "heartbeat": 2 * TRIALS + 1}.get(name, 0)]
    return folder / "runs" / run / name


def damage_file(folder: Path, name: str, damage: str, ids: Sequence[str]) -> None:
    """Damage one file of a copy; a foreign one is that of another run, where there is one."""
    path, how = place(folder, name, ids), DAMAGES[damage]
    if callable(how):
        path.write_bytes(how(path.read_bytes()))
        return
    foreign = folder / "runs" / ids[1] / name
    content = foreign.read_bytes() if foreign.is_file() else b'{"schema": 9, "name": "foreign"}'
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "foreign":
        path.write_bytes(content)


@pytest.mark.slow
def test_every_command_answers_whatever_is_damaged(healthy: Path, tmp_path: Path) -> None:
    """An answer (0) or one sentence (2), no traceback; a damaged run does not hide the healthy ones."""
    ids = list(Results(healthy).plan()["runs"])
    runner, found, wrong = CliRunner(), Counter[str](), []
    for name in FILES:
        for damage in DAMAGES:
            copy, out = tmp_path / "copy", tmp_path / "out"
            shutil.copytree(healthy, copy)
            damage_file(copy, name, damage, ids)
            for command, (app, arguments) in COMMANDS.items():
                out.mkdir()
                texts = [a.format(dir=copy, out=out) for a in arguments]
                result = runner.invoke(app, texts)
                shutil.rmtree(out)
                case = f"{command}: {name} {damage}"
                found[str(result.exit_code)] += 1
                error = result.exception
                if not (error is None or isinstance(error, SystemExit)):
                    wrong.append(f"{case}: {type(error).__name__}: {error}")
                elif result.exit_code not in (0, 2):
                    wrong.append(f"{case}: exit code {result.exit_code}")
                elif result.exit_code == 2 and len(result.stderr.strip().splitlines()) != 1:
                    wrong.append(f"{case}: {result.stderr}")
                elif name not in ("sweep.json", "journal") and command == "table":
                    if result.exit_code or "61.0" not in result.stdout:
                        wrong.append(f"{case}: the healthy row is gone: {result.output}")
            shutil.rmtree(copy)
    assert sum(found.values()) >= 900
    assert not wrong, f"{len(wrong)} of {sum(found.values())} {dict(found)}\n" + "\n".join(wrong)
