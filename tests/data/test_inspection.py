from pathlib import Path

import pytest
import torch
from torch import Tensor

from oodbench.columns import Columns
from oodbench.data.audit import audit_of
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
    made = Made(Made.Options())
    a, b = inspect(made)
    assert (a.name, a.size, a.balance) == ("a", 10, "30.0, 30.0, 20.0, 20.0 %")
    assert (a.unreadable, a.repeated) == (["4.png cannot be read"], 0)
    assert (b.size, b.balance) == (5, "60.0, 20.0, 20.0, 0.0 %")
    assert (b.unreadable, b.repeated) == ([], 4)
    (copies,) = [f for f in audit_of(made, [a, b]) if f.environments == ("b", "a")]
    assert (copies.kind, copies.counts) == ("copies", {"examples": 5, "of": 5})


def found_in(dataset: Dataset) -> list[object]:
    """The environments with repeated inputs, and the findings on inputs that environments share."""
    every = inspect(dataset)
    shared = [f for f in audit_of(dataset, every) if f.kind in ("copies", "equal inputs")]
    return [*[c for c in every if c.repeated], *shared]


def test_inspection_fits_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitting imports scikit-learn, which takes as long as all else."""
    rows = "".join(f"{i}.5,{i % 2},{'ab'[i % 3 % 2]}\n" for i in range(60))
    (tmp_path / "t.csv").write_text(f"age,target,environment\n{rows}")
    monkeypatch.delattr(Columns, "fitted")
    assert sum(c.size for c in inspect(make("Table", {"file": "t.csv"}, tmp_path))) == 60


def test_inputs_that_repeat_by_design_are_not_reported() -> None:
    made = Made(Made.Options())
    vars(made)["repeats"] = True
    assert not found_in(made)
    for name, options in (("ColoredDigits", {}), ("NoisyLabels", {"base": "digits"})):
        assert not found_in(make(name, options)), name
