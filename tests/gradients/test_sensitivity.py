"""Loss sensitivity against finite differences, and the Gini coefficient against its definition."""

import pytest
import torch
from torch import Tensor, nn

from oodbench.gradients.critical import gini, loss_sensitivity

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
