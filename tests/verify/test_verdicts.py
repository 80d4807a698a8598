import math
from statistics import NormalDist
from typing import Any

import pytest

from oodbench.verify.measured import Measured
from oodbench.verify.targets import ErrorKind, Experiment, Target
from oodbench.verify.verdicts import Comparison, verdict_sheet


def against(values: list[float], **fields: object) -> Comparison:
    usual = {"source": "s", "row": "r", "value": 1.0}
    return Comparison(Target.model_validate(usual | fields), tuple(values))


def test_z_is_the_difference_over_the_root_of_the_summed_squares() -> None:
    found = against([1.0, 2.0, 3.0], error=0.6, error_is="population std", trials=10)
    assert found.difference == pytest.approx(1.0)
    assert found.stderr == pytest.approx(1 / math.sqrt(3))
    assert found.z == pytest.approx(1 / math.sqrt(1 / 3 + 0.2**2))
    assert (found.off, found.missed) == (False, False)


@pytest.mark.parametrize(("shift", "off"), [(2.9, False), (3.1, True), (-3.1, True)])
def test_three_standard_errors_are_the_limit(shift: float, off: bool) -> None:
    assert against([1 + shift] * 2, error=1.0, error_is="stderr").off is off


def test_the_sources_one_run_varies_as_ours_do() -> None:
    found = against([1.0, 2.0, 3.0], error_is="one run")
    assert found.z == pytest.approx(1 / math.sqrt(1 + 1 / 3))
    assert math.isnan(against([2.0], error_is="one run").z)


@pytest.mark.parametrize(("different", "p"), [(0, 1), (1, 10 / 210), (2, 90 / (210 * 209))])
def test_beside_a_constant_those_of_ours_that_differ_are_counted(different: int, p: float) -> None:
    values = [1.0] * (10 - different) + [3.0] * different
    found = against(values, error_is="constant", trials=200)
    assert found.z == pytest.approx(NormalDist().inv_cdf(1 - p / 2))
    assert found.off is (different == 2)
    below = against([1.0] * 9 + [0.5], error_is="constant", trials=200)
    assert below.z == pytest.approx(-NormalDist().inv_cdf(1 - 10 / 420))


def test_a_difference_without_any_spread_has_no_verdict() -> None:
    assert against([1.5, 1.5], error=0.0, error_is="std", trials=7).off is None


def test_one_trial_has_the_sources_spread() -> None:
    found = against([2.0], error=0.6, error_is="population std", trials=10)
    spread = 0.6 * math.sqrt(10 / 9)
    assert found.z == pytest.approx(1 / math.hypot(spread, spread / math.sqrt(10)))
    assert against([2.0]).off is None
    assert against([2.0]).verdict == "no verdict"


@pytest.mark.parametrize(
    ("kind", "value", "off"),
    [
        ("tolerance", 1.019, False),
        ("tolerance", 1.021, True),
        ("tolerance", 0.979, True),
        ("at least", 0.99, True),
        ("at least", 1.5, False),
        ("at most", 1.01, True),
        ("at most", -3.0, False),
        ("tolerance", math.nan, True),
        ("at least", math.nan, True),
    ],
)
def test_exact_values_and_bounds(kind: ErrorKind, value: float, off: bool) -> None:
    found = against([value] * 2, error=0.02, error_is=kind)
    assert found.off is off
    assert math.isnan(found.z)


def test_an_exact_value_of_certain_trials_says_nothing_of_others() -> None:
    values = {"error": 0.02, "error_is": "tolerance", "trials": 2}
    assert against([1.5] * 2, **values).off is True
    assert against([1.5] * 3, **values).off is None
    assert against([1.01] * 2, **values).off is False


@pytest.mark.parametrize(
    ("kind", "trials"),
    [
        *(
            (kind, None)
            for kind in ("stderr", "one run", "none", "tolerance", "at least", "at most")
        ),
        *((kind, 5) for kind in ("std", "constant", "tolerance")),
    ],
)
def test_a_diverged_trial_is_a_miss(kind: ErrorKind, trials: int | None) -> None:
    fields: dict[str, Any] = {"error": 0.1, "error_is": kind, "trials": trials}
    for values in ([math.nan, 1.0], [math.nan]):
        found = against(values, **fields)
        assert found.missed
        assert found.verdict == f"MISSED, 1 of {len(values)} trials diverged"
        assert math.isnan(found.z)
    known = against([math.nan], **fields, reproducible=False, note="why")
    assert not known.missed
    assert known.verdict == "off, see the note, 1 of 1 trials diverged"


def test_a_reproducible_target_without_a_value_is_missed() -> None:
    assert against([]).missed
    assert against([]).verdict == "not run"
    assert not against([], reproducible=False, note="no GPU").missed


def test_the_frame_has_a_row_for_each_target() -> None:
    """What the sheet says in words is that of docs/papers/, which test_pages compares."""
    targets = tuple(Target(source="A", row=row, value=1.0) for row in ("r", "s"))
    experiment = Experiment(name="n", title="T", paper="p", about="a", targets=targets)
    frame = verdict_sheet(experiment, Measured(values={targets[0].key: [2.0, 1.0]})).frame
    assert frame["row"].tolist() == ["r", "s"] and frame["n"].tolist() == [2, 0]
    assert [frame[name][0] for name in ("ours", "ours_stderr", "difference")] == [1.5, 0.5, 0.5]
    assert frame["verdict"].tolist() == ["agrees", "not run"]
