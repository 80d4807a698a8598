"""One run on the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import oodbench
from oodbench.results.directory import Results
from oodbench.train.cli import app
from tests.helpers.sweeps import ended, first, outcome, tiny
from tests.helpers.sweeps import planned as planned_sweep


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """A sweep of two runs, of which the first is trained."""
    monkeypatch.chdir(tmp_path)
    results, spec = planned_sweep(Path("sweep"), tiny(trials=1)), first(trials=1)
    ended(spec, results.run(spec.id).path)
    return results


def test_a_spec_is_trained_to_the_same_records_from_each_of_its_sources(planned: Results) -> None:
    run_id = next(iter(planned.plan()["runs"]))
    directory = planned.run(run_id).path
    wanted = outcome(planned)[run_id]
    for n, source in enumerate((str(directory), str(directory / "run.json"), f"sweep:{run_id}")):
        result = run(source, "--out", f"out{n}")
        assert result.exit_code == 0, result.output
        assert outcome(Results(Path(f"out{n}"))) == {run_id: wanted}
        assert "done at step 120 of 120" in result.output and "3 records in" in result.output
        assert "mse in 5 (test): " in result.output


def test_by_default_each_training_has_a_new_directory_that_others_can_read(
    planned: Results,
) -> None:
    run_id = next(iter(planned.plan()["runs"]))
    for folder in (f"train/{run_id}", f"train/{run_id}-2"):
        assert run(f"sweep:{run_id}").exit_code == 0
        frame = oodbench.load(folder)
        assert set(frame["id"]) == {run_id} and set(frame["state"]) == {"done"}


def test_a_planned_run_is_trained_in_its_place(planned: Results) -> None:
    run_id = list(planned.plan()["runs"])[1]
    assert planned.run(run_id).state() == "planned"
    assert run(f"sweep:{run_id}", "--out", "sweep").exit_code == 0
    assert planned.run(run_id).state() == "done"


def test_a_run_that_fails_says_why_and_exits_with_1(planned: Results) -> None:
    run_id = next(iter(planned.plan()["runs"]))
    info = json.loads((planned.run(run_id).path / "run.json").read_text())
    del info["checksum"]
    info["spec"]["algorithm"], info["provenance"]["plugins"] = (
        "Raising",
        ["tests.helpers.odd_methods"],
    )
    Path("changed").mkdir()
    Path("changed/run.json").write_text(json.dumps(info))
    result = run("changed", "--out", "out")
    assert result.exit_code == 1 and "failed: RuntimeError: the third step" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is no run: give a run.json"),
        (["sweep"], "sweep is no run: give a run.json"),
        (["sweep:0123456789abcdef"], "unknown run '0123456789abcdef' in sweep"),
        (["nowhere:0123456789abcdef"], "there is no directory nowhere"),
    ],
)
def test_a_source_that_is_none_is_a_mistake(
    planned: Results, arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and message in result.output
    assert not Path("train").exists()


def test_the_results_of_others_are_not_touched(planned: Results) -> None:
    run_id = next(iter(planned.plan()["runs"]))
    Path("full").mkdir()
    Path("full/notes.txt").touch()
    result = run(f"sweep:{run_id}", "--out", "full")
    assert result.exit_code == 2 and "is not empty and holds no results" in result.output
    other = next(iter(tiny(trials=1, steps=240).runs.values()))
    Results(Path("other")).write_plan("other", {}, {other.id: other})
    result = run(f"sweep:{run_id}", "--out", "other")
    assert result.exit_code == 2 and f"without the run {run_id}" in result.output
