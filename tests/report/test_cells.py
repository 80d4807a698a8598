from pathlib import Path

import pandas as pd
import pytest

from oodbench.errors import UserError
from oodbench.report.cells import COLUMNS, cells, on_tests, scores
from oodbench.results.read import read_results
from oodbench.selection.judge import judge
from tests.helpers.results.made import OneStep, spec


def test_a_row_for_each_value_of_a_cell(tmp_path: Path) -> None:
    made = OneStep(tmp_path)
    for label, value in (("ERM", 0.5), ("IRM", 0.75)):
        for trial in range(2):
            tests = value + trial / 8, value
            made.add(spec("D", label, "a+b", trial=trial), *tests, predictor={"causal_error": 0.25})
    made.add(spec("D", "IRM", "a+b", trial=2), state="planned")
    table = cells(judge(read_results(made.results), "train_val"))
    assert list(table) == COLUMNS and len(table) == 2 * 3 * 3
    of_irm = on_tests(table).query("label == 'IRM' and environment == 'a'")
    assert of_irm["value"].tolist()[:2] == [0.75, 0.875] and of_irm["higher"].all()
    assert of_irm["complete"].tolist() == [True, True, False]
    own = table[(table["environment"] == "") & table["complete"]]
    assert set(own["metric"]) == {"causal_error"} and set(own["value"]) == {0.25}
    assert not own["higher"].any() and len(scores(table)) == 2 * 2 * 2
    with pytest.raises(UserError, match="causal_error is a number of the predictor"):
        cells(judge(read_results(made.results)), "causal_error")


def test_a_metric_before_adaptation_is_shown_where_it_is_asked_for() -> None:
    table = pd.DataFrame({"environment": "a", "metric": ["accuracy", "accuracy (before)"]})
    assert on_tests(table)["metric"].tolist() == ["accuracy"]
    assert on_tests(table[1:])["metric"].tolist() == ["accuracy (before)"]


def test_a_row_that_does_not_adapt_has_no_value_before_adaptation(tmp_path: Path) -> None:
    made, before = OneStep(tmp_path), "accuracy (before)"
    made.add(spec("D", "ERM"), 0.5)
    made.add(spec("D", "ERM + T3A", adapt={"name": "T3A"}), 0.5, metric=before)
    table = cells(judge(read_results(made.results)), before).set_index("label")
    assert table["undefined"].to_dict() == {"ERM": "needs a row that adapts", "ERM + T3A": ""}
