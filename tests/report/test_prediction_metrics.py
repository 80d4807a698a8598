from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oodbench.errors import UserError
from oodbench.metrics import PredictionMetric, register
from oodbench.report.cells import with_prediction_metrics
from oodbench.report.html import contents
from oodbench.results.directory import Directory
from oodbench.results.predictions import Predictions
from oodbench.results.read import joined
from oodbench.selection import usual
from oodbench.selection.judge import choose, unchosen_predictions
from tests.helpers.commands import type_in
from tests.helpers.results.made import report
from tests.helpers.results.sweeps import DIGITS, outcome, tiny, trained

pytestmark = pytest.mark.slow

COLOURS: dict[str, Any] = {
    **{"datasets": [DIGITS], "algorithms": ["ERM"], "trials": 1},
    **{"steps": 10, "evaluate_every": 5},
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    """A trained sweep on a classification with its predictions."""
    return trained(tmp_path_factory.mktemp("kept"), tiny(**COLOURS), keep_predictions=True)


def test_recorded_accuracies_follow_from_predictions(kept: Directory) -> None:
    @register("again")
    class Again(PredictionMetric):
        def of_predictions(self, p: Predictions) -> float:
            return float(((p.logits[:, 0] > 0) == (p.targets > 0.5)).mean())

    wide = with_prediction_metrics(joined([kept.path]), None, ["again"]).records
    wide = wide.astype({"metric": object, "environment": object, "split": object, "id": object})
    table = wide.pivot_table("value", ["id", "step", "environment", "split"], "metric")
    both = table.dropna(subset=["again"])
    assert len(both) == 2 * 3
    assert both["again"].tolist() == pytest.approx(both["accuracy"].tolist(), abs=1e-3)


def test_keeping_changes_no_record(kept: Directory, tmp_path: Path) -> None:
    plain = trained(tmp_path, tiny(**COLOURS))
    assert outcome(plain) == outcome(kept)
    assert not list(tmp_path.glob("kept/*/predictions"))
    with pytest.raises(UserError, match="keeps no predictions"):
        with_prediction_metrics(joined([plain.path]), None, ["auroc"])


def test_a_sweep_may_select_by_environments_that_erm_infers(tmp_path: Path) -> None:
    """The table's rule, a page's, and one sentence where no predictions are kept."""
    plan = tiny(**COLOURS | {"algorithms": ["ERM", "IRM"], "holdout": 0.2})
    rule = ("--rule", "worst_inferred")
    trained(tmp_path / "kept", plan, keep_predictions=True)
    code, shown, _ = report("table", tmp_path / "kept", *rule)
    assert code == 0
    assert "Selection worst_inferred: the worse of ERM's mistakes" in " ".join(shown.split())
    frames = joined([tmp_path / "kept"])
    frames = replace(frames, runs=frames.runs.assign(selection="worst_inferred"))
    chosen = choose(frames)
    assert len(chosen) == 2 and chosen["score"].between(0, 1).all()
    assert "worst_inferred" in contents(frames)["rules"]
    trained(tmp_path / "not", plan)
    code, _, error = report("table", tmp_path / "not", *rule)
    assert code == 2 and "keeps no predictions of step" in error


def test_a_rule_may_judge_by_the_worst_group(kept: Directory) -> None:
    """On the command line, with a metric of kept predictions, and as the sweep's own rule."""
    rule = "train_val:worst_group_accuracy"
    for metric in ("macro_f1", "auroc", "calibration_error", "brier", "accuracy[0 to 4, colour 1]"):
        code, shown, _ = report("table", kept.path, "--rule", rule, "--metric", metric)
        wanted = f"Selection {rule}: worst_group_accuracy, mean"
        assert code == 0 and wanted in " ".join(shown.split())
    frames = joined([kept.path])
    named = replace(frames, runs=frames.runs.assign(selection=rule))
    assert usual(named) == rule
    chosen = choose(named)
    records = frames.records[frames.records["metric"] == "worst_group_accuracy"]
    own = records[(records["split"] == "out") & (records["environment"] != "0.9")]
    means = own.astype({"id": object}).groupby(["id", "step"])["value"].mean()
    assert chosen["score"].tolist() == pytest.approx([means.max()])


@pytest.mark.nightly
def test_predictions_that_a_table_needs_outlive_a_cleaning(tmp_path: Path) -> None:
    out = trained(tmp_path, tiny(**COLOURS), keep_predictions=True)
    table = ("table", out.path, "--metric", "worst_group_accuracy")
    shown = report(*table)
    assert shown[0] == 0 and "worst_group_accuracy (%)" in shown[1]
    spared = unchosen_predictions(out)
    assert {p.stem for p in spared} <= {"5", "10"} and len(spared) < 2
    type_in("sweep", "clean", out.path, "--yes", code=0)
    assert report(*table) == shown
