"""Damaged files and flipped bits: every command answers, and no number is another in silence."""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from oodbench.errors import UserError
from oodbench.results.directory import Directory, compact
from oodbench.results.predictions import read_predictions
from oodbench.results.read import read_results
from oodbench.results.run_spec import State
from oodbench.results.tables import Tables
from oodbench.sweep import launch as launches
from tests.helpers.commands import type_in
from tests.helpers.results.sweeps import (
    DIGITS,
    ODD_METHODS,
    ended,
    outcome,
    planned,
    records_of,
    tiny,
)

SWEEP = {
    "name": "damaged",
    "plugins": [ODD_METHODS],
    "datasets": [
        {"name": "Spirals", "num_environments": 3, "num_examples": 10, "num_test_examples": 8}
    ],
    "network": "Linear",
    "algorithms": [
        *("ERM", "IRM", "Raising", "VREx"),
        {"name": "ERM", "label": "diverging", "hparams": {"lr": 1e38, "optimizer": "sgd"}},
    ],
    "trials": 2,
    "steps": 4,
    "evaluate_every": 2,
}
LAUNCH = "sweep launch {sweep} --out {dir} --yes --launcher debug"
AGAIN = f"{LAUNCH} --failed"
WITH_PREDICTIONS = "report table {dir} --metric calibration_error"
READING = (
    *("report table {dir}", "report table {dir} --format csv", WITH_PREDICTIONS),
    *("report table {dir} --rule domainbed", "report compare {dir}", "sweep status {dir}"),
    *("report html {dir} --out {out}/report.html", "report why {dir} --algorithm ERM"),
)
WRITING = ("sweep clean {dir} --yes", LAUNCH, AGAIN)
OF_ALL_RUNS = ("sweep.json", "plan.parquet")
"""The files without which not even the healthy runs are known."""
FILES = {
    **{f"runs/{{done}}/{name}": name for name in ("run.json", "metrics.jsonl", "done.json")},
    "runs/{failed}/failed.json": "failed.json",
    "runs/{running}/metrics.jsonl": "unfinished metrics.jsonl",
    "runs/{running}/heartbeat": "heartbeat",
    **{f"kept/{{done}}/predictions/{n}.npz": f"predictions of {n}" for n in ("examples", "4")},
    "ended/runs-*": "runs",
    "ended/records-*": "records",
    **{name: name for name in OF_ALL_RUNS},
}
"""What is damaged, by its pattern."""


def each_line(change: Callable[[dict[str, object]], object]) -> Callable[[bytes], bytes]:
    """Change each line of JSON; what is no JSON is a number."""

    def damage(text: bytes) -> bytes:
        try:
            lines = [json.loads(line) for line in text.splitlines()]
        except ValueError:
            return b"7"
        return b"".join(json.dumps(change(line)).encode() + b"\n" for line in lines)

    return damage


DAMAGES: dict[str, Callable[[bytes], bytes] | Callable[[Path], object]] = {
    "cut": lambda text: text[: len(text) // 2],
    "emptied": lambda text: b"",
    "NULs": lambda text: text[: len(text) // 2] + bytes(len(text) // 2),
    "other type": each_line(lambda line: {key: ["x"] for key in line}),
    "missing key": each_line(lambda line: dict([*line.items()][:-1])),
    "doubled": lambda text: text + text,
    "bad bytes": lambda text: b"\xff\xfe" + text[::-1],
    "nested": lambda text: b"[" * 100_000,
    "foreign": lambda text: b'{"schema": 9, "name": "foreign"}',
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "loop": lambda path: path.symlink_to(path),
    "missing": lambda path: None,
}
IN_PLACE = ("folder", "pipe", "loop", "missing")
"""Damages that are something else in the place of a file."""


def invoke(command: str, **places: Path) -> Result:
    return type_in(*command.format(**places).split())


class Healthy:
    """A trained sweep with runs in most states, in folders and in tables, and predictions."""

    def __init__(self, folder: Path) -> None:
        self.out, self.file = folder / "out", folder / "sweep.yaml"
        self.file.write_text(yaml.safe_dump(SWEEP))
        results = Directory(self.out)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launches, "compact", lambda *_, **__: 0)
            invoke(f"{LAUNCH} --keep-predictions", sweep=self.file, dir=self.out)
        runs = {(spec.label, spec.trial): i for i, spec in results.specs().items()}
        with pytest.MonkeyPatch.context() as patch:
            diverging = {runs["diverging", t] for t in (0, 1)}
            patch.setattr(Directory, "names", lambda *_: diverging)
            assert compact(results) == 2
        self.undisturbed = outcome(results)
        states = {self.undisturbed[runs[label, 0]][0] for label in ("ERM", "Raising", "diverging")}
        assert states == {State.DONE, State.FAILED, State.DIVERGED}
        labels = {"done": "ERM", "failed": "Raising", "running": "VREx"}
        self.ids = {state: runs[label, 0] for state, label in labels.items()}
        running = results.run(runs["VREx", 0])
        (running.path / "done.json").unlink()
        running.beat(2)
        shutil.rmtree(results.run(runs["VREx", 1]).path)
        table = invoke("report table {dir}", dir=self.out).stdout
        (row,) = (line for line in table.splitlines() if line.startswith("IRM"))
        self.row = " ".join(row.split())
        """The row of the table that no damage of another run touches, with single spaces."""

    def damaged(self, folder: Path, pattern: str, damage: str) -> Path:
        copy = Path(shutil.copytree(self.out, folder / "copy"))
        (path,) = copy.glob(pattern.format(**self.ids))
        if damage in IN_PLACE:
            path.unlink()
            DAMAGES[damage](path)  # type: ignore[arg-type]
        else:
            path.write_bytes(DAMAGES[damage](path.read_bytes()))  # type: ignore[arg-type]
        return copy

    def wrong(self, copy: Path, name: str, damage: str, command: str, result: Result) -> str:
        """What is wrong with what a command said of a damaged copy, and did to it, if anything."""
        error, code = result.exception, result.exit_code
        if not (error is None or isinstance(error, SystemExit)):
            return f"{type(error).__name__}: {error}"
        of_predictions = command == WITH_PREDICTIONS and name.startswith("predictions")
        # whose folder or pipe it is, we do not know
        in_place = command == AGAIN and damage in ("folder", "pipe", "loop")
        if code == 2 and (name in OF_ALL_RUNS or of_predictions or in_place):
            return "" if len(result.stderr.strip().splitlines()) == 1 else result.stderr
        if code not in ((0, 1) if command in (LAUNCH, AGAIN) else (0,)):
            return f"exit code {code}: {result.output}"
        told = command in (LAUNCH, AGAIN, READING[0])
        if told and self.row not in " ".join(result.stdout.split()):
            return f"the healthy row is gone: {result.output}"
        for run_id, (_, records) in self.undisturbed.items() if command in WRITING else ():
            run = Directory(copy).run(run_id)
            if run.state().complete and records_of(run) != records:
                return f"{run_id} has other records"
            if command == AGAIN and run.state() is State.BROKEN:
                return f"{run_id} is still broken"
        return ""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    return Healthy(tmp_path_factory.mktemp("healthy"))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*the run starts again")
@pytest.mark.parametrize(("pattern", "damage"), [*zip([*FILES] * 3, cycle(DAMAGES), strict=False)])
def test_every_command_answers(healthy: Healthy, tmp_path: Path, pattern: str, damage: str) -> None:
    """An answer (0) or one sentence (2), no traceback; a damaged run does not hide the healthy ones,
    and no command makes other numbers of it.
    """
    said, copy = {}, tmp_path / "copy"
    for command in (*READING, *WRITING):
        if not copy.exists():
            healthy.damaged(tmp_path, pattern, damage)
        result = invoke(command, dir=copy, out=tmp_path, sweep=healthy.file)
        said[command] = healthy.wrong(copy, FILES[pattern], damage, command, result)
        if command in (READING[-1], *WRITING):
            shutil.rmtree(copy)
    assert not any(said.values()), said


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with groups and predictions, of whose four runs two are in the tables."""
    keys = {"datasets": [DIGITS], "network": "Linear", "steps": 4, "evaluate_every": 2}
    plan, out = tiny(**keys), tmp_path_factory.mktemp("flips") / "out"
    results = planned(out, plan)
    for number, (run_id, spec) in enumerate(plan.runs.items()):
        ended(spec, results.run(run_id).path, keep_predictions=True)
        if number == 1:
            compact(results)
    return results.path


def flip(file: Path, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def spoken_of(out: Path, frames: Tables, wanted: Tables) -> bool:
    """Whether the runs that are done have the numbers wanted, and the table says how many they are."""
    done = frames.runs["state"].eq(State.DONE).to_numpy()
    columns = [name for name in wanted.runs if name not in ("error", "state")]
    known, before = (f.runs.loc[done, columns].astype(object) for f in (frames, wanted))
    names = dict.fromkeys(("id", "environment", "split", "metric"), object)
    of_known = wanted.records[wanted.records["id"].isin(known["id"])].reset_index(drop=True)
    if not known.equals(before) or not frames.records.astype(names).equals(of_known.astype(names)):
        return False
    table = type_in("report", "table", out).output
    return re.search(rf"Runs: {done.sum()} done, \d \w+", table) is not None and done.sum() < 4


def tables(out: Path) -> Tables:
    found = read_results(Directory(out))
    return replace(found, runs=found.runs.drop(columns="directory"))


def silent(out: Path, wanted: Tables) -> bool:
    """Whether the directory has other numbers than those wanted, and no command says why."""
    try:
        frames = tables(out)
        for run_id in frames.runs["id"]:
            read_predictions(Directory(out).run(run_id), 4)
    except UserError:
        return False
    same = frames.runs.equals(wanted.runs) and frames.records.equals(wanted.records)
    return not same and not spoken_of(out, frames, wanted)


def silent_flips(whole: Path, folder: Path, rounds: range) -> list[str]:
    """The flips that changed numbers in silence; the kinds of files take turns."""
    wanted = tables(whole)
    kinds: dict[str, list[Path]] = {}
    for file in sorted(path for path in whole.rglob("*") if path.is_file()):
        if file.stat().st_size:  # no lock
            kinds.setdefault(file.name.partition("-")[0], []).append(file.relative_to(whole))
    assert len(kinds) == 10
    found = []
    for number in rounds:
        draw = random.Random(number)
        kind = [*kinds][number % len(kinds)]
        file = draw.choice(kinds[kind])
        out = Path(shutil.copytree(whole, folder / "copy"))
        bit = draw.randrange(8 * (out / file).stat().st_size)
        flip(out / file, bit)
        if silent(out, wanted):
            found.append(f"bit {bit} of {file}")
        shutil.rmtree(out)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "rounds", [range(20), pytest.param(range(20, 300), marks=pytest.mark.nightly)], ids=str
)
def test_a_flipped_bit_is_never_silent(whole: Path, tmp_path: Path, rounds: range) -> None:
    assert silent_flips(whole, tmp_path, rounds) == []
