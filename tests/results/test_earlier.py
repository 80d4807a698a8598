"""A directory of 0.4.0 becomes one of today, with the same numbers, whenever it is interrupted."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import oodbench
from oodbench.results.directory import Directory, compact
from oodbench.results.predictions import read_predictions
from oodbench.results.read import read_results
from oodbench.results.run_directory import kept_weights
from tests.helpers.commands import type_in
from tests.helpers.paths import ROOT
from tests.results.test_ended import AT_EVERY, deaths

OLD = ROOT / "tests" / "golden" / "results-0.4.0"
"""Two runs that ended and one that failed; numbers.json has what 0.4.0 read of them."""
IRM = "917bac55623c5b77"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "out"))


def numbers(out: Path) -> list[str]:
    names = ["label", "step", "environment", "split", "metric", "value", "count"]
    frame = oodbench.load(out)[names].astype(object)
    rows = frame.where(frame.notna(), None).itertuples(index=False, name=None)
    return sorted(repr((*row[:5], float(row[5]), int(row[6]))) for row in rows)


def wanted(*labels: str) -> list[str]:
    rows = json.loads((OLD / "numbers.json").read_text())
    return sorted(repr(tuple(row)) for row in rows if row[0] in labels)


def test_it_has_the_same_numbers_states_weights_and_predictions(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert numbers(out) == wanted("mine", "IRM")
    assert "of 0.4.0: 3 runs of 3 were moved" in " ".join(capsys.readouterr().err.split())
    results = Directory(out)
    of_label = {spec.label: results.run(i) for i, spec in results.specs().items()}
    assert of_label["Raising"].state_and_reason() == ("failed", "it cannot go on")
    assert kept_weights(of_label["IRM"]).keys() == {("last", 20)}
    assert read_predictions(of_label["IRM"], 20).keys() == {"0", "1", "2", "test"}
    assert of_label["IRM"].made_by()["oodbench"] == "0.4.0"
    assert compact(results) == 2 and numbers(out) == wanted("mine", "IRM")
    assert "0.4.0" not in type_in("report", "table", out, code=0).stderr


@AT_EVERY
@pytest.mark.filterwarnings("ignore")
def test_interrupted_anywhere_it_goes_on(out: Path, tmp_path: Path, every: int) -> None:
    for results in deaths(out, tmp_path / "copy", read_results, every):
        assert numbers(results.path) == wanted("mine", "IRM")
        (run_id,) = (i for i, spec in results.specs().items() if spec.label == "IRM")
        assert kept_weights(results.run(run_id)).keys() == {("last", 20)}


def test_two_readers_at_once_move_it_once(out: Path) -> None:
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(numbers, out) for _ in range(4)]
    assert all(each.result() == wanted("mine", "IRM") for each in found)


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json", "done.json"])
def test_a_damaged_run_is_not_taken_for_a_whole_one(out: Path, name: str) -> None:
    file = out / "runs" / IRM / name
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    assert numbers(out) == wanted("mine")
    assert sorted(read_results(Directory(out)).runs["state"]) == ["done", "failed", "planned"]
