"""Ensembles over a row's trials, and columns of further metrics, from kept predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from oodbench.errors import UserError
from oodbench.report.ensemble import ensembles
from oodbench.report.formats import FORMATS, sheet_text
from oodbench.report.further_metrics import with_further_metrics
from oodbench.report.leaderboard import leaderboard
from oodbench.report.prediction_metrics import with_prediction_metric
from oodbench.report.sheet import sheet
from oodbench.results.directory import Results
from oodbench.results.frames import only
from oodbench.results.join import joined
from oodbench.results.predictions import read_predictions
from oodbench.selection import candidates, choose
from tests.helpers.sweeps import SPIRALS, tiny, trained

RUN: dict[str, Any] = {"trials": 3, "hparam_draws": 2, "steps": 20, "evaluate_every": 10}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A sweep on a table of three classes, on made data and on a regression, with its predictions."""
    folder = tmp_path_factory.mktemp("ensemble")
    rng = np.random.default_rng(0)
    rows = ["a,b,target,environment"]
    for environment in ("x", "y", "z"):
        for i in range(60):
            a, b = rng.normal(size=2)
            rows.append(f"{a + 0.5 * (i % 3)},{b},{'uvw'[i % 3]},{environment}")
    (folder / "table.csv").write_text("\n".join(rows))
    table = {"name": "Table", "file": str(folder / "table.csv"), "label": "table"}
    datasets = [table, SPIRALS | {"label": "made"}, {"name": "LinearSEM", "num_examples": 40}]
    plan = tiny(**RUN, datasets=datasets, algorithms=["ERM", "VREx"])
    return trained(folder / "out", plan, keep_predictions=True)


def shares(kept: Results) -> tuple[list[Any], Any]:
    """By hand: ERM's probabilities on the table in each trial, and the targets."""
    chosen = choose(joined([kept.path]), "train_val")
    cells = chosen[(chosen["label"] == "ERM") & (chosen["dataset_label"] == "table")]
    of_runs = [
        read_predictions(kept.run(i), s)["z"]
        for i, s in zip(cells["id"], cells["step"], strict=True)
    ]
    assert len(of_runs) == 3
    return [softmax(p.logits.astype(float), axis=1) for p in of_runs], of_runs[0].targets


def test_an_ensemble_is_the_mean_of_the_trials_probabilities(kept: Results) -> None:
    made = ensembles(joined([kept.path]), "train_val")
    (row,) = made.frame[made.frame["label"] == "ERM"].to_dict("records")
    of_runs, targets = shares(kept)
    singles = [(p.argmax(1) == targets).mean() for p in of_runs]
    assert row["mean"] == (np.mean(of_runs, axis=0).argmax(1) == targets).mean()
    assert row["single"] == pytest.approx(np.mean(singles))
    assert row["single_stderr"] == pytest.approx(np.std(singles, ddof=1) / 3**0.5)
    assert (row["dataset"], row["environment"], row["members"]) == ("table", "z", 3)
    other = ensembles(joined([kept.path]), "train_val", "auroc")
    assert other.frame["metric"].unique().tolist() == ["auroc"]
    for format_ in FORMATS:
        assert sheet_text(other, format_)


def test_an_ensemble_over_draws_has_the_runs_of_a_trial(kept: Results) -> None:
    frames = joined([kept.path])
    made = ensembles(frames, "train_val", "accuracy", "draws").frame
    best = candidates(frames, "train_val").drop_duplicates("id")
    values = []
    for trial in range(3):
        of_trial = best[(best["dataset_label"] == "made") & (best["label"] == "ERM")]
        of_trial = of_trial[of_trial["trial"] == trial]
        of_runs = [
            read_predictions(kept.run(i), s)["test"]
            for i, s in zip(of_trial["id"], of_trial["step"], strict=True)
        ]
        logits = [p.logits.astype(float)[~p.out, 0] for p in of_runs]
        targets = of_runs[0].targets[~of_runs[0].out]
        values.append(((np.mean([expit(x) for x in logits], axis=0) > 0.5) == targets).mean())
    (row,) = made[(made["dataset"] == "made") & (made["label"] == "ERM")].to_dict("records")
    assert row["mean"] == pytest.approx(np.mean(values)) and (row["n"], row["members"]) == (3, 2)
    assert row["stderr"] == pytest.approx(np.std(values, ddof=1) / 3**0.5)
    shown = leaderboard(only(frames, ["made"])).frame.set_index(["label", "environment"])
    assert row["single"] == pytest.approx(shown.loc[("ERM", "test"), "mean"], abs=1e-3)


def test_what_has_no_ensemble_is_named_with_the_reason(kept: Results) -> None:
    (note,) = [n for n in ensembles(joined([kept.path])).notes if n.startswith("No ensemble")]
    assert "ERM on made (test test): its trials do not share their test examples" in note
    assert "predictions of a regression are no probabilities" in note


@pytest.mark.parametrize(
    ("keys", "rule", "metric", "message"),
    [
        ({}, "oracle", None, "oracle sees test examples"),
        ({}, None, "mse", "unknown metric of ensembles 'mse'.* calibration_error"),
        ({"datasets": [SPIRALS]}, None, None, "no row has an ensemble.* do not share"),
        ({"datasets": [SPIRALS], "trials": 1}, None, None, "no row has an ensemble.* one trial"),
    ],
)
def test_an_ensemble_that_cannot_be_is_refused(
    keys: dict[str, Any],
    rule: str | None,
    metric: str | None,
    message: str,
    kept: Results,
    tmp_path: Path,
) -> None:
    results = kept
    if keys:
        plan = tiny(**RUN | {"algorithms": ["ERM"], "steps": 2, "evaluate_every": 2} | keys)
        results = trained(tmp_path, plan, keep_predictions=True)
    with pytest.raises(UserError, match=message):
        ensembles(joined([results.path]), rule, metric)


def test_a_further_metric_is_a_column_of_the_same_runs(kept: Results) -> None:
    frames = with_prediction_metric(joined([kept.path]), [None], "calibration_error")
    shown = with_further_metrics(leaderboard(frames), frames, None, ["calibration_error", "loss"])
    alone = leaderboard(only(frames, ["table"]), metric="loss").frame
    mean = alone[(alone["label"] == "ERM") & (alone["environment"] == "mean")]
    wide = shown.frame[(shown.frame["label"] == "ERM") & (shown.frame["environment"] == "mean")]
    wide = wide[wide["dataset"] == "table"]
    assert wide["loss"].tolist() == mean["mean"].tolist()
    assert wide["loss_stderr"].tolist() == mean["stderr"].tolist()
    by_title = {block.title.partition(":")[0]: block for block in sheet(shown).blocks[:3]}
    assert by_title["table"].header[-3:] == ["calibration_error", "loss", "n"]
    (sem,) = [block for title, block in by_title.items() if title.startswith("LinearSEM")]
    assert sem.header == ["algorithm", "5", "n"]  # a regression has neither
    with pytest.raises(UserError, match=r"unknown metric 'ece' .* calibration_error"):
        with_further_metrics(shown, frames, None, ["ece"])
