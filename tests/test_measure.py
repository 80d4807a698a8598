from collections.abc import Mapping
from pathlib import Path

import pytest

from oodbench.errors import UserError
from oodbench.measure import Line, Measured, Panel, measure, read
from oodbench.records import Frames
from oodbench.targets import Experiment, Target
from tests.made import Curve, Made, flat


def target(**fields: object) -> Target:
    usual = {"source": "s", "sweep": "made", "row": "A", "value": 1.0, "environment": "test"}
    return Target.model_validate(usual | fields)


@pytest.fixture
def frames(tmp_path: Path) -> Frames:
    """Two test sets and two trials; values name environment, split, step and trial."""
    made = Made(tmp_path)

    def value(trial: int) -> Curve:
        def of(environment: str, split: str, step: int) -> float:
            best = 20 if trial == 0 else 10  # the step that `train_val` chooses
            if split == "out":
                return 0.5 + (step == best)
            return {"a": 0.1, "b": 0.2, "c": 0.3}[environment] + step / 1000 + trial / 100

        return of

    for trial in (0, 1):
        for test in ("a", "b"):
            made.add("D", "A", (test,), trial, value(trial))
    made.add("D", "A", ("a",), 2, flat(9.0), state="running")
    return made.results.load()


def test_the_last_step_of_every_trial_that_is_complete(frames: Frames) -> None:
    assert read(target(), frames) == pytest.approx([0.18, 0.19])
    assert read(target(test_environments=["a"]), frames) == pytest.approx([0.13, 0.14])
    assert read(target(environment="training"), frames) == pytest.approx([0.255, 0.265])
    found = read(target(environment="c", split="out"), frames)
    assert found == pytest.approx([0.5, 0.5])


def test_a_step_and_a_selection_rule(frames: Frames) -> None:
    assert read(target(step=10), frames) == pytest.approx([0.16, 0.17])
    assert read(target(selection="train_val"), frames) == pytest.approx([0.17, 0.17])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"row": "B"}, "no run of made"),
        ({"dataset": "E"}, "no run of made"),
        ({"metric": "loss"}, "no 'loss'"),
        ({"environment": "d"}, "environment 'd'"),
        ({"environment": None}, "environment 'None'"),
    ],
)
def test_what_is_not_recorded(fields: dict[str, object], message: str, frames: Frames) -> None:
    with pytest.raises(UserError, match=message):
        read(target(**fields), frames)


def test_several_draws_need_a_selection(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for draw in (0, 1):
        made.add("D", "A", ("a",), 0, flat(0.1 * (1 + draw)), draw=draw)
    with pytest.raises(UserError, match="several hparam draws"):
        read(target(), made.results.load())
    assert read(target(selection="train_val"), made.results.load()) == pytest.approx([0.2])


def computed(trials: int, frames: Mapping[str, Frames]) -> Measured:
    line = Line(label="l", x=[0, 1], y=[1, 2])
    return Measured(
        values={"k": [0.5] * trials, "runs": [float(len(f.runs)) for f in frames.values()]},
        panels=[Panel(title="t", x="x", y="y", lines=[line])],
    )


def test_a_computation_and_curves(frames: Frames) -> None:
    targets = (
        target(sweep="", row="k", scale=100),
        target(sweep="", row="runs"),
        target(),
        target(row="A", environment="training"),
    )
    experiment = Experiment(
        name="n",
        title="T",
        paper="p",
        sweeps=("made",),
        compute="tests.test_measure:computed",
        picture="steps",
        about="a",
        targets=targets,
    )
    found = measure(experiment, {"made": frames}, 3)
    assert found.values[targets[0].key] == [50.0] * 3
    assert found.values[targets[1].key] == [5.0]
    assert [panel.title for panel in found.panels] == ["t", "test", "training"]
    (line,) = found.panels[1].lines
    assert line.x == [10, 20, 30]
    assert line.y == pytest.approx([0.165, 0.175, 0.185])
    assert line.error == pytest.approx([0.005] * 3)
    without = measure(experiment, {}, 3)
    assert targets[2].key not in without.values
