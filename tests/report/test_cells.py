from pathlib import Path

import pandas as pd
import pytest

from oodbench.errors import UserError
from oodbench.report.cells import cells, on_tests
from oodbench.results.read import read_results
from oodbench.selection.judge import judge
from tests.helpers.results.made import OneStep, spec


def test_a_number_of_the_predictor_is_no_metric_of_a_table(tmp_path: Path) -> None:
    made = OneStep(tmp_path)
    made.add(spec("D", "ERM"), 0.5, predictor={"causal_error": 0.25})
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
