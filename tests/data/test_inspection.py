import torch
from torch import Tensor

from oodbench.data.preparation import inspect
from oodbench.data.streams import Stored
from oodbench.datasets import Dataset, Environment, datasets, make
from oodbench.errors import UserError
from oodbench.tasks import Task


class Broken(Stored):
    """Ten images of which the fourth cannot be read."""

    shape = (3, 2, 2)

    def __len__(self) -> int:
        return 10

    def read(self, index: Tensor) -> Tensor:
        if 3 in index:
            raise UserError("4.png cannot be read")
        return index[:, None, None, None].expand(-1, *self.shape).to(torch.uint8)


class Made(Dataset):
    environments = ("a", "b")
    test_environments = ("b",)
    input_shape = (3, 2, 2)
    task = Task("multiclass", 4)

    def load(self, trial: int) -> dict[str, Environment]:
        images = torch.full((5, 3, 2, 2), 7, dtype=torch.uint8)
        return {
            "a": Environment(Broken(), torch.arange(10) % 4),
            "b": Environment(images, torch.tensor([0, 0, 0, 1, 2])),
        }


Made.name, Made.metadata = "Made", datasets.get("Spirals").metadata


def test_contents() -> None:
    a, b = inspect(Made(Made.Options()))
    assert (a.name, a.size, a.balance) == ("a", 10, "30.0, 30.0, 20.0, 20.0 %")
    assert (a.unreadable, a.repeated, a.shared) == (["4.png cannot be read"], 0, {"b": 1})
    assert (b.size, b.balance) == (5, "60.0, 20.0, 20.0, 0.0 %")
    assert (b.unreadable, b.repeated, b.shared) == ([], 4, {"a": 1})


def test_inputs_that_repeat_by_design_are_not_reported() -> None:
    made = Made(Made.Options())
    vars(made)["repeats"] = True
    assert [(c.repeated, c.shared) for c in inspect(made)] == [(0, {}), (0, {})]
    for name, options in (("ColoredDigits", {}), ("NoisyLabels", {"base": "digits"})):
        found = inspect(make(name, options))
        assert not any(c.repeated or c.shared for c in found), name
