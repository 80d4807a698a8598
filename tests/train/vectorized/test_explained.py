from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from oodbench.train.vectorized import explained
from oodbench.train.vectorized.program import OfEachRun

KEPT = torch.zeros(4)
NAMES: Any = OfEachRun(("a", "b"))
SIZES: Any = OfEachRun((2, 2))


def branch(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


class Method:
    """The hooks of a method, one of which breaks."""

    def __init__(self, body: Callable[[Tensor], Any]) -> None:
        self.body = body

    def objective(self, x: Tensor) -> Any:
        return self.body(x)

    def next_buffers(self, x: Tensor) -> Any:
        return self.body(x)


@pytest.mark.parametrize(
    ("body", "advice"),
    [
        (branch, "branches in Python"),
        (lambda x: x * max(x.sum(), 0), "branches in Python"),
        (lambda x: x * x.sum().item(), "stay with tensors"),
        (lambda x: x * torch.rand(()), "make them in `noise`"),
        (lambda x: x[x > 0].sum(), "multiply by the mask"),
        (lambda x: torch.unique(x).sum(), "multiply by the mask"),
        (lambda x: x.numpy(), "stay with tensors"),
        (lambda x: x * NAMES.index("b"), "read them in `__init__`"),
        (lambda x: x * ("b" in NAMES), "read them in `__init__`"),
        (lambda x: x * (NAMES == ("a", "b")), "read them in `__init__`"),
        (lambda x: x * sum(SIZES), "read them in `__init__`"),
        (lambda x: x * torch.tensor(SIZES), "read them in `__init__`"),
        (lambda x: torch.split(x, SIZES), "read them in `__init__`"),
        (lambda x: x * torch.ones(SIZES), "read them in `__init__`"),
        (lambda x: KEPT.copy_(x), "from `next_buffers`"),
        (lambda x: KEPT.add_(x), "from `next_buffers`"),
    ],
)
def test_an_error_says_what_to_write_instead(body: Callable[[Tensor], Any], advice: str) -> None:
    method = Method(body)
    for hook in (method.objective, method.next_buffers):
        with pytest.raises((RuntimeError, TypeError, ValueError, AttributeError)) as caught:
            vmap(hook)(torch.randn(3, 4))
        found = explained(caught.value)
        assert found is not None and found.startswith(
            f"`{hook.__name__}` (test_explained.py, line "
        )
        assert advice in found
