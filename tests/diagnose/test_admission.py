"""The conditions of admission, each on both sides of its limit, and the figures that they are judged by."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oodbench.diagnose.admission import Figures, checks, figures, figures_of_results
from oodbench.errors import UserError
from oodbench.results.read import read_results
from oodbench.results.tables import only
from tests.helpers.results.made import Curve, Made

GOOD = Figures(
    metric="accuracy",
    higher_is_better=True,
    inside={"ERM": (0.9, 0.01), "Forest": (0.905, 0.01)},
    outside={"ERM": (0.6, 0.01), "Forest": (0.58, 0.01)},
    ceilings={"ceiling": (0.7, 0.01), "Forest ceiling": (0.72, 0.01)},
    late_gain=(0.002, 0.002),
    tied=0.1,
    rows=30,
    equal=0.1,
    half_width=0.03,
)
LOSS = replace(
    GOOD,
    metric="mse",
    higher_is_better=False,
    inside={"ERM": (2.0, 0.1), "Forest": (1.95, 0.1)},
    outside={"ERM": (4.0, 0.1), "Forest": (4.1, 0.1)},
    ceilings={"ceiling": (3.0, 0.1)},
    half_width=0.04,
)


@pytest.mark.parametrize(
    ("figures", "broken"),
    [
        (replace(GOOD, inside={"ERM": (0.9, 0.01), "Forest": (0.92, 0.01)}), "ERM in distribution"),
        (replace(GOOD, late_gain=(0.02, 0.005)), "its gain"),
        (replace(GOOD, ceilings={"ceiling": (0.67, 0.01)}), "head-room"),
        (replace(GOOD, outside={"ERM": (0.6, 0.01), "Forest": (0.8, 0.01)}), "the best row"),
        (replace(GOOD, tied=0.2), "choices by ties"),
        (replace(GOOD, equal=0.11), "rows equal to ERM"),
        (replace(GOOD, half_width=0.031), "half-width of gains"),
        (replace(LOSS, half_width=0.081), "half-width of gains"),
        (replace(LOSS, inside={"ERM": (2.0, 0.1), "Forest": (1.9, 0.1)}), "ERM in distribution"),
        (replace(LOSS, ceilings={"ceiling": (3.5, 0.1)}), "head-room"),
        (replace(LOSS, outside={"ERM": (4.0, 0.1), "Forest": (2.0, 0.1)}), "the best row"),
    ],
)
def test_each_condition_is_broken_alone(figures: Figures, broken: str) -> None:
    (check,) = [check for check in checks(figures) if not check.holds]
    assert check.what.startswith(broken)


def test_what_cannot_be_measured_is_left_out_or_open() -> None:
    found = checks(replace(GOOD, inside={}, late_gain=None, ceilings={}, rows=0))
    assert {c.what: c.holds for c in found} == {"head-room": None, "choices by ties": True}


UNKNOWN = {"ERM": (np.nan, 0.0), "Forest": (0.9, 0.0)}


@pytest.mark.parametrize(
    ("figures", "found"),
    [
        (replace(GOOD, late_gain=(np.nan, 0.1)), {"its gain at the end": "undefined ± 10"}),
        (replace(GOOD, late_gain=(0.01, np.nan)), {"its gain at the end": "+1 ± undefined"}),
        (replace(LOSS, half_width=np.nan), {"half-width of gains": "undefined"}),
        (replace(GOOD, inside=UNKNOWN), {"ERM in distribution": "undefined, Forest 90"}),
        (
            replace(GOOD, outside={"ERM": (np.nan, 0.0)}),
            {"head-room": "undefined", "the best row": "ERM undefined, ceiling 72"},
        ),
        (replace(GOOD, ceilings={"ceiling": (np.nan, 0.0), "Forest ceiling": (0.72, 0.01)}), {}),
    ],
)
def test_what_is_undefined_is_said_and_neither_holds_nor_is_broken(
    figures: Figures, found: dict[str, str]
) -> None:
    assert {c.what: c.found for c in checks(figures) if not c.holds} == found
    assert {c.holds for c in checks(figures)} == ({True, None} if found else {True})


def test_results_of_an_erm_that_diverged_are_undefined(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for trial in range(3):
        made.add("D", "ERM", ("c",), trial, curve(0.9, np.nan), state="diverged")
        made.add("D", "IRM", ("c",), trial, curve(0.9, 0.6))
        made.add("D", "ceiling", ("c",), trial, curve(0.9, 0.7), ceiling=True)
    found = checks(figures_of_results(read_results(made.results, made.runs), "D"))
    is_open = [c.what for c in found if c.holds is None]
    assert is_open == ["head-room", "half-width of gains"]


def curve(inside: float, outside: float, late: float = 0.0) -> Curve:
    """The scores of a run on environments a and b, and on c, which rise by `late` after step 75."""
    return lambda environment, split, step: (
        (outside if environment == "c" else inside) + (late if step > 75 else 0.0)
    )


def test_figures_are_those_of_the_chosen_runs(tmp_path: Path) -> None:
    made, steps = Made(tmp_path), (25, 50, 75, 100)
    for trial in (0, 1, 2):
        tied = 0.9 if trial == 0 else 0.7  # both draws of trial 0 are best
        made.add("D", "ERM", ("c",), trial, curve(0.9, 0.5, 0.01 * trial), draw=0, steps=steps)
        made.add("D", "ERM", ("c",), trial, curve(tied, 0.9), draw=1, steps=steps)
        made.add("D", "Forest", ("c",), trial, curve(0.8, 0.6), steps=steps)
    top = {"ceiling": (0.95, 0.0)}
    found = figures(read_results(made.results, made.runs), top, "accuracy", True)
    assert found.inside["ERM"][0] == pytest.approx((0.9 + 0.91 + 0.92) / 3)
    assert found.outside["ERM"][0] == pytest.approx((0.7 + 0.51 + 0.52) / 3)
    assert found.inside["Forest"][0] == pytest.approx(0.8)
    assert found.late_gain is not None and found.late_gain[0] == pytest.approx(0.01)
    assert found.tied == pytest.approx(1 / 3) and found.ceiling == (0.95, 0.0)


def test_figures_of_results_are_those_of_all_their_rows(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for trial in range(4):
        noise = 0.001 * trial
        made.add("D", "ERM", ("c",), trial, curve(0.9, 0.5 + noise), draw=0)
        made.add("D", "ERM", ("c",), trial, curve(0.8, 0.9), draw=1)
        for draw in (0, 1):  # its draws tie
            made.add("D", "IRM", ("c",), trial, curve(0.9, 0.5 + noise), draw=draw)
        made.add("D", "VREx", ("c",), trial, curve(0.9, 0.6 + noise * (-1) ** trial), draw=0)
        made.add("D", "Forest", ("c",), trial, curve(0.95, 0.55), reference=True)
        made.add("D", "ceiling", ("c",), trial, curve(0.9, 0.7), ceiling=True)
        made.add("D", "Forest ceiling", ("c",), trial, curve(0.9, 0.8), ceiling=True)
        made.add("E", "ERM", ("c",), trial, curve(0.9, 0.1))
    frames = read_results(made.results, made.runs)
    found = figures_of_results(frames, "D")
    assert found.rows == 2 and found.equal == 0.5
    assert found.tied == pytest.approx(1 / 3)  # of ERM, IRM and VREx
    assert set(found.outside) == {"ERM", "IRM", "VREx", "Forest"}
    assert found.ceiling == pytest.approx((0.8, 0.0)) and set(found.inside) == {"ERM", "Forest"}
    gains = np.array([0.1, 0.1 - 0.002, 0.1, 0.1 - 0.006])
    error = gains.std(ddof=1) / 2
    assert found.half_width == pytest.approx(3.182446 * error)
    with pytest.raises(UserError, match="unknown dataset 'F'"):
        figures_of_results(frames, "F")
    with pytest.raises(UserError, match="no runs of ERM on D"):
        figures_of_results(only(frames, [], ["VREx"]), "D")
    missing = replace(frames, runs=frames.runs.assign(state="missing"))
    with pytest.raises(UserError, match="no runs of ERM on D that have ended"):
        figures_of_results(missing, "D")
