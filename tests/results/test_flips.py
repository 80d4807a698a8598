"""One flipped bit in any file of a results directory: the same numbers, or a word on what is wrong."""

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from oodbench.errors import UserError
from oodbench.results.directory import Directory, compact
from oodbench.results.predictions import read_predictions
from oodbench.results.read import read_results
from oodbench.results.run_spec import State
from oodbench.results.tables import Tables
from tests.helpers.commands import type_in
from tests.helpers.results.sweeps import DIGITS, ended, planned, tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    """The tables of a directory without its name."""
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


def wrong(healthy: Path, folder: Path, rounds: range) -> list[str]:
    """The flips that changed numbers in silence; the kinds of files take turns."""
    wanted = tables(healthy)
    kinds: dict[str, list[Path]] = {}
    for file in sorted(path for path in healthy.rglob("*") if path.is_file()):
        if file.stat().st_size:  # no lock
            kinds.setdefault(file.name.partition("-")[0], []).append(file.relative_to(healthy))
    assert len(kinds) == 10
    found = []
    for number in rounds:
        draw = random.Random(number)
        kind = [*kinds][number % len(kinds)]
        file = draw.choice(kinds[kind])
        out = Path(shutil.copytree(healthy, folder / "copy"))
        bit = draw.randrange(8 * (out / file).stat().st_size)
        flip(out / file, bit)
        if silent(out, wanted):
            found.append(f"bit {bit} of {file}")
        shutil.rmtree(out)
    return found


@pytest.mark.parametrize(
    "rounds", [range(20), pytest.param(range(20, 300), marks=pytest.mark.nightly)], ids=str
)
def test_a_flipped_bit_is_never_silent(healthy: Path, tmp_path: Path, rounds: range) -> None:
    assert wrong(healthy, tmp_path, rounds) == []
