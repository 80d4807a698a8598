"""A metric without a value on an environment is undefined there, and counts nowhere."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oodbench.report.cells import cells, scores, with_prediction_metrics
from oodbench.report.comparison import comparison
from oodbench.report.tables import FORMATS, Sheet
from oodbench.report.tables.leaderboard import leaderboard
from oodbench.report.tables.sheet import sheet
from oodbench.report.why import why
from oodbench.results.read import joined, read_results
from oodbench.selection.judge import judge
from tests.helpers.results.made import OneStep, spec
from tests.helpers.results.sweeps import tiny, trained

METRIC, NAN = "accuracy", math.nan
WHY = "needs a finite value"


def made(path: Path, rows: dict[str, dict[str, float]], **losses: float) -> OneStep:
    """Two trials of each row, with a value of the metric on each environment."""
    one = OneStep(path)
    for label, values in rows.items():
        for test, value in values.items():
            for trial in range(2):
                run, loss = spec("D", label, test, trial=trial), losses.get(label, 0.5)
                one.add(run, value + 0.01 * trial, metric=METRIC, loss=loss)
    return one


def shown(sheet: Sheet) -> dict[str, dict[str, str]]:
    header = sheet.blocks[0].header
    return {row[0]: dict(zip(header, row, strict=True)) for row in sheet.blocks[0].rows}


ROWS = {"ERM": {"t": 0.5, "u": NAN}, "IRM": {"t": 0.6, "u": NAN}, "VREx": {"t": 0.4, "u": NAN}}


def test_an_environment_without_a_value_leaves_every_mean_rank_and_count(tmp_path: Path) -> None:
    tables = joined([made(tmp_path, ROWS).results.path])
    compared = comparison(tables, "ERM")
    first = shown(compared)
    assert {row["u"] for row in first.values()} == {"undefined"}
    assert first["IRM"]["mean"] == first["IRM"]["t"] and list(first) == ["IRM", "ERM", "VREx"]
    assert {row["n"] for row in first.values()} == {"2"}
    gains = compared.frame.set_index("label")
    assert set(gains["undefined"]) == {WHY}
    assert [*gains.loc["VREx", ["wins", "ties", "losses", "pairs", "planned"]]] == [0, 0, 2, 2, 2]
    assert set(scores(cells(judge(tables)))["environment"]) == {"t"}
    for name, render in FORMATS.items():
        text = " ".join(render(sheet(leaderboard(tables))).split())
        assert WHY in text and ("undefined" in text or name == "csv")
    objects = json.loads(FORMATS["json"](sheet(leaderboard(tables))))
    (entry,) = [e for e in objects if (e["label"], e["environment"]) == ("ERM", "u")]
    assert (entry["mean"], entry["n"], entry["defined"], entry["undefined"]) == (None, 2, 0, WHY)


def test_a_row_that_alone_lacks_a_value_has_no_mean_and_no_rank(tmp_path: Path) -> None:
    rows = ROWS | {"ERM": {"t": 0.5, "u": 0.3}, "VREx": {"t": 0.9, "u": 0.1}}
    compared = comparison(joined([made(tmp_path, rows).results.path]), "ERM")
    first = shown(compared)
    assert first["IRM"]["mean"] == first["IRM"]["u"] == "undefined"
    assert list(first) == ["VREx", "ERM", "IRM"] and compared.blocks[0].ranked == 2
    gain = compared.frame.set_index("label").loc["IRM"]
    assert gain["wins"] == gain["pairs"] == 2 and gain["planned"] == 4
    assert {**compared.frame.set_index("label")["undefined"]} == {"IRM": WHY, "VREx": ""}
    assert f",{WHY}" in FORMATS["csv"](compared)


def test_a_diverged_row_and_a_missing_run_are_not_undefined(tmp_path: Path) -> None:
    rows = ROWS | {"ERM": {"t": 0.5, "u": 0.3}, "VREx": {"t": 0.9, "u": 0.1}}
    one = made(tmp_path, rows, IRM=NAN)
    one.add(spec("D", "GroupDRO", "t"), state="planned")
    compared = comparison(read_results(one.results), "ERM")
    first = shown(compared)
    assert first["IRM"]["u"] == "nan" and first["GroupDRO"]["t"] == "-"
    assert compared.frame.set_index("label").loc["IRM", "losses"] == 2
    assert not any("Undefined" in str(note) for note in compared.all_notes)
    assert "undefined" not in compared.frame


def test_all_values_may_be_undefined(tmp_path: Path) -> None:
    rows = {"ERM": {"t": NAN}, "IRM": {"t": NAN}}
    tables = joined([made(tmp_path, rows).results.path])
    compared = comparison(tables, "ERM")
    assert shown(compared)["IRM"]["t"] == "undefined" and compared.frame.empty
    cell = why(tables, label="IRM")
    assert cell.runs["undefined"].all() and not len(cell.of_trials("value"))


def test_a_dataset_without_a_value_is_in_no_mean_over_datasets(tmp_path: Path) -> None:
    one = made(tmp_path, {"ERM": {"t": 0.5}, "IRM": {"t": 0.6}})
    for label in ("ERM", "IRM"):
        for trial in range(2):
            one.add(spec("E", label, "t", trial=trial), NAN, metric=METRIC, loss=0.5)
    over = sheet(one.leaderboard()).blocks[-1]
    wanted = [("IRM", "undefined", "1.00"), ("ERM", "undefined", "2.00")]
    assert [(row[0], row[2], row[-1]) for row in over.rows] == wanted


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tables with the predictions of runs on three sites, of which one has a single class."""
    folder, rng = tmp_path_factory.mktemp("site"), np.random.default_rng(0)
    a = rng.normal(size=(3, 60)).round(3)
    y = np.where(a + rng.normal(size=a.shape) > 0, "yes", "no")
    y[2] = "no"
    columns = {"a": a.ravel(), "y": y.ravel(), "site": np.repeat(["A", "B", "C"], 60)}
    pd.DataFrame(columns).to_csv(folder / "one.csv", index=False)
    data = {"name": "Table", "file": str(folder / "one.csv"), "target": "y", "environment": "site"}
    plan = tiny(datasets=[data], algorithms=["ERM", "VREx"], trials=1, test_environments="each")
    return joined([trained(folder / "out", plan, keep_predictions=True).path])


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["auroc", "auprc"])
def test_a_metric_of_predictions_is_undefined_on_one_class(site: Any, metric: str) -> None:
    tables = with_prediction_metrics(site, None, [metric])
    first = shown(sheet(leaderboard(tables, metric=metric)))
    assert {row["C"] for row in first.values()} == {"undefined"}
    assert "undefined" not in {row[c] for row in first.values() for c in ("A", "B", "mean")}
    beside = shown(sheet(leaderboard(tables, also=[metric])))
    assert all(f"{metric} (%)" in row for row in beside.values())


@pytest.mark.parametrize("metric", ["auroc", "worst_group_accuracy", "mse", "acuracy"])
def test_a_plan_refuses_selection_by_what_runs_do_not_record(metric: str) -> None:
    data = [{"name": "Spirals"}]
    assert tiny(datasets=data, selection="train_val:loss").runs
    with pytest.raises(ValueError, match=rf"'{metric}' in .* do not record it; .*accuracy"):
        tiny(datasets=data, selection=f"train_val:{metric}")
