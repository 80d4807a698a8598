"""Every command on every kind of damaged file: an answer or one sentence, and the healthy runs told."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from oodbench.report.cli import app as report
from oodbench.results import compact as compaction
from oodbench.results.directory import Directory
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep import launch as launches
from oodbench.sweep.cli import app as sweep
from oodbench.train import loop
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings
from tests.helpers.kills import Killed
from tests.helpers.results.sweeps import ODD_METHODS, outcome, records_of

MIDDLE = 2
SWEEP: dict[str, Any] = {
    "name": "damaged",
    "plugins": [ODD_METHODS],
    "datasets": [
        {"name": "Spirals", "num_environments": 3, "num_examples": 10, "num_test_examples": 8}
    ],
    "algorithms": [
        *("ERM", "IRM", "Raising", "VREx"),
        {"name": "ERM", "label": "diverging", "hparams": {"lr": 1e38, "optimizer": "sgd"}},
    ],
    "network": "Linear",
    "trials": 2,
    "steps": 2 * MIDDLE,
    "evaluate_every": MIDDLE,
}
LAUNCHER = ("--launcher", "debug")
AGAIN = "launch --failed"
WITH_PREDICTIONS = "table with another metric"
REPORTS: dict[str, tuple[typer.Typer, Sequence[str]]] = {
    "table": (report, ["table", "{dir}"]),
    "table as csv": (report, ["table", "{dir}", "--format", "csv"]),
    WITH_PREDICTIONS: (report, ["table", "{dir}", "--metric", "calibration_error"]),
    "table by DomainBed's rules": (report, ["table", "{dir}", "--rule", "domainbed"]),
    "compare": (report, ["compare", "{dir}"]),
    "html": (report, ["html", "{dir}", "--out", "{out}/report.html"]),
    "why": (report, ["why", "{dir}", "--algorithm", "ERM"]),
}
"""Commands that show what `read_results` and kept predictions hold, and nothing else."""
OTHERS: dict[str, tuple[typer.Typer, Sequence[str]]] = {
    "status": (sweep, ["status", "{dir}"]),
    "clean": (sweep, ["clean", "{dir}", "--yes"]),
    "launch": (sweep, ["launch", "{sweep}", "--out", "{dir}", "--yes", *LAUNCHER]),
    AGAIN: (sweep, ["launch", "{sweep}", "--out", "{dir}", "--yes", "--failed", *LAUNCHER]),
}
COMMANDS = REPORTS | OTHERS
OF_ALL_RUNS = ("sweep.json", "plan.parquet")
"""The files without which not even the healthy runs are known."""
FILES = (
    *(
        "run.json",
        "metrics.jsonl",
        "unfinished metrics.jsonl",
        "done.json",
        "failed.json",
        "heartbeat",
        "checkpoint.pt",
    ),
    *("predictions/examples.npz", "predictions/4.npz", "submission.json", "runs-", "records-"),
    *OF_ALL_RUNS,
)


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


DAMAGES: dict[str, Callable[[bytes], bytes] | str] = {
    "cut": lambda text: text[: len(text) // 2],
    "emptied": lambda text: b"",
    "NULs": nuls,
    "other type": other_type,
    "missing key": missing_key,
    "doubled": lambda text: text + text,
    "bad bytes": lambda text: b"\xff\xfe" + text[::-1],
    "nested": lambda text: b"[" * 100_000,
    "foreign": "foreign",
    "folder": "folder",
    "pipe": "pipe",
    "loop": "loop",
    "missing": "missing",
}


@dataclass(frozen=True)
class Healthy:
    """A trained sweep with runs in most states, in folders and in tables, predictions and a submission."""

    folder: Path
    file: Path
    """Its sweep file."""
    ids: dict[str, str]
    """A done run, one of another trial, a failed, a half-trained and a planned one."""
    row: str
    """The row of the table that no damage of the done run touches, with single spaces."""
    undisturbed: dict[str, Any]
    """The outcome of all its runs once they have ended."""

    def place(self, copy: Path, name: str) -> Path:
        """Where a kind of file lies in a copy: of the done run, unless only another has one."""
        if name in OF_ALL_RUNS:
            return copy / name
        if name.endswith("-"):
            (path,) = (copy / "ended").glob(f"{name}*")
            return path
        if name == "submission.json":
            return copy / "jobs" / "name" / name
        run = {"failed.json": "failed", "heartbeat": "running", "checkpoint.pt": "running"}
        unfinished, _, whole = name.rpartition(" ")
        of = self.ids["running" if unfinished else run.get(name, "done")]
        return copy / ("kept" if whole.startswith("predictions") else "runs") / of / whole

    def damage(self, copy: Path, name: str, damage: str) -> None:
        """Damage one file of a copy; a foreign one is that of another run, where there is one."""
        path, how = self.place(copy, name), DAMAGES[damage]
        if callable(how):
            path.write_bytes(how(path.read_bytes()))
            return
        foreign = path.parent.parent / self.ids["another"] / path.name
        content = foreign.read_bytes() if foreign.is_file() else b'{"schema": 9, "name": "foreign"}'
        path.unlink()
        if damage == "folder":
            path.mkdir()
        elif damage == "pipe":
            os.mkfifo(path)
        elif damage == "loop":
            path.symlink_to(path)
        elif damage == "foreign":
            path.write_bytes(content)


@contextmanager
def damaged(healthy: Healthy, folder: Path, name: str, damage: str) -> Iterator[Path]:
    """A copy with a damage, for as long as the block lasts."""
    copy = folder / "copy"
    shutil.copytree(healthy.folder, copy)
    healthy.damage(copy, name, damage)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def invoke(app: typer.Typer, arguments: Sequence[str], **places: Path) -> Result:
    return CliRunner().invoke(app, [a.format(**places) for a in arguments])


def train_half(spec: RunSpec, results: Directory, patch: pytest.MonkeyPatch) -> None:
    """Train a run until it has a checkpoint of its middle."""

    def progress(step: int) -> None:
        if step == MIDDLE:
            raise Killed

    patch.setattr(loop, "EVALUATION_CHECKPOINT_SECONDS", -1.0)
    settings = TrainSettings(plugins=(ODD_METHODS,), keep_predictions=True)
    with pytest.raises(Killed):
        execute(spec, results.run(spec.id), settings, progress)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    folder = tmp_path_factory.mktemp("healthy")
    file, out = folder / "sweep.yaml", folder / "out"
    file.write_text(yaml.safe_dump(SWEEP))
    app, arguments = OTHERS["launch"]
    results = Directory(out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launches, "compact", lambda *_, **__: 0)
        invoke(app, [*arguments, "--keep-predictions"], sweep=file, dir=out)
    specs = results.specs()
    runs = {(spec.label, spec.trial): i for i, spec in specs.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "_folders", lambda _: [runs["diverging", t] for t in (0, 1)])
        assert compaction.compact(results) == 2
    undisturbed = outcome(results)
    states = {undisturbed[runs[label, 0]][0] for label in ("ERM", "Raising", "diverging")}
    assert states == {State.DONE, State.FAILED, State.DIVERGED}
    ids = {
        "done": runs["ERM", 0],
        "another": runs["ERM", 1],
        "failed": runs["Raising", 0],
        "running": runs["VREx", 0],
        "planned": runs["VREx", 1],
    }
    for name in ("running", "planned"):
        shutil.rmtree(results.run(ids[name]).path)
    with pytest.MonkeyPatch.context() as patch:
        train_half(specs[ids["running"]], results, patch)
    results.run(ids["running"]).beat(MIDDLE)
    add_jobs(results, ids["planned"])
    table = invoke(*REPORTS["table"], dir=out)
    (row,) = (line for line in table.stdout.splitlines() if line.startswith("IRM"))
    return Healthy(out, file, ids, " ".join(row.split()), undisturbed)


def add_jobs(results: Directory, run_id: str) -> None:
    """Have a planned run be in a job of a cluster."""
    folder = results.path / "jobs" / "name"
    folder.mkdir(parents=True)
    submission = {"name": "name", "packs": [[run_id]], "time": 1.0, "commit": None, "job": "5"}
    (folder / "submission.json").write_text(json.dumps(submission | {"cancelled": False}))


def may_refuse(case: str, command: str) -> bool:
    """Whether a command may say one sentence and no more of a damage."""
    if command == "export into a missing folder" or case.startswith(OF_ALL_RUNS):
        return True
    if command == WITH_PREDICTIONS:
        return case.startswith("predictions")
    # whose folder or pipe it is, we do not know
    return command == AGAIN and case.endswith(("folder", "pipe", "loop"))


def wrong(healthy: Healthy, copy: Path, case: str, command: str, result: Result) -> str:
    """What is wrong with what a command said of a damaged copy, and did to it; empty if nothing is."""
    error, code = result.exception, result.exit_code
    if not (error is None or isinstance(error, SystemExit)):
        return f"{type(error).__name__}: {error}"
    if code == 2 and may_refuse(case, command):
        return "" if len(result.stderr.strip().splitlines()) == 1 else result.stderr
    if code not in ((0, 1) if command in (AGAIN, "launch") else (0,)):
        return f"exit code {code}: {result.output}"
    shown = " ".join(result.stdout.split())
    if command in ("table", AGAIN, "launch") and healthy.row not in shown:
        return f"the healthy row is gone: {result.output}"
    return spoilt(healthy, copy, command) if command in OTHERS else ""


def spoilt(healthy: Healthy, copy: Path, command: str) -> str:
    """What a command has done to the runs of a damaged copy; empty if it is nothing wrong."""
    results = Directory(copy)
    for run_id, (_, records) in healthy.undisturbed.items():
        state = results.run(run_id).state()
        if state.complete and records_of(results.run(run_id)) != records:
            return f"{run_id} has other records"
        if command == AGAIN and state is State.BROKEN:
            return f"{run_id} is still broken"
    return ""


def answers(healthy: Healthy, folder: Path, name: str, damage: str) -> dict[str, str]:
    """What is wrong with each command's answer to a damage, by command; empty texts if nothing is."""
    case = f"{name} {damage}"

    def answer(command: str, copy: Path) -> str:
        app, arguments = COMMANDS[command]
        result = invoke(app, arguments, dir=copy, out=folder, sweep=healthy.file)
        return wrong(healthy, copy, case, command, result)

    with damaged(healthy, folder, name, damage) as copy:
        said = {command: answer(command, copy) for command in REPORTS}
    for command in OTHERS:
        with damaged(healthy, folder, name, damage) as copy:
            said[command] = answer(command, copy)
    return said


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*the run starts anew")
@pytest.mark.parametrize(("name", "damage"), [*zip(FILES, cycle(DAMAGES), strict=False)][1::2])
def test_every_command_answers_whatever_is_damaged(
    healthy: Healthy, tmp_path: Path, name: str, damage: str
) -> None:
    """An answer (0) or one sentence (2), no traceback; a damaged run does not hide the healthy ones,
    and no command makes other numbers of it.
    """
    assert not any((said := answers(healthy, tmp_path, name, damage)).values()), said


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*the run starts anew")
@pytest.mark.parametrize("name", FILES)
def test_every_command_answers_to_every_damage(healthy: Healthy, tmp_path: Path, name: str) -> None:
    said = {damage: answers(healthy, tmp_path, name, damage) for damage in DAMAGES}
    wrong = {(d, c): text for d, texts in said.items() for c, text in texts.items() if text}
    assert not wrong
