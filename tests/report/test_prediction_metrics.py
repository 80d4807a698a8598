import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from typer.testing import CliRunner

from oodbench.errors import UserError
from oodbench.report import cli as report
from oodbench.report.html.contents import contents
from oodbench.report.prediction_metrics import (
    auroc,
    calibration_error,
    macro_f1,
    probabilities,
    spare,
    with_metric,
    worst_group_accuracy,
)
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from oodbench.results.join import joined
from oodbench.results.predictions import Predictions
from oodbench.selection import choose, usual
from oodbench.sweep import cli as sweep
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings
from tests.helpers.sweeps import SPIRALS, outcome, tiny, tiny_file

SHORT = {"steps": 10, "evaluate_every": 5}


def predictions(logits: Any, targets: Any, kind: str = "multiclass") -> Predictions:
    array = np.array(logits, dtype=np.float16)
    return Predictions(kind, array, np.array(targets), np.zeros(len(array), dtype=bool))


def test_calibration_error_by_hand() -> None:
    def logit(p: float) -> list[float]:
        return [math.log(p / (1 - p)), 0.0]

    # confidence .9 four times, right three times; .6 twice, right twice
    p = predictions([*[logit(0.9)] * 4, *[logit(0.6)] * 2], [0, 0, 0, 1, 0, 0])
    assert calibration_error(p) == pytest.approx((4 * 0.15 + 2 * 0.4) / 6, abs=1e-3)
    nan = predictions([[math.nan, 1.0]] * 2, [1, 1])
    assert calibration_error(nan) == 1.0 and worst_group_accuracy(nan) == 0.0


def test_a_perfectly_calibrated_predictor_has_no_error() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 2, size=(40_000, 1))
    targets = rng.random(40_000) < probabilities(scores)[:, 1]
    p = Predictions("binary", scores, targets.astype(float), np.zeros(40_000, dtype=bool))
    assert calibration_error(p) < 0.01


def test_the_worst_group_is_the_worst_class() -> None:
    rng = np.random.default_rng(1)
    logits, targets = rng.normal(size=(60, 3)), rng.integers(3, size=60)
    p = predictions(logits, targets)
    guess = p.logits.argmax(axis=1)
    wanted = min(accuracy_score(targets[targets == c], guess[targets == c]) for c in range(3))
    assert worst_group_accuracy(p) == pytest.approx(wanted)
    binary = predictions([[1.0], [-1.0], [-1.0]], [1.0, 1.0, 0.0], "binary")
    assert worst_group_accuracy(binary) == 0.5


def test_macro_f1_and_auroc_are_scikit_learns() -> None:
    rng = np.random.default_rng(2)
    logits, targets = rng.normal(size=(80, 4)), rng.integers(4, size=80)
    p = predictions(logits, targets)
    share = probabilities(p.logits)
    assert macro_f1(p) == f1_score(targets, p.logits.argmax(axis=1), average="macro")
    assert auroc(p) == pytest.approx(roc_auc_score(targets, share, multi_class="ovr"))
    binary = predictions(rng.normal(size=(50, 1)), targets[:50] % 2, "binary")
    assert auroc(binary) == pytest.approx(roc_auc_score(binary.targets, binary.logits[:, 0]))


def test_classes_that_are_not_there_count_in_neither() -> None:
    p = predictions([[2.0, 1.0, 0.0], [0.0, 1.0, -1.0], [1.0, 0.0, -1.0]], [0, 1, 1])
    assert macro_f1(p) == pytest.approx((2 / 3 + 2 / 3) / 2) and auroc(p) == 0.75
    assert math.isnan(auroc(predictions([[1.0, 0.0]], [1])))


def test_predictions_that_are_nan_are_wrong_and_certain() -> None:
    p = predictions([[math.nan, 1.0], [0.0, 1.0]], [0, 1])
    assert auroc(p) == 0.0 and macro_f1(p) == pytest.approx(0.5)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A trained sweep on a classification with its predictions."""
    plan = tiny(datasets=["ColoredDigits"], algorithms=["ERM"], trials=1, **SHORT)
    results = Results(tmp_path_factory.mktemp("kept"))
    results.write_plan("tiny", {}, plan.runs)
    for run in plan.runs.values():
        assert execute(run, results.run(run.id), TrainSettings(keep_predictions=True))[0] == "done"
    return results


def test_recorded_accuracies_follow_from_the_predictions(kept: Results) -> None:
    frames = joined([kept.path])

    def accuracy(p: Predictions) -> float:
        return float(((p.logits[:, 0] > 0) == (p.targets > 0.5)).mean())

    chosen = choose(frames)
    wide = with_metric(frames, chosen, "again", accuracy).metrics
    wide = wide.astype({"metric": object, "environment": object, "split": object, "id": object})
    table = wide.pivot_table("value", ["id", "step", "environment", "split"], "metric")
    both = table.dropna(subset=["again"])
    assert len(both) == 2 * 3
    assert both["again"].tolist() == pytest.approx(both["accuracy"].tolist(), abs=1e-3)


def test_keeping_changes_no_record(kept: Results, tmp_path: Path) -> None:
    plan = tiny(datasets=["ColoredDigits"], algorithms=["ERM"], trials=1, **SHORT)
    plain = Results(tmp_path)
    plain.write_plan("tiny", {}, plan.runs)
    for run in plan.runs.values():
        execute(run, plain.run(run.id), TrainSettings())
    assert outcome(plain) == outcome(kept)
    assert not list(tmp_path.glob("runs/*/predictions"))
    with pytest.raises(UserError, match="keeps no predictions"):
        with_metric(joined([plain.path]), choose(load_frames(plain)), "m", calibration_error)


def test_a_page_has_a_metric_that_some_runs_recorded_and_others_kept(tmp_path: Path) -> None:
    plan = tiny(datasets=["ColoredDigits", SPIRALS], algorithms=["ERM"], trials=1, **SHORT)
    results = Results(tmp_path)
    results.write_plan("tiny", {}, plan.runs)
    for run in plan.runs.values():
        assert execute(run, results.run(run.id), TrainSettings(keep_predictions=True))[0] == "done"
    recorded = joined([tmp_path]).metrics
    recorded = recorded.loc[recorded["metric"] == "worst_group_accuracy", "id"]
    assert recorded.nunique() == 1
    tree = contents([tmp_path], metric="worst_group_accuracy")
    assert {d["metric"] for d in tree["datasets"]} == {"worst_group_accuracy"}


def test_a_rule_may_judge_by_the_worst_group(kept: Results) -> None:
    """On the command line, with a metric of kept predictions, and as the sweep's own rule."""
    out, rule = str(kept.path), "train_val:worst_group_accuracy"
    for metric in ("macro_f1", "auroc", "calibration_error", "brier", "accuracy[0 to 4, colour 1]"):
        options = ["--selection", rule, "--metric", metric]
        shown = CliRunner().invoke(report.app, ["table", out, *options])
        assert shown.exit_code == 0 and f"Selection {rule}: worst_group_accuracy, mean" in (
            " ".join(shown.stdout.split())
        )
    frames = joined([kept.path])
    named = replace(frames, runs=frames.runs.assign(selection=rule))
    assert usual(named) == rule
    chosen = choose(named)
    records = frames.metrics[frames.metrics["metric"] == "worst_group_accuracy"]
    own = records[(records["split"] == "out") & (records["environment"] != "0.9")]
    means = own.astype({"id": object}).groupby(["id", "step"])["value"].mean()
    assert chosen["score"].tolist() == pytest.approx([means.max()])


@pytest.mark.slow
def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner().invoke
    changes = {"datasets": ["ColoredDigits"], "algorithms": ["ERM"], "trials": 1}
    file = str(tiny_file(tmp_path, **changes, **SHORT))
    out = tmp_path / "out"
    options = ["--out", str(out), "--launcher", "debug", "--keep-predictions", "--yes"]
    assert run(sweep.app, ["launch", file, *options]).exit_code == 0
    shown = run(report.app, ["table", str(out), "--metric", "worst_group_accuracy"])
    assert shown.exit_code == 0 and "worst_group_accuracy (%)" in shown.stdout
    spared = spare(Results(out))
    assert {p.stem for p in spared} <= {"5", "10"} and len(spared) < 2
    assert run(sweep.app, ["clean", file, "--out", str(out), "--yes"]).exit_code == 0
    (tmp_path / "my_metric.py").write_text(
        "from oodbench.report.prediction_metrics import register_metric\n"
        "@register_metric('mean_output', higher_is_better=True)\n"
        "def mean_output(p):\n"
        "    return float(p.logits.mean())\n"
    )
    monkeypatch.chdir(tmp_path)
    flags = ["--metric", "mean_output", "--plugin", "my_metric"]
    own = run(report.app, ["table", str(out), *flags])
    assert own.exit_code == 0 and "mean_output: higher is better" in " ".join(own.stdout.split())
    for command in (["compare", str(out)], ["why", str(out)]):
        found = run(report.app, [*command, *flags])
        assert found.exit_code == 0, found.output
        assert "mean_output" in found.stdout
        assert "unknown metric" in run(report.app, [*command, "--metric", "mean_outptu"]).stderr
    value = run(report.app, ["why", str(out), *flags]).stdout.splitlines()[-1]
    text = own.stdout.split("ERM", 1)[1].split()[0]
    assert value.startswith(f"mean_output: {text}"), (value, own.stdout)
    tree = contents([out], metric="worst_group_accuracy")
    assert [d["metric"] for d in tree["datasets"]] == ["worst_group_accuracy"]
    told = [t for t in tree["rules"]["train_val"]["board"]["text"] if t]
    assert told and told == [t for t in told if t in shown.stdout]
    with pytest.raises(UserError, match="unknown metric 'worst_grup'"):
        contents([out], metric="worst_grup")
    page = ["html", str(out), "--out", str(tmp_path / "page.html"), *flags]
    assert run(report.app, [*page, "--plugin", "my_metric"]).exit_code == 0
    assert "no_metric" in run(report.app, [*page, "--plugin", "no_metric"]).stderr
    again = run(report.app, ["table", str(out), "--metric", "worst_group_accuracy"])
    assert again.stdout == shown.stdout
    wrong = run(report.app, ["table", str(out), "--metric", "worst_grup"])
    assert wrong.exit_code == 2 and "unknown metric 'worst_grup'" in wrong.stderr
