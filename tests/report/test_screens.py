"""What people see at 80 and 120 columns; `python -m tests.report.test_screens` writes it anew."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml

from oodbench.sweep.plan import show_plan
from oodbench.terminal import Terminal
from tests.helpers.commands import type_in
from tests.helpers.paths import GOLDEN
from tests.helpers.results.made import Made, any_version, rising
from tests.helpers.results.sweeps import tiny

FOLDER = GOLDEN / "screens"
WIDTHS = (80, 120)
LABELS = ("ERM", "InvariantRiskMinimization, annealed", "VREx")
SCREENS = {
    "table": ["report", "table", "results"],
    "compare": ["report", "compare", "results"],
    "why": ["report", "why", "results", "--dataset", "Photographs", "--algorithm", "ERM",
            "--test-env", "a"],
    "status": ["sweep", "status", "results"],
    "report-help": ["report", "--help"],
    "data-check": ["data", "check", "Table", "--set", "file=patients.csv"],
    "errors": ["sweep", "plan", "wrong.yaml"],
}  # fmt: skip
WRONG: dict[str, Any] = {
    "name": "wrong",
    "datasets": ["Spiral", {"name": "Table", "file": "patients.csv"}],
    "algorithms": ["ERN", {"name": "IRM", "hparms": {"lr": 0.1}}],
    "trials": True,
}


def made() -> None:
    """Two datasets with seven test environments; one run failed, one is planned."""

    class Wide(Made):
        environments = ("a", "b", "c", "hospital-3", "night", "sketches", "years-before-1990")

    results, one = Wide(Path("results")), Made(Path("one"))
    for i, label in enumerate(LABELS):
        for trial in range(3):
            one.add("Scans", label, ("a",), trial, rising(0.5 + i / 20 + trial / 10))
            for test in Wide.environments:
                curve = rising(0.4 + i / 16 + trial / 32, test)
                state = "failed" if (label, test, trial) == ("VREx", "c", 2) else "done"
                error = "ValueError: the third step is one too many for this method"
                results.add("Photographs", label, (test,), trial, curve, state=state, error=error)
            state = "planned" if (label, trial) == ("VREx", 2) else "done"
            curve = rising(20.0 + i + trial / 3)
            results.add("Scans", label, ("a",), trial, curve, metric="mse", state=state)
    results.write_plan()
    one.write_plan()
    hospitals = ("Leiden", "Rotterdam", "Utrecht, outpatient department")
    rows = [
        f'{50 + 3 * i},{i % 5},{("no relapse", "relapse")[i % 2]},"{hospitals[i % 3]}"'
        for i in range(30)
    ]
    Path("patients.csv").write_text("\n".join(["age,nodes,target,environment", *rows, ""]))
    Path("wrong.yaml").write_text(yaml.safe_dump(WRONG))
    small = {"datasets": ["LinearSEM"], "algorithms": ["ERM"], "trials": 1, "steps": 2}
    Path("small.yaml").write_text(yaml.safe_dump({"name": "small"} | small))


def plan(width: int) -> str:
    """What `plan` prints without the time that it measures."""
    sweep = tiny(
        datasets=[
            {"name": "LinearSEM", "label": "Linear, hidden confounders"},
            {"name": "ColoredDigits", "copies": 2},
        ],
        algorithms=["ERM", {"name": "IRM", "label": LABELS[1]}, "VREx"],
        test_environments="each",
        hparam_draws=2,
    )
    console = Terminal(width=width, file=open(os.devnull, "w"))  # noqa: PTH123
    with console.capture() as capture:
        show_plan(sweep, console)
    console.file.close()
    return capture.get()


def screen(name: str, width: int) -> str:
    if name == "plan":
        return plan(width)
    return type_in(*SCREENS[name], code=2 * (name == "errors")).output


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with chdir(tmp_path_factory.mktemp("screens")):
        made()
        yield


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*SCREENS, "plan"])
@pytest.mark.usefixtures("results")
def test_a_screen_is_as_wide_as_the_terminal_and_as_frozen(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = screen(name, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    assert any_version(text) == (FOLDER / f"{name}.{width}.txt").read_text()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        made()
        for width in WIDTHS:
            os.environ["COLUMNS"] = str(width)
            for name in (*SCREENS, "plan"):
                (FOLDER / f"{name}.{width}.txt").write_text(any_version(screen(name, width)))
