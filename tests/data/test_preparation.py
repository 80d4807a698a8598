"""Data that do not fit their task cost one sentence; `data check` describes all others."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.columns import Columns
from oodbench.data.audit import audit_of
from oodbench.data.preparation import balance, fitted, inspect, load_checked
from oodbench.data.streams import Stored
from oodbench.datasets import Dataset, Environment, datasets, make
from oodbench.errors import UserError
from oodbench.results.run_directory import RunDirectory
from oodbench.sweep.plan import single
from oodbench.tasks import Task
from oodbench.train import loading
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings
from tests.data.test_streams import Counting

Y = torch.arange(40.0) % 2


class Plain(Dataset):
    """Three environments; `b` can be wrong in all trials but the first."""

    environments = ("a", "b", "c")
    test_environments = ("c",)
    input_shape = (3,)
    task = Task("binary")
    name, metadata = "Plain", datasets.get("Spirals").metadata
    b: Environment

    def load(self, trial: int) -> dict[str, Environment]:
        good = Environment(torch.randn(40, 3), Y)
        return {"a": good, "b": self.b if trial else good, "c": good}


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Callable[[Environment], None]:
    """Register `Plain`, and return a function that sets its environment `b`."""
    monkeypatch.setitem(datasets._classes, "Plain", Plain)
    loading._load.cache_clear()
    loading._prepared.cache_clear()
    return lambda environment: monkeypatch.setattr(Plain, "b", environment, raising=False)


ODD = torch.zeros(40, 3)
ODD[7, 1] = torch.nan


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (Environment(torch.zeros(40, 3), Y[:35]), "it has 40 inputs and 35 targets"),
        (Environment(torch.zeros(40, 3), 2 * Y), "the target of example 1 is 2, and it must be 0"),
        (Environment(torch.zeros(40, 3), Y.long()), "targets of the task binary are torch.float32"),
        (Environment(ODD, Y), "the input of example 7 is not finite"),
        (Environment(torch.zeros(40, 4), Y), r"an input has the shape \(4,\), and .* is \(3,\)"),
        (Environment(torch.zeros(40, 3).double(), Y), "inputs are .*, not torch.float64"),
        (Environment(torch.zeros(40, 3).numpy(), Y), "inputs are a tensor or .*, not ndarray"),
        (Environment(torch.zeros(40, 3), Y, out=Y), "`out` is true or false"),
    ],
)
def test_data_that_do_not_fit_stop_a_run_before_it_starts(
    environment: Environment, message: str, plain: Callable[[Environment], None], tmp_path: Path
) -> None:
    plain(Environment(torch.zeros(40, 3), Y))
    spec = single({"name": "Plain"}, {"name": "ERM"}, trials=[1], steps=5)
    plain(environment)
    state, said = execute(spec, RunDirectory(tmp_path / "run"), TrainSettings())
    assert state == "failed" and said.startswith("Plain, environment 'b': ")
    with pytest.raises(UserError, match=f"^Plain, environment 'b': {message}"):
        raise UserError(said)


class Centred(Plain):
    """Inputs without the mean of the training examples."""

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        seen = [e.x.read(torch.arange(len(e.x))) for e in training.values()]
        mean = torch.cat(seen).mean(0)
        return lambda x: x - mean


@pytest.mark.parametrize("options", [{"dim": 10**6}, {"num_examples": 1e18}])
def test_data_larger_than_the_memory_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"LinearSEM.*: its data need more memory than there is"):
        load_checked(make("LinearSEM", options), 0)


def test_what_is_fitted_sees_the_training_examples_alone_and_changes_all() -> None:
    x = torch.arange(120.0).view(40, 3)
    environments = {name: Environment(Counting(x + i), Y) for i, name in enumerate("abc")}
    places = torch.tensor([0, 1])
    found = fitted(Centred(Centred.Options()), environments, {"a": places, "b": places})
    mean = torch.cat([x[:2], x[:2] + 1]).mean(0)
    for i, name in enumerate("abc"):
        assert torch.equal(found[name].x.read(torch.arange(40)), x + i - mean)


def test_examples_without_a_known_label_are_in_no_split(
    plain: Callable[[Environment], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    y = torch.zeros(40, 2)
    y[:10, 0] = y[:5] = torch.nan
    monkeypatch.setattr(Plain, "task", Task("multilabel", 2))
    same = dict.fromkeys("abc", Environment(torch.zeros(40, 3), y))
    monkeypatch.setattr(Plain, "load", lambda self, trial: same)
    spec = single({"name": "Plain"}, {"name": "ERM"}, trials=[1], steps=5)
    data = loading.load_data(spec, TrainSettings())
    for parts in data.splits.values():
        assert sorted(torch.cat([*parts.values()]).tolist()) == list(range(5, 40))
    other = replace(spec, test_environments=("a",))  # nothing is fitted: the data are shared
    assert loading.load_data(other, TrainSettings()) is data


def test_inputs_whose_sum_overflows_are_finite(plain: Callable[[Environment], None]) -> None:
    plain(Environment(torch.full((40, 3), 3e38), Y))
    assert load_checked(make("Plain", {}), 1)["b"].x.max() == torch.tensor(3e38)


class Broken(Stored):
    """Ten images, the fourth of which cannot be read."""

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


def test_contents_and_the_balance_of_known_labels() -> None:
    made = Made(Made.Options())
    a, b = inspect(made)
    assert (a.name, a.size) == ("a", 10) and (b.name, b.size) == ("b", 5)
    assert balance(made, a.examples.y) == "30.0, 30.0, 20.0, 20.0 %"
    assert balance(made, b.examples.y) == "60.0, 20.0, 20.0, 0.0 %"
    assert (a.unreadable, a.repeated) == (["4.png cannot be read"], 0)
    assert (b.unreadable, b.repeated) == ([], 4)
    (copies,) = [f for f in audit_of(made, [a, b]) if f.environments == ("b", "a")]
    assert (copies.kind, copies.counts) == ("copies", {"examples": 5, "of": 5})
    made.task = Task("multilabel", 2)
    y = torch.tensor([[0.0, 1.0], [1.0, torch.nan], [torch.nan, 1.0]])
    assert balance(made, y) == "0.5 ± 0.5, 1 ± 0"


def test_inspection_fits_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitting imports scikit-learn, which takes as long as all else."""
    rows = "".join(f"{i}.5,{i % 2},{'ab'[i % 3 % 2]}\n" for i in range(60))
    (tmp_path / "t.csv").write_text(f"age,target,environment\n{rows}")
    monkeypatch.delattr(Columns, "fitted")
    assert sum(c.size for c in inspect(make("Table", {"file": "t.csv"}, tmp_path))) == 60


def test_inputs_that_repeat_by_design_are_not_reported() -> None:
    made = Made(Made.Options())
    vars(made)["repeats"] = True
    for dataset in (made, make("ColoredDigits", {}), make("NoisyLabels", {"base": "digits"})):
        every = inspect(dataset)
        assert not any(contents.repeated for contents in every), dataset.name
        shared = {"copies", "equal inputs"} & {f.kind for f in audit_of(dataset, every)}
        assert not shared, dataset.name
