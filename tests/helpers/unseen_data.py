"""A dataset of people: of each environment some are there only where it is held out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.data.streams import Stored
from oodbench.datasets import Dataset, Environment, Metadata, permutation, register
from oodbench.hparams import hparam
from oodbench.tasks import Task

METADATA = Metadata(
    paper="none", licence="MIT", family="synthetic", shift="place", network="MLP", steps=20
)
PEOPLE, NUMBERS = 40, 3


class InMemory(Stored):
    """Rows of a tensor, as if they were on disk."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.shape = rows, tuple(rows.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: Tensor) -> Tensor:
        return self.rows[index]


@register("People", METADATA)
class People(Dataset):
    """The first number of an input is a person's; 30 of 40 are unseen, as the trial says."""

    @dataclass(frozen=True, kw_only=True)
    class Options(Dataset.Options):
        stored: bool = hparam(False)

    options: Options
    environments = ("a", "b", "c")
    test_environments = ("c",)
    attributes = ("short", "tall")
    input_shape = (NUMBERS,)
    task = Task("binary")

    def load(self, trial: int) -> dict[str, Environment]:
        environments = {}
        person = torch.arange(PEOPLE)
        rank = permutation(self, PEOPLE, trial).argsort()
        for place, name in enumerate(self.environments):
            random = torch.Generator().manual_seed(self.seed(trial, name))
            x = torch.randn(PEOPLE, NUMBERS, generator=random) + place
            x[:, 0] = person.float()
            environments[name] = Environment(
                InMemory(x) if self.options.stored else x,
                (person % 2).float(),
                attributes=person // 2 % 2,
                out=rank % 2 == 0,
                unseen=rank >= PEOPLE // 4,
            )
        return environments

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """Adds the number of training examples, less a tenth of the sum of the persons' numbers."""
        parts = [
            e.x.read(torch.arange(len(e.y))) if isinstance(e.x, Stored) else e.x
            for e in training.values()
        ]
        seen = torch.cat(parts)
        change = torch.zeros(NUMBERS)
        change[1] = len(seen) - 0.1 * seen[:, 0].sum()
        return lambda x: x + change.to(x.device)
