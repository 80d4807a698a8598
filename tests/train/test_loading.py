"""Splits, and examples that are there only where their environment is held out, or only where it is not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oodbench
from oodbench.data.streams import Stored
from oodbench.datasets import Dataset, Environment, Metadata, make, permutation, register
from oodbench.hparams import hparam
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from oodbench.tasks import Task
from oodbench.train.loading import Data, load_data, spec_of_data, split
from oodbench.train.settings import TrainSettings
from tests.helpers.results.sweeps import require_close, trained

METADATA = Metadata(
    paper="none", licence="MIT", family="synthetic", shift="place", network="MLP", steps=20
)
PEOPLE, NUMBERS = 40, 3
UNSEEN = 3 * PEOPLE // 4


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


@pytest.fixture(params=[False, True], ids=["in memory", "stored"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"stored": request.param}


def loaded(options: dict[str, Any], *held_out: str, holdout: float = 0.2) -> Data:
    about: dict[str, Any] = {"trial": 1, "holdout": holdout, "test_environments": held_out}
    return load_data(spec_of_data("People", options=options, **about), TrainSettings())


def inputs(environment: Environment) -> Tensor:
    x = environment.x
    return x.read(torch.arange(len(x))) if isinstance(x, Stored) else x


def people(data: Data, name: str, *splits: str) -> list[int]:
    x = inputs(data.environments[name])[:, 0]
    places = [data.splits[name][split] for split in splits] if splits else [torch.arange(len(x))]
    return sorted(int(p) for p in x[torch.cat(places)].round())


def test_a_run_is_tested_on_nobody_that_it_was_trained_on(options: dict[str, Any]) -> None:
    data = loaded(options, "c")
    seen, tested = people(data, "a"), people(data, "c")
    assert seen == people(data, "b") and not {*seen} & {*tested}
    for held_out in ("a", "b", "c"):
        sizes = {name: len(e.y) for name, e in loaded(options, held_out).environments.items()}
        assert sizes == {n: UNSEEN if n == held_out else PEOPLE - UNSEEN for n in sizes}
    data = loaded(options, "c", holdout=0)
    assert [len(people(data, name, "in")) for name in ("a", "c")] == [PEOPLE - UNSEEN, UNSEEN]


def test_the_splits_and_groups_are_those_of_the_examples_that_are_there(
    options: dict[str, Any],
) -> None:
    data = loaded(options, "c")
    given = make("People", options).load(1)
    for name, environment in data.environments.items():
        whole = given[name]
        assert whole.out is not None and whole.unseen is not None
        there = whole.unseen if name == "c" else ~whole.unseen
        for half, chosen in (("out", there & whole.out), ("in", there & ~whole.out)):
            assert people(data, name, half) == chosen.nonzero().squeeze(1).tolist()
            assert sum(data.groups[name][half].counts) == int(chosen.sum())
        numbers = inputs(environment)[:, 0].round()
        assert torch.equal(environment.y, numbers % 2)
        assert environment.attributes is not None
        assert torch.equal(environment.attributes, numbers.long() // 2 % 2)


def test_what_is_fitted_is_fitted_to_the_in_splits_that_are_trained_on(
    options: dict[str, Any],
) -> None:
    data, given = loaded(options, "c"), make("People", options).load(1)
    trained_on = people(data, "a", "in") + people(data, "b", "in")
    expected = len(trained_on) - 0.1 * sum(trained_on)
    unseen = given["c"].unseen
    assert unseen is not None
    change = inputs(data.environments["c"]) - inputs(given["c"])[unseen]
    torch.testing.assert_close(change[:, 1], torch.full((UNSEEN,), expected), atol=1e-4, rtol=0)


def test_a_loaded_model_has_the_numbers_of_its_record_whatever_was_held_out(tmp_path: Path) -> None:
    sweep = {"name": "s", "datasets": ["People"], "algorithms": ["ERM"], "trials": 1, "steps": 4}
    plan = make_plan(validate({**sweep, "test_environments": "each", "evaluate_every": 4}, "s"))
    results = trained(tmp_path, plan, keep_weights=("last",))
    for name in ("a", "c"):
        model = oodbench.load_model(results.path, test_environment=name, rule="last")
        found = oodbench.evaluate(model, "People", trial=0, holdout=0.2)
        (record,) = results.run(model.spec.id).records()
        require_close(found.to_dict("records"), record["evaluations"])
        counts = found[found["metric"] == "accuracy"].groupby("environment")["count"].sum()
        assert counts[name] == UNSEEN and counts["b"] == PEOPLE - UNSEEN


def environment(count: int, groups: Tensor | None = None, value: float = 0.0) -> Environment:
    return Environment(torch.full((count, 2), value), torch.full((count,), value), groups)


@given(
    holdout=st.floats(0.01, 0.99),
    trial=st.integers(0, 5),
    count=st.integers(1, 200),
    drawn=st.none() | st.lists(st.integers(-5, 20), min_size=1, max_size=100),
)
def test_splits_are_disjoint_cover_and_keep_groups(
    holdout: float, trial: int, count: int, drawn: list[int] | None
) -> None:
    groups = None if drawn is None else torch.tensor(drawn)
    count = count if drawn is None else len(drawn)
    parts = split(environment(count, groups), holdout, "D", "e", trial)
    assert list(parts) == ["in", "out"]
    assert torch.cat(list(parts.values())).sort().values.tolist() == list(range(count))
    for index in parts.values():
        assert torch.equal(index, index.sort().values)
    number = torch.arange(count) if groups is None else groups
    total = len(torch.unique(number))
    sides = [set(number[index].tolist()) for index in parts.values()]
    assert not sides[0] & sides[1]
    assert len(sides[1]) == max(1, round(holdout * total))
    larger = split(environment(count, groups), (1 + holdout) / 2, "D", "e", trial)["out"]
    assert {*parts["out"].tolist()} <= {*larger.tolist()}


def test_depends_on_dataset_environment_and_trial_alone() -> None:
    base = split(environment(100), 0.2, "D", "e", 0)["out"]
    torch.manual_seed(5)
    assert torch.equal(base, split(environment(100, value=3.0), 0.2, "D", "e", 0)["out"])
    for names in (("C", "e", 0), ("D", "f", 0), ("D", "e", 1)):
        assert not torch.equal(base, split(environment(100), 0.2, *names)["out"])


def test_the_draw_is_random_over_examples() -> None:
    counts = torch.zeros(50)
    for trial in range(400):
        counts[split(environment(50), 0.2, "D", "e", trial)["out"]] += 1
    assert counts.min() > 80 - 4.5 * 8  # binomial(400, .2): mean 80, deviation 8
    assert counts.max() < 80 + 4.5 * 8
