from collections.abc import Callable
from pathlib import Path

import pytest

from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.verify import targets
from oodbench.verify.targets import Target, experiment_names, load_experiment

GOOD = """
title: T
paper: p
sweeps: [quickstart]
about: a
shared: {source: s, metric: loss}
targets: [{row: ERM, value: 1, error: 0.5, error_is: population std, trials: 10}]
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], targets.Experiment]:
    monkeypatch.setattr(targets, "FOLDER", tmp_path)

    def write(text: str) -> targets.Experiment:
        (tmp_path / "mine.yaml").write_text(text)
        return load_experiment("mine")

    return write


def test_every_experiment_is_whole() -> None:
    assert experiment_names()
    for name in experiment_names():
        experiment = load_experiment(name)
        assert experiment.about.strip()
        for sweep in experiment.sweeps:
            entries = read_sweep(find_sweep(sweep)).algorithms
            rows = {e if isinstance(e, str) else e.label or e.name for e in entries}
            mine = {target.row for target in experiment.targets if target.sweep == sweep}
            assert mine <= rows, f"{name}: {sweep}"


def test_shared_values_fill_a_target(written: Callable[[str], targets.Experiment]) -> None:
    (target,) = written(GOOD).targets
    assert (target.sweep, target.metric, target.source) == ("quickstart", "loss", "s")


def test_a_dataset_may_have_a_short_name(written: Callable[[str], targets.Experiment]) -> None:
    text = GOOD.replace("about", 'datasets: {A: "D(x=1)"}\nabout')
    for name, dataset in {"A": "D(x=1)", "B": "B"}.items():
        (found,) = written(text.replace("row: ERM", f"row: ERM, dataset: {name}")).targets
        assert found.dataset == dataset


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("std", 0.3 / 10**0.5),
        ("population std", 0.1),
        ("stderr", 0.3),
        ("population stderr", 0.3 * (10 / 9) ** 0.5),
        ("constant", 0.0),
        ("tolerance", 0.0),
    ],
)
def test_standard_errors(kind: targets.ErrorKind, expected: float) -> None:
    target = Target(source="s", row="r", value=1, error=0.3, error_is=kind, trials=10)
    assert target.stderr == pytest.approx(expected)
