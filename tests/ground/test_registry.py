import sys
from pathlib import Path

import pytest

from oodbench.errors import UserError
from oodbench.registry import Registry, load_plugins
from tests.helpers.algorithms.plugins import REGISTRIES
from tests.helpers.commands import installed, python
from tests.helpers.paths import ROOT


class One:
    pass


class Two:
    pass


@pytest.fixture
def registry() -> Registry[type]:
    registry: Registry[type] = Registry("thing", "builtins.object")  # a package without things
    registry.add("One")(One)
    return registry


def test_a_class_is_found_by_its_name(registry: Registry[type]) -> None:
    assert registry.get("One") is One
    registry.add("abel")(Two)
    registry.add("Zoe")(Two)
    assert list(registry) == ["abel", "One", "Zoe"]


def test_an_unknown_name_names_the_nearest_and_the_place(registry: Registry[type]) -> None:
    with pytest.raises(UserError, match=r"^unknown thing 'On' in x\.yaml; did you mean One\?$"):
        registry.get("On", "x.yaml")


def test_a_name_is_given_once(registry: Registry[type]) -> None:
    registry.add("One")(One)  # the same class again, as when a module is reloaded
    with pytest.raises(UserError, match=r"thing 'One' is registered twice: by \S+ and by \S+$"):
        registry.add("One")(Two)
    assert registry.get("One") is One


def test_a_class_of_another_base_is_refused_with_the_base() -> None:
    for registry in REGISTRIES:
        with pytest.raises(UserError, match=rf"^One, .*: it is not derived from {registry.base}$"):
            registry.add("One")(One)


METHOD = '''
from oodbench.algorithms import Algorithm, register


@register("Foreign", paper="none")
class Foreign(Algorithm):
    """Another package's method."""

    def objective(self, out):
        return out.risks.max()
'''


RULE = """
from oodbench.selection import Rule, records_on, register


@register("seen")
class Seen(Rule):
    summary, needs = "mean over the training examples", "nothing"

    def evidence(self, runs):
        return records_on(runs, "training_environments", "in")
"""
LOOK_UP = """
import sys
import oodbench.train
from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.networks import networks

algorithms.get("ERM"), datasets.get("Spirals"), networks.get("MLP")
heavy = {"matplotlib", "numba", "pandas", "scipy.stats", "sklearn", "torchvision", "transformers", "wilds"}
print(*sorted(heavy & set(sys.modules)))

from oodbench.selection import selection_rules
print(selection_rules.get("seen").__module__, "oracle" in list(selection_rules))
print(algorithms.get("Foreign").__module__, "ERM" in list(algorithms))
"""


@pytest.mark.slow
def test_installed_packages_register_and_what_a_run_does_not_use_is_not_imported(
    tmp_path: Path,
) -> None:
    for group, module, code in (
        ("algorithms", "foreign_methods", METHOD),
        ("selection_rules", "foreign_rules", RULE),
    ):
        (tmp_path / f"{module}.py").write_text(code)
        installed(tmp_path, group, module)
    done = python(Path("/"), "-c", LOOK_UP, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.stdout == "\nforeign_rules True\nforeign_methods True\n", done.stderr


READ = """
import sys
from oodbench.report.__main__ import app

app(["table", "small.v3", "--plugin", "seen_rule"], standalone_mode=False)
print("seen_rule" in sys.modules, "torch" in sys.modules)
"""


def test_a_table_with_a_plugin_of_a_rule_does_not_wait_for_torch(tmp_path: Path) -> None:
    (tmp_path / "seen_rule.py").write_text(RULE)
    done = python(tmp_path, "-c", READ, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.stdout.endswith("\nTrue False\n"), done.stderr


def test_an_entry_point_that_fails_is_named_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "things", "absent_methods")
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[type] = Registry("thing", "builtins.object", "oodbench.things")
    for _ in range(2):
        with pytest.raises(UserError, match="'absent_methods' needs the missing 'abs"):
            registry.get("One")
    (tmp_path / "absent_methods.py").write_text("raise SystemExit('no')")
    with pytest.raises(UserError, match="entry point 'absent_methods' asks to exit when it is imp"):
        Registry[type]("thing", "builtins.object", "oodbench.things").get("One")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that imports are looked up in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", r"is not Python: .*broken_plugin\.py:1"),
        ("exit(3)\n", "asks to exit"),
        ("raise RuntimeError('a\\nb' * 999)", r"RuntimeError: a ba ba .*broken_plugin\.py:1"),
        ("from oodbench.algorithms import no_such", "cannot be imported: ImportError"),
    ],
)
def test_a_plugin_that_cannot_be_imported_costs_one_sentence(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=f"^plug-in 'broken_plugin'.* {words}") as told:
        load_plugins(["broken_plugin"])
    assert "\n" not in str(told.value) and len(str(told.value)) < 300 + len(str(tmp_path))
