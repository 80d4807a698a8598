import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oodbench.diagnose.cli import app
from oodbench.diagnose.memorization import memorization
from oodbench.errors import UserError
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings


def trained(path: Path, dataset: dict[str, object], methods: list[object], trials: int) -> Results:
    """A sweep on disk, all its runs ended."""
    sweep = {"name": "m", "datasets": [dataset], "algorithms": methods, "trials": trials}
    sweep |= {"steps": 6, "evaluate_every": 2, "holdout": 0, "network": "MLP"}
    plan = make_plan(validate(sweep, "test"))
    results = Results(path)
    results.write_plan("m", {}, plan.runs)
    for run_id, spec in plan.runs.items():
        assert execute(spec, results.run(run_id), TrainSettings()) == ("done", "")
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    data = {"name": "NoisyLabels", "base": "digits", "num_examples": 300}
    path = tmp_path_factory.mktemp("memorization") / "mine"
    return trained(path, data, ["ERM", {"name": "ExampleANDMask", "label": "mask"}], 2)


def test_it_shows_the_accuracies_at_the_end(results: Results) -> None:
    finding = memorization(results.path)
    assert finding.header[2:6] == [
        "training labels (%)", "wrong labels (%)", "test (%)", "best test (%)",
    ]  # fmt: skip
    assert [row[:2] for row in finding.rows] == [["ERM", "25% redrawn"], ["mask", "25% redrawn"]]
    frames = load_frames(results)
    metrics = frames.metrics[frames.metrics["metric"] == "accuracy"].astype({"id": str})
    for row in finding.rows:
        ids = list(frames.runs[frames.runs["label"] == row[0]]["id"])
        own = metrics[metrics["id"].isin(ids)]
        groups = [
            own[(own["environment"] == e) & (own["step"] == 6)]["value"]
            for e in ("train", "mislabeled", "test")
        ]
        groups.append(own[own["environment"] == "test"].groupby("id")["value"].max())
        for cell, values in zip(row[2:6], groups, strict=True):
            first, second = 100 * values
            error = abs(first - second) / 2  # of two values, by ddof=1
            assert cell == f"{(first + second) / 2:.1f} ± {error:.1f}"
        assert row[7] == "2"


def test_it_shows_what_the_masks_kept(results: Results) -> None:
    erm, mask = memorization(results.path).rows
    shares = []
    for run_id, spec in results.plan()["runs"].items():
        for record in results.run(run_id).records():
            found = [v for k, v in record["train"].items() if k.startswith("kept ")]
            assert bool(found) == (spec["label"] == "mask")
            shares += [sum(found) / len(found)] if found else []
    assert len(shares) == 6
    assert erm[6] == ""
    assert mask[6] == f"{math.fsum(shares) / 6:.2g}"


def test_the_command_draws_it(results: Results, tmp_path: Path) -> None:
    command = ["memorization", str(results.path), "--out", str(tmp_path)]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "25% redrawn" in result.output
    svg = (tmp_path / "mine.svg").read_text()
    assert ">wrong labels, 25% redrawn<" in svg and ">mask<" in svg
    assert (tmp_path / "mine.png").stat().st_size > 10_000


def test_other_sweeps_have_nothing_to_show(results: Results, tmp_path: Path) -> None:
    other = trained(tmp_path / "other", {"name": "LinearSEM", "num_examples": 20}, ["ERM"], 1)
    with pytest.raises(UserError, match="holds no ended run on NoisyLabels or CIFARNoise"):
        memorization(other.path)
    with pytest.raises(UserError, match="holds no sweep"):
        memorization(tmp_path)
