"""Per-unit gradients against a plain loop over the units, in float64."""

import copy
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Batch, Problem, algorithms
from oodbench.conformance.tiny_problems import (
    TASKS,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
)
from oodbench.gradients import layers
from oodbench.gradients.backward import Reduction, combined_backward, stacked_gradients
from oodbench.gradients.layers import OuterProducts
from oodbench.networks.base import Network, build
from oodbench.networks.mlp import Scales
from oodbench.tasks import Task

ANDMASK: Any = algorithms.get("ANDMask")


class Custom(nn.Module):
    """A layer that no rule knows: a learned exponent and a layer of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.linspace(0.5, 1.5, size))
        self.inner = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x).abs().add(0.1) ** self.exponent
        return result


class Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(self.layer(x).tanh())
        return result


class Unused(Twice):
    """The same layer, used twice; the second output is thrown away."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x).tanh()
        self.layer(result)
        return result


class Outside(nn.Module):
    """A parameter that is used outside its layer too."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x).tanh() @ self.layer.weight
        return result


class Several(nn.Module):
    """A layer with two outputs and one with two inputs."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.pair, self.product = Weighted(size), Weighted(size)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.product(*self.pair(x))
        return result


class Weighted(nn.Module):
    """x + w and x * w, or x * w * y."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, size))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        return (x + self.w, x * self.w) if y is None else x * self.w * y


class Words(nn.Module):
    """Three words an example, out of seven; the last is padding."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(7, size, padding_idx=6)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.table((x[:, :3].abs() * 5).long().clamp(max=6)).tanh().sum(1)
        return result


def image() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.Unflatten(1, (2, 4, 4)))


torch.manual_seed(0)
FEATURIZERS: dict[str, nn.Module] = {
    "mlp": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh()),
    "inplace": nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True)),
    "no_bias": nn.Sequential(nn.Linear(4, 5, bias=False), nn.LeakyReLU()),
    "sequence": nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3), nn.Flatten()),
    "scales": nn.Sequential(Scales(torch.rand(4)), nn.Linear(4, 5), Scales(torch.rand(5))),
    "shared": nn.Sequential(nn.Linear(4, 5), Twice(nn.Linear(5, 5))),
    "unused": nn.Sequential(nn.Linear(4, 5), Unused(nn.Linear(5, 5))),
    "words": Words(6),
    "norms": nn.Sequential(
        nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 6), nn.GroupNorm(2, 6)
    ),
    "rows": nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.LayerNorm(3), nn.Flatten()),
    "convolution": nn.Sequential(
        image(),
        nn.Conv2d(2, 4, 3, padding=1, stride=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 2, groups=2, bias=False, dilation=(1, 1)),
        nn.Flatten(),
    ),
    "dilated": nn.Sequential(image(), nn.Conv2d(2, 3, 2, dilation=3, padding=(1, 0)), nn.Flatten()),
}
REFLECTED = nn.Conv2d(2, 1, 2, padding=1, padding_mode="reflect")
FALLBACKS: dict[str, nn.Module] = {
    "custom": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), Custom(5)),
    "reflected": nn.Sequential(image(), REFLECTED, nn.Flatten()),
    "several": nn.Sequential(nn.Linear(4, 5), Several(5)),
    "outside": nn.Sequential(nn.Linear(4, 5), Outside(5)),
}
FALLING_BACK = [
    pytest.param(parts, marks=pytest.mark.filterwarnings("ignore:the gradients of"))
    for parts in FALLBACKS.values()
]
EVERY = [*FEATURIZERS, *FALLBACKS]
MASKED = ["mlp", "sequence", "shared", "words", "norms", "convolution"]
NORMALISED: dict[str, nn.Module] = {
    "dense": nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Linear(5, 5)
    ),
    "images": nn.Sequential(
        image(),
        nn.Conv2d(2, 3, 3, bias=False),
        nn.BatchNorm2d(3),
        nn.Tanh(),
        nn.Conv2d(3, 4, 2),
        nn.BatchNorm2d(4, affine=False, momentum=None),
        nn.Flatten(),
    ),
    "no_memory": nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False)),
}


class Example(Algorithm):
    @property
    def reduction(self) -> Reduction:
        return Reduction(combine=self.combine, unit="example")


def stacked_of(algorithm: Any, batch: Batch) -> dict[str, Tensor]:
    return stacked_gradients(algorithm.network, algorithm.units(batch, 0))


def combined_of(algorithm: Any, batch: Batch) -> None:
    combined_backward(algorithm.network, [algorithm.units(batch, 0)], algorithm.reduction)


def made(featurizer: nn.Module, cls: Any = Algorithm, **values: object) -> Any:
    network = Network()
    network.featurizer = copy.deepcopy(featurizer)
    network.num_features = copy.deepcopy(featurizer).eval()(torch.zeros(2, 4)).shape[1]
    network.classifier = nn.Linear(network.num_features, 3)
    algorithm = tiny_algorithm(cls, tiny_problem(TASKS["multiclass"]), values).double()
    torch.manual_seed(3)
    algorithm.network = network.double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    algorithm.optimizers = algorithm.configure()
    return algorithm


def losses_of(algorithm: Any, network: Any, x: Tensor, y: Tensor) -> Tensor:
    losses: Tensor = algorithm.problem.task.losses(network(x), y)
    return losses


def by_loop(algorithm: Any, batch: Batch, meaning: str) -> dict[str, Tensor]:
    """Stacked gradients from one backward pass for each unit."""
    size = batch.y[0].numel() * len(batch.y) // len(algorithm.units(batch, 0).x)
    x, y = batch.x.flatten(0, 1), batch.y.flatten(0, 1)
    network = copy.deepcopy(algorithm.network)
    if meaning == "rows":
        return by_own_rows(algorithm, x, y, size)
    if meaning == "pooled":
        for name, module in list(network.named_modules()):
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                parent, _, child = name.rpartition(".")
                setattr(network.get_submodule(parent), child, Constant(module))
    found = []
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        if meaning == "environment":
            losses = losses_of(algorithm, network, x[rows], y[rows])
        else:
            losses = losses_of(algorithm, network, x, y)[rows]
        network.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        found.append([p.grad.clone() for p in network.parameters()])
    names = [name for name, _ in algorithm.network.named_parameters()]
    stacks = [torch.stack(gradients) for gradients in zip(*found, strict=True)]
    return dict(zip(names, stacks, strict=True))


class Own(nn.Module):
    """A layer that sends some rows through a copy of itself with parameters of its own."""

    def __init__(self, layer: nn.Module, rows: slice) -> None:
        super().__init__()
        self.layer, self.own, self.rows = layer, copy.deepcopy(layer), rows

    def forward(self, x: Tensor) -> Tensor:
        chosen = torch.zeros(len(x), *[1] * (x.dim() - 1), dtype=torch.bool)
        chosen[self.rows] = True
        return torch.where(chosen, self.own(x), self.layer(x))


def by_own_rows(algorithm: Any, x: Tensor, y: Tensor, size: int) -> dict[str, Tensor]:
    """Stacked gradients of the sum of all risks by parameters that one unit's rows alone use."""
    stacks: dict[str, list[Tensor]] = {}
    for start in range(0, len(x), size):
        network = copy.deepcopy(algorithm.network)
        layers = [(n, m) for n, m in network.named_modules() if m._parameters or m._buffers]
        for name, layer in layers:
            parent, _, child = name.rpartition(".")
            own = Own(layer, slice(start, start + size))
            setattr(network.get_submodule(parent), child, own)
        (losses_of(algorithm, network, x, y).sum() / size).backward()  # type: ignore[no-untyped-call]
        for name, _ in algorithm.network.named_parameters():
            layer_name, _, parameter = name.rpartition(".")
            gradient = network.get_parameter(f"{layer_name}.own.{parameter}").grad
            assert gradient is not None
            stacks.setdefault(name, []).append(gradient)
    return {name: torch.stack(gradients) for name, gradients in stacks.items()}


class Constant(nn.Module):
    """Batch normalisation whose batch statistics are constants."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        if norm.weight is not None:
            self.weight, self.bias = norm.weight, norm.bias
        else:
            self.weight, self.bias = 1.0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        dims = [d for d in range(x.dim()) if d != 1]
        variance, mean = torch.var_mean(x.detach(), dims, correction=0, keepdim=True)
        shape = mean.shape
        weight, bias = (
            p.view(shape) if isinstance(p, Tensor) else p for p in (self.weight, self.bias)
        )
        return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def check(algorithm: Any, batch: Batch, meaning: str) -> None:
    """Stacks to 1e-10, and the masks of every tau in every component."""
    wanted = by_loop(algorithm, batch, meaning)
    found = stacked_of(algorithm, batch)
    assert found.keys() == wanted.keys()
    for name, stack in wanted.items():
        torch.testing.assert_close(found[name], stack, rtol=1e-10, atol=1e-10, msg=name)


def masks(algorithm: Any, batch: Batch, meaning: str) -> None:
    """The AND-mask by the fast way has the loop's components, for every tau."""
    stacks = by_loop(algorithm, batch, meaning)
    units = len(next(iter(stacks.values())))
    for level in range(units + 1):
        values = dict(vars(algorithm.hparams), tau=level / units)
        algorithm.hparams = type(algorithm.hparams)(**values)
        combined_of(algorithm, batch)
        for name, parameter in algorithm.network.named_parameters():
            stack = stacks[name].clone()
            stack[stack.abs() < 1e-13] = 0
            kept = stack.sign().sum(0).abs() >= level - 1e-4
            gradient = parameter.grad
            gradient = torch.where(gradient.abs() < 1e-13, 0, gradient)
            wanted = kept * stack.mean(0) / (1e-10 + kept.double().mean())
            torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-10, msg=name)


SIZES = [(1, 1), (1, 4), (3, 1), (5, 6)]


@pytest.fixture(params=SIZES, ids=str)
def batch(request: pytest.FixtureRequest) -> Iterator[Batch]:
    environments, examples = request.param
    yield tiny_batch(TASKS["multiclass"], 1, environments, examples)


@pytest.mark.parametrize("cls", [Algorithm, Example], ids=["environments", "examples"])
@pytest.mark.parametrize("parts", [*FEATURIZERS.values(), *FALLING_BACK], ids=EVERY)
def test_every_layer_gives_the_loops_gradients(parts: Any, cls: Any, batch: Batch) -> None:
    check(made(parts, cls), batch, "environment")


@pytest.mark.parametrize(
    ("name", "what"),
    [("custom", "layer Custom"), ("reflected", "layer Conv2d"), ("outside", "network Network")],
)
def test_the_fallback_says_so(name: str, what: str) -> None:
    with pytest.warns(UserWarning, match=f"gradients of the {what} are computed by torch.func"):
        stacked_of(made(FALLBACKS[name]), tiny_batch(TASKS["multiclass"]))


@pytest.mark.parametrize("unit", ["ANDMask", "ExampleANDMask"])
@pytest.mark.parametrize("parts", [*map(FEATURIZERS.get, MASKED), FALLING_BACK[0]])
@pytest.mark.parametrize(
    "block",
    [pytest.param(1, marks=pytest.mark.nightly), 40, 2**18],
    ids=lambda block: f"{block} at once",
)
def test_the_masks_are_the_loops_in_every_component(
    parts: Any, unit: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few elements of the stack are made at once."""
    monkeypatch.setitem(layers.BLOCK, "cpu", block)
    for environments, examples in ((1, 1), (3, 1), (2, 2), (3, 4)):
        batch = tiny_batch(TASKS["multiclass"], 2, environments, examples)
        masks(made(parts, algorithms.get(unit)), batch, "environment")


@pytest.mark.parametrize("unit", ["ANDMask", "ExampleANDMask"])
@pytest.mark.parametrize("meaning", ["environment", "rows", "pooled", "coupled"])
@pytest.mark.parametrize("name", list(NORMALISED))
def test_batch_normalisation_has_four_meanings(name: str, meaning: str, unit: str) -> None:
    batch = tiny_batch(TASKS["multiclass"], 1, 3, 4)
    algorithm = made(NORMALISED[name], algorithms.get(unit), batch_norm=meaning)
    if unit == "ExampleANDMask" and meaning == "environment":
        with pytest.raises(ValueError, match="more than one value per channel"):
            stacked_of(algorithm, batch)
        return
    before = copy.deepcopy(algorithm)
    check(algorithm, batch, meaning)
    masks(before, batch, meaning)


def test_the_default_meaning_depends_on_the_unit() -> None:
    batch = tiny_batch(TASKS["multiclass"])
    for name, meaning in (("ANDMask", "environment"), ("ExampleANDMask", "rows")):
        assert made(NORMALISED["dense"], algorithms.get(name)).units(batch, 0).batch_norm == meaning


@pytest.mark.parametrize("meaning", ["environment", "rows", "pooled"])
@pytest.mark.parametrize("name", ["dense", "images"])
def test_running_statistics_are_those_of_the_forward_passes(name: str, meaning: str) -> None:
    """One pass after the other over the environments, or one over the whole batch."""
    batch = tiny_batch(TASKS["multiclass"], 1, 3, 4)
    algorithm = made(NORMALISED[name], ANDMASK, batch_norm=meaning)
    network = copy.deepcopy(algorithm.network)
    stacked_of(algorithm, batch)
    for x in batch.x if meaning == "environment" else [batch.x.flatten(0, 1)]:
        network(x)
    for key, value in network.state_dict().items():
        torch.testing.assert_close(algorithm.network.state_dict()[key], value, msg=key)


def test_evaluation_mode_uses_the_running_statistics() -> None:
    batch = tiny_batch(TASKS["multiclass"], 1, 3, 4)
    algorithm = made(NORMALISED["dense"])
    algorithm.network(batch.x[0])
    algorithm.eval()
    check(algorithm, batch, "environment")


@pytest.mark.parametrize(("name", "shape"), [("ConvNet", (2, 6, 6)), ("FastResNet", (3, 8, 8))])
def test_the_convolutional_networks_take_the_fast_way(
    name: str, shape: tuple[int, ...], recwarn: pytest.WarningsRecorder
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, *shape, generator=generator, dtype=torch.float64)
    batch = Batch(x, torch.randint(3, (2, 3), generator=generator))
    problem = Problem(shape, Task("multiclass", 3), ("a", "b"), 10)
    for unit, meaning in (
        ("ANDMask", "environment"),
        ("ExampleANDMask", "rows"),
        ("ExampleANDMask", "pooled"),
        ("ExampleANDMask", "coupled"),
    ):
        cls: Any = algorithms.get(unit)
        network = build(name, {"width": 2}, shape, 3, 0)
        check(cls(network, problem, cls.Hparams(batch_norm=meaning)).double(), batch, meaning)
    assert not recwarn.list


@pytest.mark.parametrize("name", ["convolution", "dilated"])
def test_convolutions_by_torchs_own_kernel_give_the_loops_gradients(
    name: str, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "KERNEL_UNITS", {"cpu": 5})
    check(made(FEATURIZERS[name]), batch, "environment")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", ["convolution", "dilated", "mlp"])
def test_the_loops_gradients_on_a_gpu(name: str, batch: Batch) -> None:
    check(made(FEATURIZERS[name]).cuda(), Batch(batch.x.cuda(), batch.y.cuda()), "environment")


class Through(Algorithm):
    """Combines gradients as ERM does."""

    def combine(self, gradients: Tensor) -> Tensor:
        return super().combine(gradients)


def test_parameters_that_are_fixed_or_that_no_risk_depends_on_get_no_gradient() -> None:
    algorithm = made(FEATURIZERS["mlp"], ANDMASK)
    network = algorithm.network
    network.spare = nn.Linear(3, 3).double()
    for fixed in (network.featurizer[0], network.classifier):
        fixed.requires_grad_(False)
    combined_of(algorithm, tiny_batch(TASKS["multiclass"]))
    found = {name for name, p in network.named_parameters() if p.grad is not None}
    assert found == {"featurizer.2.weight", "featurizer.2.bias"}


def test_the_network_is_left_as_it_was() -> None:
    algorithm = made(FEATURIZERS["mlp"])
    x = torch.ones(2, 4, dtype=torch.float64)
    before = algorithm.network(x)
    with pytest.raises(IndexError):
        stacked_of(algorithm, Batch(torch.ones(2, 3, 4).double(), torch.full((2, 3), 7)))
    assert torch.equal(algorithm.network(x), before)
    assert not any("forward" in module.__dict__ for module in algorithm.network.modules())


def test_a_gradient_that_is_not_a_number_stays_visible() -> None:
    """A masked component too: the run is to be found diverged, not to be healed in silence."""
    for unit, name in itertools.product(("ANDMask", "ExampleANDMask"), ("mlp", "convolution")):
        algorithm = made(FEATURIZERS[name], algorithms.get(unit))
        batch = tiny_batch(TASKS["multiclass"])
        batch.x[1, 2, 0] = float("nan")
        combined_of(algorithm, batch)
        weight = algorithm.network.classifier.weight
        assert weight.grad.isnan().all()


@pytest.mark.parametrize(
    ("name", "cls", "count"),
    [
        *(("mlp", cls, 3) for cls in (Through, Example)),
        *((name, algorithms.get("ExampleANDMask"), 0) for name in ("mlp", "shared")),
    ],
)
def test_a_layers_stack_is_freed_before_the_next_is_made_and_signs_of_examples_need_none(
    name: str, cls: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from products of signs; those of two uses of a layer are added as they are."""
    alive: list[weakref.ref[Tensor]] = []
    stacked = OuterProducts.stacked

    def watched(self: OuterProducts) -> Tensor:
        assert not any(stack() is not None for stack in alive)
        stack = stacked(self)
        alive.append(weakref.ref(stack))
        return stack

    monkeypatch.setattr(OuterProducts, "stacked", watched)
    combined_of(made(FEATURIZERS[name], cls), tiny_batch(TASKS["multiclass"]))
    assert len(alive) == count
