"""The contract that every registered algorithm keeps."""

import contextlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, algorithms, first_step, why_skipped
from oodbench.conformance import check_algorithm, checks
from oodbench.conformance.checks import DoesNotApply, Requirement, requirements, tasks_of
from oodbench.conformance.tiny_problems import TASKS, suited, tiny_problem
from oodbench.errors import UserError
from oodbench.hparams import hparam, log_uniform
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import OURS
from tests.helpers.commands import type_in

pytestmark = pytest.mark.slow


def require_all(name: str, wanted: Sequence[Requirement], tasks: Sequence[Task]) -> None:
    for check, task in itertools.product(wanted, tasks):
        with contextlib.suppress(DoesNotApply):
            check(algorithms.get(name), task)


@pytest.mark.parametrize("name", OURS)
def test_a_method_keeps_the_requirements_on_one_task(name: str) -> None:
    require_all(name, requirements, tasks_of(algorithms.get(name))[:1])


@pytest.mark.nightly
@pytest.mark.parametrize("name", OURS)
def test_a_method_keeps_the_requirements_on_every_other_task(name: str) -> None:
    require_all(name, requirements, tasks_of(algorithms.get(name))[1:])


def test_no_registered_algorithm_skips_a_kind_of_task_with_five_environments() -> None:
    """But those that are about classes, and TRM, whose heads diverge on squared errors."""
    classes = {"ADRMX", "AdversarialTraining", "CondCAD", "JTT", "LISA", "RSC", "SagNet", "SelfReg"}
    classes |= {"AFR", "CRT", "EIIL", "LfF", "ReWeightCRT", "XRM"}
    classes |= {"BSoftmax", "CBLoss", "Focal", "LDAM", "ReWeight", "SqrtReWeight"}
    for name in OURS:
        for task in TASKS.values() if algorithms.get(name).trains_network else ():
            has_classes = task.kind in ("binary", "multiclass")
            skipped = name in classes and not has_classes
            skipped |= name == "TRM" and task.kind == "regression"
            problem = tiny_problem(suited(algorithms.get(name), task))
            assert (why_skipped(algorithms.get(name), problem) is not None) == skipped


def test_a_name_or_a_class_is_checked_with_one_call(capsys: pytest.CaptureFixture[str]) -> None:
    class Own(Algorithm):
        """The sum of the risks."""

        def objective(self, out: Outputs) -> Tensor:
            return out.risks.sum()

    check_algorithm("ERM")
    told = capsys.readouterr().out
    for reason in ("it is ERM at any hyperparameters", "it trains on the batches as they are"):
        assert re.search(rf"^does not apply: .* \({reason}\)$", told, re.MULTILINE)
    assert {line.partition(": ")[0] for line in told.splitlines()} == {"kept", "does not apply"}
    check_algorithm(Own)
    assert " (it has no neutral hyperparameters)\n" in capsys.readouterr().out
    with pytest.raises(UserError, match="did you mean ERM"):
        check_algorithm("ermm")


class Staged(Algorithm):
    """The largest risk in the first half of a run, and ERM in the second."""

    def objective(self, out: Outputs) -> Tensor:
        early = out.step < first_step(0.5, self.problem.steps)
        return torch.where(torch.tensor(early), out.risks.max(), out.risks.mean())


class Float32(Algorithm):
    """A weight times a constant of float32."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        weight: float = hparam(1.0, log_uniform(0.1, 10.0), low=0.0)

    def objective(self, out: Outputs) -> Tensor:
        return torch.mul(torch.tensor(1.1), self.hparams.weight) * out.risks.max()


class FirstRisk(Algorithm):
    """A weight that is near 1, but not so near as a rounding in float32."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.max() + 1e-4 * out.risks[0]


class OfScale(Algorithm):
    """IRM as the code of its paper has it, the scale made in its step."""

    def scale(self) -> Tensor:
        return torch.tensor(1.0, dtype=torch.float64).requires_grad_()

    def objective(self, out: Outputs) -> Tensor:
        scale = self.scale()
        risk = out.task.losses(out.logits * scale, out.targets).mean()
        return out.risks.mean() + torch.autograd.grad(risk, [scale], create_graph=True)[0] ** 2


class VarianceOfOne(Algorithm):
    """A sample variance over environments, of which one has none."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.mean() + out.risks.std()


class OfTwoClasses(Algorithm):
    """A Python branch on targets, as they are where each is one class."""

    def objective(self, out: Outputs) -> Tensor:
        if out.targets.dim() > 2:
            raise TypeError("each target is a vector")
        return out.risks.max()


@pytest.fixture
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "TASKS", {kind: TASKS[kind] for kind in ("binary", "multilabel")})


@pytest.mark.parametrize("cls", [Staged, Float32])
@pytest.mark.usefixtures("few_tasks")
def test_a_stage_and_a_constant_of_float32_break_nothing(cls: type[Algorithm]) -> None:
    told: list[str] = []
    check_algorithm(cls, told.append)
    rounded = [line for line in told if "round-off)" in line]
    assert len(rounded) == (cls is Float32) and "broken" not in "".join(rounded)


@pytest.mark.parametrize(
    ("cls", "sentence"),
    [
        (FirstRisk, "breaks 'Permuting the environments changes .*': the gradient depends on"),
        (OfScale, r"line \d+\) takes a gradient .* `out.task.scale_gradients\(out.logits"),
        (OfTwoClasses, r" on multilabel tasks' and \d more: .* `needs = Needs\(classes=True\)`"),
        (VarianceOfOne, r"has `needs = Needs\(environments=2\)` in its class\."),
    ],
)
@pytest.mark.usefixtures("few_tasks")
def test_a_mistake_is_told_once(cls: type[Algorithm], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence) as told:
        check_algorithm(cls, lambda line: None)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.usefixtures("few_tasks")
def test_the_command_ends_on_one_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "_classes", {**dict(algorithms.items()), "Mine": FirstRisk})
    monkeypatch.setenv("COLUMNS", "80")
    kept, broken, unknown = (type_in("conformance", name) for name in ("ERM", "Mine", "Mne"))
    assert (kept.exit_code, broken.exit_code, unknown.exit_code) == (0, 1, 2)
    assert "FirstRisk breaks 'Permuting the environments" in broken.output
    assert "did you mean Mine" in unknown.output and "--plugin MODULE" in unknown.output
    assert max(len(kept.output.splitlines()), len(broken.output.splitlines())) <= 24
