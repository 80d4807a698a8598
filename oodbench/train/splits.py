"""The two splits of an environment: `in` (trained on, or scored) and `out` (for selection)."""

import torch
from torch import Tensor

from oodbench.datasets import Environment
from oodbench.seeds import derive


def split(
    environment: Environment, holdout: float, dataset: str, name: str, trial: int
) -> dict[str, Tensor]:
    """Sorted indices of the splits `in` and `out` (a share `holdout`, at least one group).

    They depend on (dataset, environment, trial) alone, and are those of the data if these come with
    their own. Examples of a group stay together; with `holdout` 0 everything is `in` and there is
    no `out`.
    """
    count = len(environment.y)
    if holdout == 0:
        return {"in": torch.arange(count)}
    if environment.out is not None:
        return _indices(environment.out)
    groups = environment.groups if environment.groups is not None else torch.arange(count)
    _, group = torch.unique(groups, return_inverse=True)
    total = int(group.max()) + 1 if count else 0
    generator = torch.Generator().manual_seed(derive("split", dataset, name, trial))
    order = torch.randperm(total, generator=generator)
    chosen = torch.zeros(total, dtype=torch.bool)
    chosen[order[: max(1, round(holdout * total))]] = True
    return _indices(chosen[group])


def _indices(out: Tensor) -> dict[str, Tensor]:
    return {"in": (~out).nonzero().squeeze(1), "out": out.nonzero().squeeze(1)}
