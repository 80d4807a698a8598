"""Runs of edited code or data are noticed by every command, and trained again or kept as the user says."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.testing import Result

import oodbench
from oodbench.algorithms import algorithms
from oodbench.errors import UserError
from oodbench.results import stale
from oodbench.results.directory import Directory
from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import State
from oodbench.train import loop
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings
from tests.helpers import commands
from tests.helpers.commands import mistake
from tests.helpers.results.sweeps import first, records_of

pytestmark = pytest.mark.slow

METHOD = '''"""A method."""
import my_losses
from my_base import Base
from oodbench.algorithms import register


@register("SpreadRule", paper="none")
class SpreadRule(Base):
    """ERM and the risks' spread."""

    def penalty(self, out):
        """The spread."""
        return my_losses.spread(out.risks)  # of the risks
'''
BASE = """from oodbench.algorithms import Algorithm


class Base(Algorithm):
    def objective(self, out):
        return out.risks.mean() + self.penalty(out)
"""
LOSSES = """SCALE = 2.0


def spread(risks):
    return SCALE * risks.var(correction=0)
"""
SWEEP = {
    "name": "mine",
    "datasets": [
        {"name": "Table", "file": "patients.csv", "label": "patients"},
        {"name": "ImageFolder", "root": "photos", "size": 4, "label": "photos"},
    ],
    "algorithms": ["SpreadRule"],
    "network": {"name": "MLP", "hparams": {"width": 4, "depth": 1}},
    "plugins": ["my_method"],
    "trials": 2,
    "steps": 4,
    "evaluate_every": 2,
}
LAUNCH = tuple("sweep launch board/protocol.yaml --out out --launcher debug --yes".split())
STATUS = ("sweep", "status", "out")
TABLE = ("report", "table", "out")
RUN_OF_BOARD = ("board", "run", "board", "--algorithm", "SpreadRule", "--out", "out")


def type_in(*words: str) -> Result:
    """What a command says, in a process that imports the plug-in anew."""
    algorithms._classes.pop("SpreadRule", None)
    for module in ("my_method", "my_base", "my_losses"):
        sys.modules.pop(module, None)
    return commands.type_in(*words)


def write_project(folder: Path) -> None:
    """A plug-in of three files, a table, folders of images and a sweep of both."""
    for name, text in (("method", METHOD), ("base", BASE), ("losses", LOSSES)):
        (folder / f"my_{name}.py").write_text(text)
    rows = [f"{i % 7},{i % 3},{i % 2},{'abc'[i % 3]}" for i in range(30)]
    (folder / "patients.csv").write_text("\n".join(["age,nodes,target,environment", *rows, ""]))
    rng = np.random.default_rng(0)
    for i in range(24):
        file = folder / "photos" / f"{'xyz'[i % 3]}" / f"{'ab'[i // 3 % 2]}" / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8)).save(file)
    (folder / "board").mkdir()
    (folder / "board" / "protocol.yaml").write_text(yaml.safe_dump(SWEEP))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The project with its results, of which every test has a copy."""
    folder = tmp_path_factory.mktemp("project")
    write_project(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "dont_write_bytecode", True)  # which tells seconds apart
        patch.syspath_prepend(folder)
        launched = type_in(*LAUNCH)
        assert launched.exit_code == 0, launched.output
        yield folder
    algorithms._classes.pop("SpreadRule", None)


@pytest.fixture
def project(trained: Path) -> Iterator[Path]:
    """The project, which is put back afterwards, with the times of its files."""
    copy = trained.parent / "copy"
    shutil.copytree(trained, copy)
    yield trained
    for path in trained.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(copy, trained, dirs_exist_ok=True)
    shutil.rmtree(copy)


def replace(file: str, old: str, new: str) -> Callable[[], None]:
    def edit() -> None:
        text = Path(file).read_text()
        assert old in text
        Path(file).write_text(text.replace(old, new, 1))

    return edit


def repaint() -> None:
    file = Path("photos/x/a/0.png")
    stat = file.stat()
    Image.new("RGB", (4, 4)).save(file)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


def touch() -> None:
    for file in (*Path("photos").rglob("*.png"), Path("patients.csv"), Path("my_method.py")):
        os.utime(file)


CHANGES = {
    "method": (replace("my_method.py", "spread(out.risks)", "spread(-out.risks)"), "my_method.py"),
    "base": (replace("my_base.py", "+ self", "- self"), "my_base.py"),
    "helper": (replace("my_losses.py", "2.0", "3.0"), "my_losses.py"),
    "table": (replace("patients.csv", "\n1,1,1,b", "\n5,1,1,b"), "patients.csv"),
    "image": (repaint, "x/a/0.png"),
    "version": (lambda: None, "9.9.9 is here"),
}
NO_CHANGES = {"comment": replace("my_method.py", "# of the", "# of all"), "times": touch}


@pytest.mark.parametrize("change", CHANGES)
def test_commands_name_changes(change: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one of them for a change of code and one of data; a launch and a table for the others."""
    edit, what = CHANGES[change]
    most = None if change in ("method", "image") else 1
    edit()
    if change == "version":
        monkeypatch.setattr(stale, "__version__", "9.9.9")
    for command in (LAUNCH, RUN_OF_BOARD)[:most]:
        text = mistake(type_in(*command))
        assert what in text and "--stale retrain" in text and "--stale keep" in text
    compared = ("report", "compare", "out", "--baseline", "SpreadRule")
    for command in (TABLE, STATUS, compared)[:most]:
        shown = type_in(*command).stdout
        assert any(line.startswith("Stale: ") and what in line for line in shown.splitlines())
    if most is None:
        type_in("report", "html", "out")
        page = (project / "out" / "report.html").read_text()
        assert "Stale: " in page and what in page


@pytest.mark.parametrize("change", NO_CHANGES)
@pytest.mark.usefixtures("project")
def test_what_computes_the_same_is_not_stale(change: str) -> None:
    NO_CHANGES[change]()
    for command in (LAUNCH, STATUS, TABLE):
        shown = type_in(*command)
        assert shown.exit_code == 0 and "Stale" not in shown.output, shown.output


def runs() -> dict[str, list[dict[str, Any]]]:
    """The records of the planned runs that have ended, by id."""
    results = Directory(Path("out"))
    return {i: records_of(results.run(i)) for i in results.specs() if results.run(i).end()}


@pytest.mark.usefixtures("project")
def test_stale_runs_are_trained_again_or_kept_as_the_user_says() -> None:
    CHANGES["base"][0]()
    before = runs()
    kept = type_in(*LAUNCH, "--stale", "keep")
    assert kept.exit_code == 0 and "4 runs were trained (my_base.py); they are kept." in kept.output
    assert "Stale: SpreadRule has changed since 4 of its 4 runs" in kept.output
    assert runs() == before
    again = type_in(*LAUNCH, "--stale", "retrain")
    assert again.exit_code == 0 and "they are trained again." in again.output
    after = runs()
    assert after.keys() == before.keys() and all(after[i] != before[i] for i in after)
    assert "Stale" not in type_in(*LAUNCH).output


@pytest.mark.usefixtures("project")
def test_runs_of_an_edited_table_are_replaced_or_kept() -> None:
    """An edited file makes other runs, which take the places of those of the former file."""
    CHANGES["table"][0]()
    before = set(runs())
    kept = type_in(*LAUNCH, "--stale", "keep")
    assert kept.exit_code == 0 and set(runs()) == before
    assert "The data of patients have changed since 2 of its 2 runs" in kept.output
    again = type_in(*LAUNCH, "--stale", "retrain")
    assert again.exit_code == 0 and len(set(runs()) - before) == 2 and len(runs()) == 4
    shown = type_in(*TABLE).stdout
    assert "Stale" not in shown and "Several settings" not in shown


@pytest.mark.usefixtures("project")
def test_data_are_the_same_wherever_they_are() -> None:
    Path("elsewhere").mkdir()
    for name in ("photos", "patients.csv"):
        Path(name).rename(f"elsewhere/{name}")
    shown = type_in(*LAUNCH, "--data-dir", "elsewhere")
    assert shown.exit_code == 0 and "Stale" not in shown.output


@pytest.mark.usefixtures("project")
def test_a_run_in_python_is_refused_if_it_is_stale() -> None:
    keys: dict[str, Any] = {key: SWEEP[key] for key in ("network", "steps", "evaluate_every")}
    keys |= {"out": "one", "plugins": ["my_method"]}

    def trained_again(**wish: Any) -> float:
        type_in("sweep", "plan", "--help")  # the plug-in is imported anew
        table = {"name": "Table", "file": "patients.csv"}
        return float(oodbench.run(table, "SpreadRule", **keys, **wish)["value"].sum())

    first_value = trained_again()
    CHANGES["base"][0]()
    sentence = r"of its 1 runs were trained \(my_base.py\): `--stale retrain`"
    with pytest.raises(UserError, match=sentence):
        trained_again()
    assert trained_again(stale="keep") == first_value
    assert trained_again(stale="retrain") != first_value
    trained_again()


def test_a_run_stays_of_its_first_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One version has trained its first steps, and another one its last."""
    monkeypatch.setattr(loop, "EVALUATION_CHECKPOINT_SECONDS", -1.0)
    spec = first()
    directory = RunDirectory(tmp_path / "runs" / spec.id)

    def progress(step: int) -> None:
        if step >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(spec, directory, TrainSettings(), progress)
    file = directory.path / "run.json"
    begun = json.loads(file.read_text())
    begun["provenance"] |= {"oodbench": "0.2.0"}
    del begun["provenance"]["digests"]
    file.write_text(json.dumps(begun))
    assert execute(spec, directory, TrainSettings())[0] is State.DONE
    made_by = directory.made_by()
    assert made_by["oodbench"] == "0.2.0" and "digests" not in made_by


@pytest.mark.usefixtures("project")
def test_a_row_of_two_versions_is_named() -> None:
    CHANGES["method"][0]()
    for run_id in list(runs())[:1]:
        Directory(Path("out")).start_anew([run_id])
    launched = type_in(*LAUNCH, "--stale", "keep")
    assert launched.exit_code == 0, launched.output
    sentence = "Stale: SpreadRule has changed since 3 of its 4 runs were trained (my_method.py)"
    assert f"{sentence}." in type_in(*TABLE).stdout
    CHANGES["base"][0]()
    sentence = "has changed since 4 of its 4 runs were trained (my_base.py, my_method.py)"
    assert f"{sentence}; they are of 2 versions of it." in type_in(*TABLE).stdout


@pytest.mark.usefixtures("project")
def test_failed_runs_are_not_trained_beside_those_of_another_version() -> None:
    CHANGES["helper"][0]()
    failed = next(iter(runs()))
    results = Directory(Path("out"))
    results.start_anew([failed])
    results.run(failed).fail("an error", "")
    again = (*LAUNCH, "--failed")
    assert "since 3 of its 3 runs were trained (my_losses.py)" in mistake(type_in(*again))
    assert type_in(*again, "--stale", "retrain").exit_code == 0
    assert "Stale" not in type_in(*STATUS).output
    assert len(runs()) == 4


@pytest.mark.usefixtures("project")
def test_runs_that_failed_by_a_mistake_in_the_code_are_not_stale_once_it_is_mended() -> None:
    launch = [word if word != "out" else "failing" for word in (*LAUNCH, "--failed")]
    right = Path("my_losses.py").read_text()
    replace("my_losses.py", "return ", "return missing * ")()
    assert type_in(*launch).exit_code == 1
    Path("my_losses.py").write_text(right)
    assert type_in(*launch).exit_code == 0
