"""Kept weights on the command line: launch, status, clean, and what is said of runs without them."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oodbench.errors import UserError
from oodbench.results.run_spec import RunSpec
from oodbench.selection import Rule, records_on
from tests.helpers.commands import type_in
from tests.helpers.results.sweeps import tiny, tiny_file

pytestmark = pytest.mark.slow

SHORT: dict[str, Any] = {"algorithms": ["ERM"], "trials": 2, "steps": 10, "evaluate_every": 5}


def invoke(*arguments: str) -> str:
    return " ".join(type_in("sweep", *arguments, code=0).stdout.split())


def files(out: Path) -> set[str]:
    return {path.name.rpartition("-")[0] for path in out.glob("kept/*/weights/*.safetensors")}


def launch_of(folder: Path) -> list[str]:
    """The words that launch the short sweep into a folder's `out`."""
    file = str(tiny_file(folder, **SHORT))
    return ["launch", file, "--out", str(folder / "out"), "--launcher", "debug", "--yes"]


def test_launch_status_and_clean(tmp_path: Path) -> None:
    launch, out = launch_of(tmp_path), tmp_path / "out"
    assert "without the weights" not in invoke(*launch, "--keep-weights", "train_val,last")
    assert files(out) == {"train_val", "last"}
    assert "Kept weights: 4 files, 0.0 MB." in invoke("status", str(out))
    invoke("clean", str(out), "--yes")
    assert files(out) == {"train_val", "last"}
    assert "4 files of kept weights" in invoke("clean", str(out), "--weights", "--yes")
    assert not files(out)
    assert "Kept weights" not in invoke("status", str(out))


def test_runs_that_ended_without_weights_are_counted_and_not_trained_again(tmp_path: Path) -> None:
    launch, out = launch_of(tmp_path), tmp_path / "out"
    invoke(*launch)
    ends = {path: path.stat().st_mtime_ns for path in out.glob("ended/*")}
    shown = invoke(*launch, "--keep-weights", "train_val")
    sentence = "Ended without the weights of train_val, and not trained again: 2 runs."
    assert f"{sentence} A launch into a new directory trains them" in shown
    assert {path: path.stat().st_mtime_ns for path in ends} == ends and not files(out)


class OfColumn(Rule):
    """Keeps the runs that have a value in the column that it is called after."""

    summary, needs = "mean over the training examples", "nothing"

    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        return records_on(runs[runs[self.name].notna()], "training_environments", "in")


def test_a_rule_of_ones_own_judges_a_run_alone_by_every_field_of_its_spec() -> None:
    specs = list(tiny(**SHORT).runs.values())
    for name in {field.name for field in fields(RunSpec)} - {"average", "adapt", "noise"}:
        assert OfColumn(name).judged(specs) == {spec.id for spec in specs}
        assert OfColumn(name).evidence_of(specs[0], ["a", "b"]) == [("a", "in"), ("b", "in")]
    with pytest.raises(UserError, match=r"rule state: KeyError: 'state'.*`judges_alone = False`"):
        OfColumn("state").judged(specs)
