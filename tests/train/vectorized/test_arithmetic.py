"""Linear layers on columns under `vmap` against those of torch, run by run."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from oodbench.train.vectorized.arithmetic import vectorized_linear

RUNS = 3


def network(bias: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5, bias=bias), nn.Tanh(), nn.Linear(5, 2, bias=bias)).double()


def call(net: nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    def one(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        found: Tensor = functional_call(net, parameters, x)
        return found

    return one


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (6, 3, 4), (6, 3, 2, 4)], ids=["rows", "words", "maps"])
@pytest.mark.parametrize("shared", [True, False], ids=["same inputs", "own inputs"])
def test_layers_on_columns_are_those_of_each_run(
    shape: tuple[int, ...], bias: bool, shared: bool
) -> None:
    """Inputs of any number of axes, as those of the layers of a transformer."""
    runs = [network(bias) for _ in range(RUNS)]
    parameters, _ = stack_module_state(runs)
    x = torch.randn(*(() if shared else (RUNS,)), *shape, dtype=torch.float64)
    template = network(bias)
    with vectorized_linear(template):
        found = vmap(call(template), (0, None if shared else 0))(parameters, x)
    wanted = torch.stack([run(x if shared else x[k]) for k, run in enumerate(runs)])
    torch.testing.assert_close(found, wanted)
    ours = torch.autograd.grad(found.square().sum(), list(parameters.values()))
    for name, gradient in zip(parameters, ours, strict=True):
        own = [run.get_parameter(name) for run in runs]
        theirs = torch.autograd.grad(wanted.square().sum(), own, retain_graph=True)
        torch.testing.assert_close(gradient, torch.stack(theirs))


def test_the_layers_are_torchs_again_after_the_block() -> None:
    net = network(True)
    with pytest.raises(KeyError), vectorized_linear(net):
        raise KeyError
    assert not any("forward" in vars(module) for module in net.modules())
