"""Registries and plug-ins; a class whose hooks are misspelt, do not fit or are none is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench import algorithms, datasets, metrics, selection
from oodbench.algorithms import Algorithm, Outputs
from oodbench.datasets import PLAIN, Dataset, FileDataset, Metadata
from oodbench.errors import UserError
from oodbench.hparams import hparam, log_uniform
from oodbench.metrics import PredictionMetric, RecordedMetric
from oodbench.networks import base as networks
from oodbench.networks.base import Network
from oodbench.registry import Registry, check_overrides, load_plugins
from oodbench.selection import Rule
from oodbench.sweep import launchers
from oodbench.sweep.launchers import Launcher
from tests.helpers.algorithms.plugins import REGISTRIES
from tests.helpers.commands import installed


class One:
    pass


class Two:
    pass


@pytest.fixture
def registry() -> Registry[type]:
    registry: Registry[type] = Registry("thing", "builtins.object")  # a package without things
    registry.add("One")(One)
    return registry


def test_a_class_is_found_by_its_name_which_is_given_once(registry: Registry[type]) -> None:
    registry.add("One")(One)  # the same class again, as when a module is reloaded
    with pytest.raises(UserError, match=r"thing 'One' is registered twice: by \S+ and by \S+$"):
        registry.add("One")(Two)
    assert registry.get("One") is One
    with pytest.raises(UserError, match=r"^unknown thing 'On' in x\.yaml; did you mean One\?$"):
        registry.get("On", "x.yaml")
    registry.add("abel")(Two)
    registry.add("Zoe")(Two)
    assert list(registry) == ["abel", "One", "Zoe"]


def test_a_class_of_another_base_is_refused_with_the_base() -> None:
    for registry in REGISTRIES:
        with pytest.raises(UserError, match=rf"^One, .*: it is not derived from {registry.base}$"):
            registry.add("One")(One)


@pytest.fixture
def folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, where imports are looked up first."""
    monkeypatch.syspath_prepend(here)
    return here


def test_an_entry_point_that_fails_is_named_at_every_look(folder: Path) -> None:
    installed(folder, "things", "absent_methods")
    registry: Registry[type] = Registry("thing", "builtins.object", "oodbench.things")
    for _ in range(2):
        with pytest.raises(UserError, match="'absent_methods' needs the missing 'abs"):
            registry.get("One")
    (folder / "absent_methods.py").write_text("raise SystemExit('no')")
    with pytest.raises(UserError, match="entry point 'absent_methods' asks to exit when it is imp"):
        Registry[type]("thing", "builtins.object", "oodbench.things").get("One")


def test_a_look_that_was_interrupted_can_be_repeated(folder: Path) -> None:
    installed(folder, "things", "slow_methods")
    (folder / "slow_methods.py").write_text("raise KeyboardInterrupt")
    registry: Registry[type] = Registry("thing", "builtins.object", "oodbench.things")
    with pytest.raises(KeyboardInterrupt):
        registry.get("Unheard")
    (folder / "slow_methods.py").write_text("")
    with pytest.raises(UserError, match="unknown thing 'Unheard'"):
        registry.get("Unheard")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", r"is not Python: .*broken_plugin\.py:1"),
        ("exit(3)\n", "asks to exit"),
        ("raise RuntimeError('a\\nb' * 999)", r"RuntimeError: a ba ba .*broken_plugin\.py:1"),
        ("from oodbench.algorithms import no_such", "cannot be imported: ImportError"),
    ],
)
def test_a_plugin_that_cannot_be_imported_costs_a_line(text: str, words: str, folder: Path) -> None:
    (folder / "broken_plugin.py").write_text(text)
    with pytest.raises(UserError, match=f"^plug-in 'broken_plugin'.* {words}") as told:
        load_plugins(["broken_plugin"])
    assert "\n" not in str(told.value) and len(str(told.value)) < 300 + len(str(folder))


def test_a_missing_plugin_may_be_one_folder_below(folder: Path) -> None:
    for file in ("study/below_plugin.py", "my-study/lone_plugin.py"):
        (folder / file).parent.mkdir()
        (folder / file).touch()
    with pytest.raises(UserError, match=r"'below_plugin'.*; did you mean study\.below_plugin\?$"):
        load_plugins(["below_plugin"])
    with pytest.raises(UserError, match=r"'lone_plugin' in [^?]+$"):  # no module can be in my-study
        load_plugins(["lone_plugin"])
    load_plugins(["study.below_plugin"])


def test_a_class_of_a_plug_in_that_is_not_registered_is_told(folder: Path) -> None:
    code = "from oodbench.algorithms import Algorithm\nclass Bare(Algorithm):\n    pass"
    (folder / "bare_plugin.py").write_text(code)
    load_plugins(["bare_plugin"])
    sentence = r"^Bare, .*bare_plugin\.py:2 is not registered: put .*` of `oodbench.algorithms"
    with pytest.raises(UserError, match=sentence):
        algorithms.algorithms.get("Bare")
    with pytest.raises(UserError, match=r"^unknown dataset 'Bare'"):
        datasets.datasets.get("Bare")


REGISTER: dict[type, Callable[[type], object]] = {
    Algorithm: algorithms.register("Mine", paper="none"),
    Dataset: datasets.register("Mine"),
    FileDataset: datasets.register("Mine"),
    Rule: selection.register("Mine"),
    PredictionMetric: metrics.register("Mine"),
    RecordedMetric: metrics.register("Mine"),
    Launcher: launchers.register("Mine"),
    Network: networks.register("Mine"),
}


@pytest.fixture(autouse=True)
def forgotten_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_classes", dict(registry.items()))


def register(base: type, body: dict[str, Any]) -> None:
    """Registers a class of the user's, `Mine`."""
    registered = REGISTER.get(base, REGISTER[Algorithm])
    registered(type("Mine", (base,), {"__module__": "mine", **body}))


def hook(self: Any, one: Any) -> Any: ...


def with_two(self: Any, one: Any, two: Any) -> Any: ...


def with_none(self: Any) -> Any: ...


def of_domainbed(self: Any, minibatches: Any, unlabeled: Any = None) -> Any: ...


MISSPELT: list[tuple[type, str, str, Any]] = [
    (Algorithm, "objectve", "objective", hook),
    (Algorithm, "nextBuffers", "next_buffers", hook),
    (FileDataset, "dowload", "download", hook),
    (Rule, "evidnce", "evidence", hook),
    (PredictionMetric, "of_prediction", "of_predictions", hook),
    (Launcher, "lauch", "launch", hook),
    (Network, "foward", "forward", hook),
    (Dataset, "repaets", "repeats", True),
    (Dataset, "normalisation", "normalization", None),
    (Dataset, "lable", "label", property(with_none)),
    (Dataset, "predictor_metric", "predictor_metrics", with_two),
    (Dataset, "Option", "Options", type("Option", (), {})),
]


@pytest.mark.parametrize(("base", "name", "nearest", "value"), MISSPELT)
def test_what_is_misspelt_is_refused(base: type, name: str, nearest: str, value: Any) -> None:
    sentence = rf"^the .* Mine defines `{name}`.* `{nearest}`\?.*`_{name}`"
    with pytest.raises(UserError, match=sentence):
        register(base, {name: value})


def test_helpers_of_a_dataset_are_taken() -> None:
    values = {"environment": with_two, "column": hook, "rows": (), "labels": ("a",), "size": 3}
    attributes = {"repeats": True, "notes": property(with_none), "metric": "mse", "_repaets": 1}
    register(Dataset, {"load": hook, "Item": type("Item", (), {}), **values, **attributes})
    assert "Mine" in datasets.datasets


@pytest.mark.parametrize("fact", ["family", "steps"])
def test_an_attribute_that_the_metadata_hold_is_refused(fact: str) -> None:
    with pytest.raises(UserError, match=rf"sets `{fact}`, .*'Own', Metadata\({fact}=...\)\)`"):
        datasets.register("Own")(type("Own", (Dataset,), {"load": hook, fact: "x"}))


def test_an_attribute_that_the_class_reads_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.datasets, "_classes", {})
    members = {"load": lambda self, trial: {"a": self.shift}, "shift": 0.5}
    own: type[Any] = datasets.register("Own")(type("Own", (Dataset,), members))
    assert own.shift == 0.5 and own.metadata.shift == "none"


@pytest.mark.parametrize("given", ["half", "shift_kind"])
def test_what_a_plug_in_for_0_4_says_of_boards_is_told_the_new_spelling(given: str) -> None:
    with pytest.raises(UserError, match=r"leave them out; a board names .*`natural: \["):
        Metadata(**{**vars(PLAIN), given: "natural"})


class Weight(Algorithm.Hparams):
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class More(Algorithm.Hparams):
    lr: float = hparam(1e-2, log_uniform(1e-3, 1e-1), low=0.0)


@pytest.mark.parametrize(
    ("base", "body", "sentence"),
    [
        (Algorithm, {"objective": with_none}, r"`objective\(self\)` is called with \(self, out\)"),
        (Algorithm, {"skip": hook}, "`skip` needs `@classmethod`"),
        (Algorithm, {"descend": hook}, "`descend`, which is not a hook: give it another name"),
        (Algorithm, {"overrides": hook}, "defines `overrides`, which is not a hook"),
        (Algorithm, {"neutral": property(with_none)}, "`neutral` is a function, without `@prop"),
        (Algorithm, {"update": hook}, r"is called with \(self, batch, step\)"),
        (Algorithm, {"reduction": with_none}, "`reduction` needs `@property`"),
        (Dataset, {"load": with_none}, r"is called with \(self, trial\)"),
        (Dataset, {"notes": with_none}, "`notes` needs `@property`"),
        (Dataset, {"repeats": with_none}, "`repeats` needs `@property`"),
        (Rule, {"evidence": with_none}, r"is called with \(self, runs\)"),
        (RecordedMetric, {"of_groups": hook}, r"is called with \(self, groups, right\)"),
        (Launcher, {"launch": with_none}, r"is called with \(self, job\)"),
        (Network, {"forward": with_two}, r"is called with \(self, x\)"),
        (Algorithm, {}, "does not override `objective`"),
        (Rule, {"evidence": hook, "scores": hook}, "did you mean `score`"),
        (Algorithm, {"Hparams": More, "neutral": classmethod(hook)}, "does not override `obj"),
        (Algorithm, {"Hparams": Weight, "objective": hook}, "`Hparams` needs `@dataclass.*`weigh"),
        (Algorithm, {"__init__": with_two}, r"is called with \(self, network, problem, hparams\)"),
        (Algorithm, {"update": of_domainbed}, r"`update\(self, batch, step\)` here"),
        (Dataset, {"__init__": with_none}, r"is called with \(self, options, data_dir\)"),
        (Algorithm, {"update": lambda self, minibatches: {}}, r"`batch.minibatches\(\)` gives the"),
    ],
)
def test_what_would_not_be_called_is_refused(base: type, body: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^the .* Mine.*{sentence}"):
        register(base, body)


@pytest.mark.parametrize(
    "body",
    [
        {"objective": hook, "penalty": hook, "gradients": hook, "noisy_": 3},
        {"objective": lambda self, out: self.objectives(out)[0], "objectives": hook},
        {"objective": lambda s, out: sum(s.objectives(r) for r in out.risks), "objectives": hook},
        {"average": property(lambda self: self.objectives), "objectives": hook, "objective": hook},
        {"objective": lambda self, out, scale=1.0: out.risks.mean()},
        {"objective": lambda self, *values: values[0].risks.mean()},
        {"objective": staticmethod(lambda out: out.risks.mean()), "_objectve": hook},
        {"combine": torch.no_grad()(hook)},
        {"skip": staticmethod(lambda problem: None), "prepare": hook},
        {"__init__": lambda self, network, problem, hparams: None},
        {"predict": hook},
        {"neutral": classmethod(lambda cls, problem: {})},
    ],
    ids=lambda body: " ".join(body),
)
def test_helpers_and_every_form_of_a_hook_are_taken(body: dict[str, Any]) -> None:
    register(Algorithm, body)
    assert "Mine" in algorithms.algorithms


def test_other_ways_to_a_class_are_taken() -> None:
    body = {"__init__": lambda self, input_shape, width: None, "forward": hook}
    check_overrides("network", type("Mine", (Network,), body))
    register(algorithms.algorithms.get("ERM"), {"Hparams": More})
    register(algorithms.algorithms.get("IRM"), {})


def test_a_mixin_may_bring_the_hook() -> None:
    class Mean:
        def objective(self, out: Outputs) -> Tensor:
            return out.risks.mean()

    algorithms.register("Mine", paper="none")(type("Mine", (Mean, Algorithm), {}))
