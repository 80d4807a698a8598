"""Critical samples against a search of every box; loss sensitivity against finite differences."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import oodbench
from oodbench.errors import UserError
from oodbench.gradients.critical import critical_samples, gini, langevin_search, loss_sensitivity

RADIUS = 0.3


class Rings(nn.Module):
    """Two classes in the plane: inside and outside of a circle, rippled so that boundaries curve."""

    def forward(self, x: Tensor) -> Tensor:
        z = 3 * (x.norm(dim=1) - 1 + 0.2 * (5 * x[:, 0]).sin())
        return torch.stack([z, -z], 1)


class Of(nn.Module):
    """The module of a function."""

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def grid(size: int, width: float) -> Tensor:
    line = torch.linspace(-width, width, size)
    return torch.cartesian_prod(line, line)


def brute_force(model: Rings, x: Tensor, radius: float) -> Tensor:
    """Whether any point of a fine grid over each box is of another class."""
    boxes = x.unsqueeze(1) + grid(61, radius)
    classes = model(boxes.flatten(0, 1)).argmax(1).view(len(x), -1)
    changed: Tensor = classes != model(x).argmax(1).unsqueeze(1)
    return changed.any(1)


def search(x: Tensor, **changed: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return langevin_search(Rings(), x, RADIUS, 0.25, 0.2, steps=200, generator=generator, **changed)


def test_every_critical_point_of_a_grid_is_found_and_none_outside_its_box() -> None:
    x = grid(41, 2.0) + 0.003
    found, near = search(x)
    assert torch.equal(found, brute_force(Rings(), x, RADIUS))
    assert 0.2 < found.float().mean() < 0.8
    changed = Rings()(near).argmax(1) != Rings()(x).argmax(1)
    assert torch.equal(changed, found)
    assert (near - x).abs().max() <= RADIUS * (1 + 1e-6)


def test_neighbours_stay_within_the_limits() -> None:
    x = grid(21, 0.9)
    found, near = search(x, low=-0.9, high=0.9)
    assert near.abs().max() <= 0.9
    assert found.sum() < search(x)[0].sum()


def test_units_scale_radius_step_and_noise() -> None:
    """In units of a standard deviation, the same images have the same critical samples."""
    x, std = grid(21, 2.0), torch.tensor([0.5, 4.0])
    scaled = nn.Sequential(Of(lambda x: x * std), Rings())
    mask = critical_samples(scaled, x / std, scale=1 / std)
    assert torch.equal(mask, critical_samples(Rings(), x))
    assert mask.any() and not mask.all()


def test_the_mode_and_the_parameters_are_left_as_they_were() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 1)).train()
    model[0].eval()  # as a frozen layer's
    first, again = (oodbench.critical_samples(model, grid(9, 1.0)) for _ in range(2))
    assert torch.equal(first, again) and first.any()
    assert [m.training for m in model.modules()] == [True, False, True, True]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (Of(lambda x: x.sum(1)), grid(3, 1.0), r"logits \(9, C\) of classes, not \(9,\)"),
        (Of(lambda x: x.detach()), grid(3, 1.0), "predictions that can be differentiated"),
        (nn.Linear(2, 2), grid(3, 1.0).byte(), "a tensor of floats, not torch.uint8"),
        (nn.Linear(2, 2), grid(3, 1.0).numpy(), "a tensor of floats, not ndarray"),
        (torch.tanh, grid(3, 1.0), "a torch.nn.Module, not builtin_function_or_method"),
    ],
)
def test_what_cannot_be_searched_is_said(model: Any, x: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        critical_samples(model, x)


def test_a_size_below_0_is_refused() -> None:
    for name in ("radius", "alpha", "beta", "scale"):
        size: dict[str, Any] = {name: -1}
        with pytest.raises(UserError, match=f"need {name} from 0 on, not -1"):
            critical_samples(nn.Linear(2, 2), grid(3, 1.0), **size)


N, CLASSES, LR = 12, 3, 0.3


class Problem:
    """A small network in double precision, its examples, and four batches that repeat some of them."""

    def __init__(self, *norm: nn.Module) -> None:
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(4, 5), *norm, nn.Tanh(), nn.Linear(5, CLASSES))
        self.network.double()
        self.x = torch.randn(N, 4, dtype=torch.float64)
        self.y = torch.arange(N) % CLASSES
        self.batches = [torch.randperm(N)[:4] for _ in range(4)]
        self.parts = nn.functional.one_hot(self.y, CLASSES).double().T / N

    losses = staticmethod(nn.CrossEntropyLoss(reduction="none"))

    def after(self, x: Tensor) -> list[Tensor]:
        """The loss of each class after every update with the inputs `x`, by torch's optimizer."""
        kept = {name: value.clone() for name, value in self.network.state_dict().items()}
        optimizer = torch.optim.SGD(self.network.parameters(), lr=LR)
        found = []
        for batch in self.batches:
            optimizer.zero_grad()
            self.losses(self.network(x[batch]), self.y[batch]).mean().backward()
            optimizer.step()
            with torch.no_grad():
                found.append(self.parts @ self.losses(self.network(self.x), self.y))
        self.network.load_state_dict(kept)
        return found

    def by_differences(self, h: float = 1e-5) -> Tensor:
        slopes = torch.zeros(len(self.batches), CLASSES, *self.x.shape, dtype=torch.float64)
        for i in range(N):
            for k in range(4):
                shift = torch.zeros_like(self.x)
                shift[i, k] = h
                pairs = zip(self.after(self.x + shift), self.after(self.x - shift), strict=True)
                for t, (up, down) in enumerate(pairs):
                    slopes[t, :, i, k] = (up - down) / (2 * h)
        return slopes


@pytest.mark.parametrize("norm", [(), (nn.LayerNorm(5),)])
def test_sensitivity_is_that_of_finite_differences(norm: tuple[nn.Module, ...]) -> None:
    p = Problem(*norm)
    found = loss_sensitivity(p.network, p.losses, p.x, p.y, p.batches, lr=LR, parts=p.parts)
    wanted = p.by_differences()
    torch.testing.assert_close(found, wanted.abs().sum(-1), rtol=0, atol=1e-6)
    assert found.shape == (4, CLASSES, N) and found.max() > 1e-2
    whole = loss_sensitivity(p.network, p.losses, p.x, p.y, p.batches, lr=LR, every=2)
    torch.testing.assert_close(whole[:, 0], wanted.sum(1).abs().sum(-1)[1::2], rtol=0, atol=1e-6)
    never = [i for i in range(N) if not any(i in batch for batch in p.batches)]
    assert never and (whole[..., never] == 0).all()


def test_gini_is_its_definition() -> None:
    values = torch.rand(3, 40, dtype=torch.float64).square()
    pairs = (values.unsqueeze(-1) - values.unsqueeze(-2)).abs().mean((-1, -2))
    torch.testing.assert_close(gini(values), pairs / (2 * values.mean(-1)))
    assert gini(torch.ones(5)).item() == 0
    assert gini(torch.tensor([0.0, 0.0, 0.0, 1.0])).item() == pytest.approx(0.75)
