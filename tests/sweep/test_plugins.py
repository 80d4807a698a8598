"""What a sweep's plug-ins define is known wherever the sweep or its results directory names it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oodbench
from oodbench.errors import UserError
from oodbench.selection import selection_rules
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launchers import launchers
from oodbench.sweep.plan import make_plan
from tests.helpers.algorithms.plugins import plugins_in
from tests.helpers.commands import type_in
from tests.helpers.results.sweeps import tiny_file

pytestmark = pytest.mark.slow

PLUGIN = '''
from oodbench.selection import Rule, records_on
from oodbench.selection import register as register_rule
from oodbench.sweep.launchers import register as register_launcher
from oodbench.sweep.launchers.local import Debug


@register_rule("train_in")
class TrainIn(Rule):
    """The training examples decide."""

    summary = "mean over the in splits of the training environments"
    needs = "nothing"

    def evidence(self, runs):
        return records_on(runs, "training_environments", "in")


@register_launcher("here")
class Here(Debug):
    """As debug."""
'''
NAMED = {"plugins": ["my_rules"], "selection": "train_in", "keep_weights": ["train_in"]}
SHORT = {"algorithms": ["ERM"], "trials": 1, "steps": 4, "evaluate_every": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working directory with the plug-in, which is forgotten afterwards."""
    (tmp_path / "my_rules.py").write_text(PLUGIN)
    with plugins_in(tmp_path, "my_rules"):
        yield tmp_path


def forget() -> None:
    """Have the process know nothing of the plug-in."""
    selection_rules._classes.pop("train_in", None)
    launchers._classes.pop("here", None)
    sys.modules.pop("my_rules", None)


def test_a_sweep_names_a_rule_and_a_launcher_of_its_plugin(folder: Path) -> None:
    file = str(tiny_file(folder, **SHORT, **NAMED))
    type_in("sweep", "launch", file, "--launcher", "here", "--yes", "--out", "out", code=0)
    for typed in (
        "report table out",
        "report why out --rule train_in",
        "report figure curves out --out curves.svg",
        "report html out",
        "sweep status out",
        "sweep cancel out",
    ):
        words = typed.split()
        forget()
        refused = " ".join(type_in(*words, code=2).output.split())
        assert "--plugin my_rules" in refused and "train_in" not in selection_rules
        assert words[0] == "sweep" or "unknown selection rule 'train_in'" in refused
        type_in(*words, "--plugin", "my_rules", code=0)
        assert "train_in" in selection_rules
    forget()
    Path("my_rules.py").unlink()
    type_in("report", "table", "out", "--rule", "train_val", code=0)
    with pytest.raises(UserError, match=r"unknown selection rule 'train_in'.*--plugin my_rules"):
        oodbench.load_model("out")


READS = [
    *(["table"], ["html"], ["why"], ["bibtex"], ["compare"], ["status"], ["cancel"]),
    ["table", "--rule", "mine"],
    ["table", "--metric", "mine"],
]


def test_a_strangers_results_run_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = ["evil.inside", "evil"]
    monkeypatch.chdir(tmp_path)
    file = str(tiny_file(tmp_path, **SHORT))
    type_in("sweep", "launch", file, "--yes", "--out", "out", code=0)
    plan = json.loads(Path("out/sweep.json").read_text())
    plan["settings"] |= {"plugins": plugins, "selection": "mine"}
    Path("out/sweep.json").write_text(json.dumps(plan))
    for info in Path("out/runs").glob("*/run.json"):
        run = json.loads(info.read_text())
        run["provenance"]["plugins"] = plugins
        info.write_text(json.dumps(run))
    for at in (Path("evil.py"), Path("out/evil.py")):
        at.write_text("open('was_run', 'w').close()\n")
    Path("out/evil").mkdir()
    Path("out/evil/__init__.py").write_text("open('was_run', 'w').close()\n")
    monkeypatch.setitem(sys.modules, "evil.inside", sys)  # it is imported, and has no such rule
    for command, *options in READS:
        room = "sweep" if command in ("status", "cancel") else "report"
        result = type_in(room, command, "out", *options)
        assert result.exit_code in (0, 2), result.output
        assert not Path("was_run").exists(), command
        if "mine" in options:
            said = " ".join(result.output.split())
            assert "(if a plug-in of the sweep defines it: --plugin evil, in Python `import" in said
    with pytest.raises(UserError):
        oodbench.load_model("out")
    assert not Path("was_run").exists()


def test_a_rule_of_an_option_is_known_and_a_forgotten_one_hints_at_it(folder: Path) -> None:
    file = tiny_file(folder, **SHORT, selection="train_in")
    with pytest.raises(UserError, match=r"unknown selection rule 'train_in'.*--plugin MODULE"):
        make_plan(read_sweep(file))
    type_in("sweep", "plan", str(file), "--format", "json", "--plugin", "my_rules", code=0)
