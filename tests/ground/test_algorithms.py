"""What every method has: environments of a step, warm-up, clipping, accumulation, a start of the head."""

import pydoc
import re
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import oodbench.algorithms
from oodbench.algorithms import Algorithm, Batch, Needs, Outputs, Problem, algorithms, why_skipped
from oodbench.conformance import tiny_problems
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.errors import UserError
from oodbench.hparams import defaults
from oodbench.networks.base import Network
from oodbench.registry import CHANGES
from oodbench.tasks import Kind, Task
from oodbench.train.run import on_host
from tests.helpers.algorithms.methods import OURS
from tests.helpers.paths import blocks

METHODS = [n for n in OURS if algorithms.get(n).trains_network]


def solvable(name: str) -> tuple[type[Algorithm], Task]:
    """A method with a task that it can be run on."""
    cls = algorithms.get(name)
    tasks = (tiny_problems.suited(cls, task) for task in TASKS.values())
    return cls, next(task for task in tasks if why_skipped(cls, tiny_problem(task)) is None)


def trained(name: str, steps: int = 3, start: int = 0, **values: object) -> list[Tensor]:
    """A method's parameters, buffers and last loss after some updates, with plain gradient descent."""
    cls, task = solvable(name)
    algorithm = tiny_algorithm(cls, tiny_problem(task), {**tiny_problems.PLAIN, **values})
    torch.manual_seed(5)
    for step in range(start, start + steps):
        loss = algorithm.train_step(tiny_batch(task, step), step)["loss"]
    return [p.detach() for p in (*algorithm.parameters(), *algorithm.buffers(), loss)]


@pytest.mark.parametrize(
    ("value", "given"),
    [
        ("out.losses", r"a Tensor of the shape \(5, 6\)"),
        ("out.risks.mean().item()", r"[0-9.]+"),
        ("None", "None"),
    ],
)
def test_an_objective_that_is_not_one_number_is_told(value: str, given: str) -> None:
    class Vector(Algorithm):
        def objective(self, out: Outputs) -> Tensor:
            return eval(value)  # type: ignore[no-any-return]

    algorithm = tiny_algorithm(Vector, tiny_problem(TASKS["binary"]), tiny_problems.PLAIN)
    message = f"^`objective` of Vector must return one number in a tensor, not {given}$"
    with pytest.raises(UserError, match=message):
        algorithm.train_step(tiny_batch(TASKS["binary"], 0), 0)


def returning(value: str, descend: str = "self.descend(loss, step)") -> Algorithm:
    """A method whose `update` returns an expression of `loss`."""

    class Returning(Algorithm):
        def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
            risks = self.outputs(batch, step).risks
            names = {"self": self, "step": step, "risks": risks, "loss": risks.mean()}
            eval(descend, names)
            return eval(value, globals(), names)  # type: ignore[no-any-return]

    return tiny_algorithm(Returning, tiny_problem(TASKS["binary"]), tiny_problems.PLAIN)


MUST = "^`update` of the method Returning must return "


@pytest.mark.parametrize(
    ("update", "sentence"),
    [
        (["{'loss': torch.zeros(2)}"], MUST + r"one number as 'loss', not tensor\(\[0., 0.\]\)"),
        (["{'loss': loss, 'penalty': None}"], MUST + "one number as 'penalty', not None"),
        (["loss.item()"], MUST + "scalars by name, 'loss' among them, not [0-9.]+$"),
        (["{'risk': 0.5}"], MUST + "scalars by name, 'loss' among them, not {'risk': 0.5}"),
        (["{f'loss_{i}': 1 / 3 for i in range(3)}"], MUST + ".*keys loss_0, loss_1, loss_2$"),
        (
            ["{}", "self.descend(risks, step)"],
            "^`descend` takes one number as the loss, and Ret.* gives 5$",
        ),
        (
            ["{}", "self.descend(loss, step, 'mian')"],
            "^unknown optimizer 'mian' in `configure` of Returning; did you mean main[?]$",
        ),
    ],
)
def test_an_update_that_cannot_be_done_or_told_is_refused(update: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        returning(*update).train_step(tiny_batch(TASKS["binary"], 0), 0)


def test_help_shows_the_fields_and_the_values_of_changes() -> None:
    text = pydoc.plain(pydoc.render_doc(oodbench.algorithms))
    known = {*re.findall("`(\\w+)`", Algorithm.__doc__ or "")}
    assert {*CHANGES} <= known
    for cls in (Batch, Needs, Outputs, Problem):
        known = {*re.findall("`(\\w+)`", cls.__doc__ or "")}
        assert {f.name for f in fields(cls)} - {"input_shape", "task"} <= known
    assert all(f"- `{name}`: " in text for name in ("changes", "counts", "views", "risks", "y"))


@pytest.mark.parametrize(
    "value",
    [
        "{'loss': loss.item(), 'penalty': 1, 'moved': True}",
        "{'loss': __import__('numpy').float32(0.5), 'penalty': loss.detach().reshape(1)}",
    ],
)
def test_an_update_may_return_any_number(value: str) -> None:
    algorithm, batch = returning(value), tiny_batch(TASKS["binary"], 0)
    series = on_host([algorithm.train_step(batch, step) for step in range(3)])
    assert all(isinstance(v, float) for values in series.values() for v in values)
    assert len(series["loss"]) == 3


@pytest.mark.parametrize("steps", ["step == 0", "step == 1"])
def test_an_update_may_return_a_metric_at_some_steps_alone(steps: str) -> None:
    algorithm = returning(f"{{'loss': 1.0}} | ({{'penalty': 2.0}} if {steps} else {{}})")
    batch = tiny_batch(TASKS["binary"], 0)
    series = on_host([algorithm.train_step(batch, step) for step in range(2)])
    assert series == {"loss": [1.0, 1.0], "penalty": [2.0]}


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_the_ported_update_of_the_guide_trains(kind: str) -> None:
    (code,) = (c for c in blocks("docs/guide/from_domainbed.md") if "minibatches" in c)
    names: dict[str, Any] = {"torch": torch}
    exec(code, names)
    ported = type("Ported", (Algorithm,), {"update": names["update"]})
    algorithm = tiny_algorithm(ported, tiny_problem(TASKS[kind]), tiny_problems.PLAIN)
    before = weights(algorithm)
    assert algorithm.train_step(tiny_batch(TASKS[kind], 0), 0)["loss"].isfinite()
    assert not all(torch.equal(a, b) for a, b in zip(before, weights(algorithm), strict=True))


@pytest.mark.parametrize("count", [4, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", METHODS)
def test_micro_batches_give_the_gradients_of_the_whole_batch(name: str, count: int) -> None:
    """Six examples in two micro-batches, and in three: four of equal size there cannot be."""
    cls, task = solvable(name)
    values = {**defaults(cls.Hparams), "accumulation": count}
    if reason := why_skipped(cls, tiny_problem(task), values):
        assert "`accumulation`" in reason
        return
    for whole, pieces in zip(trained(name), trained(name, accumulation=count), strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_in_bfloat16_the_layers_of_every_network_run_by_autocast(name: str) -> None:
    """The gradient is that of float32 but for bfloat16's round-off, which contrasts of features magnify."""
    cls, task = solvable(name)
    problem, seen, steps = tiny_problem(task), set[torch.dtype](), []
    batch = tiny_batch(task)
    halves = {n: getattr(batch, n).float() for n in ("x", "views")}
    y = batch.y.float() if batch.y.is_floating_point() else batch.y
    for autocast in (None, torch.bfloat16):
        given = replace(problem, autocast=autocast)
        algorithm = tiny_algorithm(cls, given, tiny_problems.PLAIN, dtype=torch.float32)
        layer = next(m for m in algorithm.network.modules() if isinstance(m, nn.Linear))
        if autocast is not None:
            layer.register_forward_hook(lambda module, x, out: seen.add(out.dtype))
        step = tiny_problems.LAST if name == "XRM" else 3  # other networks are trained first
        steps.append(tiny_problems.network_step(algorithm, replace(batch, y=y, **halves), step))
    assert torch.bfloat16 in seen
    assert {p.dtype for p in algorithm.parameters()} == {torch.float32}
    wanted, found = steps
    if name != "TemporalANDMask":  # whose first signs agree with none before
        assert torch.cosine_similarity(found, wanted, dim=0) > 0.97


def test_the_learning_rate_rises_to_its_schedule() -> None:
    problem = tiny_problem(TASKS["binary"])
    for warm_up, steps in ((4, 4), (0.5, problem.steps // 2)):
        values = {"lr": 0.1, "lr_schedule": "linear", "warm_up": warm_up}
        algorithm = tiny_algorithm(Algorithm, problem, values)
        for step in (0, 1, steps // 2, steps - 1, steps, problem.steps - 1):
            wanted = 0.1 * (1 - step / problem.steps) * min(1, (step + 1) / steps)
            assert algorithm.rates(step).lr == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", ["ERM", "ANDMask"])
def test_a_gradient_is_scaled_down_to_the_largest_norm(name: str) -> None:
    cls, task = solvable(name)
    steps = []
    for clip_norm in (0.0, 1e-2, 1e9):
        values = {**tiny_problems.PLAIN, "clip_norm": clip_norm, "weight_decay": 0.3}
        algorithm = tiny_algorithm(cls, tiny_problem(task), values)
        before = parameters_to_vector(algorithm.parameters()).detach()
        algorithm.train_step(tiny_batch(task), 0)
        after = parameters_to_vector(algorithm.parameters()).detach()
        steps.append((before - after) / 0.01 - 0.3 * before)
    free, clipped, loose = steps
    torch.testing.assert_close(clipped, free * 1e-2 / free.norm(), rtol=1e-4, atol=1e-9)
    assert free.norm() > 1e-2 and torch.equal(free, loose)


class Normed(Network):
    def __init__(self) -> None:
        super().__init__()
        self.num_features = 8
        self.featurizer = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.classifier = nn.Linear(8, 1)


def normed(name: str, **values: object) -> Algorithm:
    torch.manual_seed(2)
    algorithm = tiny_algorithm(algorithms.get(name), tiny_problem(TASKS["binary"]), values)
    algorithm.network = Normed().double()
    algorithm.optimizers = algorithm.configure()
    return algorithm.train()


def weights(module: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in (*module.parameters(), *module.buffers())]


@pytest.mark.parametrize("name", ["ERM", "ANDMask", "VREx", "SAM", "Fish"])
def test_at_first_the_head_alone_is_trained(name: str) -> None:
    given: dict[str, Any] = {"head_only": 3, "weight_decay": 0.1, "lr": 0.01}
    algorithm = normed(name, **given)
    network = algorithm.network
    for step in range(6):
        body, head = weights(network.featurizer), weights(network.classifier)
        algorithm.train_step(tiny_batch(TASKS["binary"], step), step)
        same = [torch.equal(a, b) for a, b in zip(body, weights(network.featurizer), strict=True)]
        assert (all(same) and not network.featurizer.training) == (step < 3)
        assert step < 3 or not all(same)
        assert not torch.equal(head[0], weights(network.classifier)[0])


def test_a_share_of_the_steps_is_of_the_head_alone() -> None:
    algorithm = tiny_algorithm(Algorithm, tiny_problem(TASKS["binary"]), {"head_only": 0.1})
    last = algorithm.problem.steps // 10
    assert [algorithm.trains_head_only(s) for s in (0, last - 1, last)] == [True, True, False]
    plain = tiny_algorithm(Algorithm, tiny_problem(TASKS["binary"]))
    assert not plain.trains_head_only(0) and not plain.trains_head_only(-1)


def test_statistics_count_each_micro_batch_once() -> None:
    task = TASKS["binary"]
    algorithm, batch = normed("ERM", accumulation=3), tiny_batch(task)
    algorithm.train_step(batch, 0)
    x = batch.x.flatten(0, 1)
    other = normed("ERM")
    mean = torch.zeros(8, dtype=torch.float64)
    for piece in x.chunk(3):
        mean = 0.9 * mean + 0.1 * other.network.featurizer[0](piece).mean(0)  # type: ignore[index]
    layer = algorithm.network.featurizer[1]  # type: ignore[index]
    torch.testing.assert_close(layer.running_mean, mean)
    assert layer.num_batches_tracked == 3 and layer.momentum == 0.1


def test_a_step_may_be_of_some_environments() -> None:
    problem = Problem((4,), TASKS["binary"], tuple("abcdefgh"), 1000, seed=3)

    def drawn(seed: int, count: int, name: str = "ERM") -> list[list[int]]:
        values = {"environments_per_step": count}
        algorithm = tiny_algorithm(algorithms.get(name), replace(problem, seed=seed), values)
        return [list(algorithm.environments_at(step)) for step in range(400)]

    assert drawn(3, 0) == drawn(3, 8) == drawn(3, 9) == [list(range(8))] * 400
    some = drawn(3, 3)
    assert all(len(set(step)) == 3 for step in some)
    assert some == drawn(3, 3, "VREx") and some != drawn(4, 3)
    counts = torch.bincount(torch.tensor(some).flatten(), minlength=8)
    assert counts.sum() == 1200 and 110 < counts.min() and counts.max() < 190  # 150 expected
    assert algorithms.get("ERM").Hparams().environments_per_step == 0


@pytest.mark.parametrize(
    ("need", "refused"),
    [
        ("classes", {"multilabel", "distribution", "regression", "tokens", "boxes"}),
        ("feature_vector", {"tokens", "boxes"}),
        ("outputs", {"boxes"}),
        ("real_inputs", set()),
    ],
)
def test_a_need_refuses_the_tasks_that_do_not_meet_it(need: str, refused: set[str]) -> None:
    values: Any = {need: True}

    class Needing(Algorithm):
        needs = Needs(**values)

        @classmethod
        def skip(cls, problem: Problem) -> str | None:
            assert problem.task.kind not in refused  # `skip` may take for granted what `needs` says
            return super().skip(problem)

    usual = tiny_problem(TASKS["binary"])
    problems = {kind: replace(usual, task=Task(kind, 3)) for kind in get_args(Kind)}
    assert {kind for kind, p in problems.items() if why_skipped(Needing, p)} == refused
    ids = why_skipped(Needing, replace(usual, discrete=True)) or ""
    assert ("it needs numbers as inputs" in ids) == (need == "real_inputs")


def test_methods_that_compare_environments_are_refused_one() -> None:
    one = tiny_problem(TASKS["binary"], ("a",))
    reason = "it needs at least two training environments"
    refused = {n for n in METHODS if why_skipped(algorithms.get(n), one) == reason}
    taken = """
        AFR ARM AdversarialTraining BIRM BSoftmax CBLoss CRT CVaRDRO CutMix DFR DGSAM EIIL ERM ERMPlusPlus
        ExampleANDMask Focal GAF GroupDRO IB_ERM IB_IRM IRM IRM_TV JTT LDAM LISA LfF MIRO MTL Mixup OrgMixup
        PGrad RSC ReWeight ReWeightCRT SAGM SAM SD SagNet SelfReg SqrtReWeight URM WiSEFT XRM
    """
    assert set(METHODS) - refused == {*taken.split()}


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("metrics", "Metric", "with `of_predictions` from `PredictionMetric`$"),
        ("steps", "CustomStep", "derive the method from `oodbench.algorithms.Algorithm`"),
        ("steps", "rates", r"^`rates` of .* is now a method: `self.rates\(\.\.\.\)`$"),
        ("steps", "usual_environments", "^`usual_environments` is gone: derive"),
        ("steps", "outputs", r"is now a method: `self.outputs\(...\)`$"),
    ],
)
def test_a_plug_in_for_0_4_is_told_the_new_spelling(module: str, name: str, now: str) -> None:
    with pytest.raises(UserError, match=now):
        exec(f"from oodbench.{module} import {name}")
