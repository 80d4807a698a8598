import re

import numpy as np
import pandas as pd
import pytest
from torch import nn

from oodbench.algorithms import Algorithm, CommonHparams
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.errors import PLUGIN_HINT, described, plugin_hint, unknown, wrong_result


@pytest.mark.parametrize(
    ("name", "known", "sentence"),
    [
        ("IRN", ["ERM", "IRM", "DANN"], "unknown algorithm 'IRN'; did you mean IRM?"),
        ("irm", ["ERM", "IRM"], "unknown algorithm 'irm'; did you mean IRM or ERM?"),
        ("zzz", ["ERM", "IRM"], "unknown algorithm 'zzz'; known: ERM, IRM"),
        ("zzz", ["ERM", "a, b"], "unknown algorithm 'zzz'; known: ERM, 'a, b'"),
        ("learning_rate", ["x", "lr"], "unknown algorithm 'learning_rate'; did you mean lr?"),
        ("zzz", [], "unknown algorithm 'zzz'; there are none"),
    ],
)
def test_an_unknown_name_is_told_with_the_next(name: str, known: list[str], sentence: str) -> None:
    assert str(unknown("algorithm", name, known)) == sentence


def test_the_place_is_named_a_long_list_cut_and_a_number_told_from_a_text() -> None:
    message = str(unknown("name", "??", range(100, 130), "the sweep x.yaml"))
    assert message.startswith("unknown name '??' in the sweep x.yaml; known: 100, 101,")
    assert message.endswith("123, ...")
    assert len(str(unknown("name", "y" * 5000, range(10**4)))) < 240
    message = str(unknown("environment", 0.9, ["0.1", "0.9"], "ColoredDigits"))
    assert message == "unknown environment 0.9 in ColoredDigits; did you mean the text '0.9'?"


def test_an_array_that_a_hook_returns_is_told_by_its_shape() -> None:
    message = str(wrong_result("score", "the rule mine", "shape (2, 90)", np.zeros((2, 90, 3))))
    assert message.endswith("must return shape (2, 90), not a ndarray of the shape (2, 90, 3)")


def test_a_line_of_compiled_code_is_not_the_users() -> None:
    with pytest.raises(TypeError) as told:
        pd.Series([[]]).unique()  # in Cython, whose files have no folder
    assert re.search(r"\(tests/ground/test_errors\.py:\d+, in ", described(told.value))


@pytest.mark.parametrize(
    ("expression", "near"),
    [
        ("self.hparams.optimiser", "optimizer"),
        ("self.classifier", "network.classifier"),
        ("self.optimizer", "optimizers or optimizer_of or hparams.optimizer"),
        ("batch.ys", ""),
        ("batch.environment", "environments"),
        ("re.serach", "search"),
    ],
)
def test_an_attribute_that_is_not_there_is_told_with_the_next(expression: str, near: str) -> None:
    problem, batch = tiny_problem(TASKS["binary"]), tiny_batch(TASKS["binary"])
    values = {"self": tiny_algorithm(Algorithm, problem), "batch": batch, "re": re}
    with pytest.raises(AttributeError) as told:
        eval(expression, values)
    meant = f"; did you mean {near}?" if near else ""
    assert re.search(rf"attribute '\w+'{re.escape(meant)} \(", described(told.value))


def test_an_attribute_of_a_module_without_its_init_is_told() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            pass

    with pytest.raises(AttributeError) as told:
        _ = Bare().layer
    assert "'Bare' object has no attribute 'layer'" in described(told.value)


def test_a_hyperparameter_by_subscript_is_told_as_an_attribute() -> None:
    with pytest.raises(TypeError, match=r"^write `hparams\.lr`: hyperparameters are attributes$"):
        CommonHparams()["lr"]
    with pytest.raises(TypeError, match=r"^write `hparams\.lr`: "):
        dict(CommonHparams())  # type: ignore[call-overload]


def test_a_class_of_a_notebook_is_no_plug_in_to_name() -> None:
    assert plugin_hint(["saved_Mine"]) == PLUGIN_HINT
    assert plugin_hint(["saved_Mine", "rules"]).endswith("rules, in Python `import rules`)")
