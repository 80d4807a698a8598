import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from oodbench.datasets import Environment
from oodbench.train.loading import split


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


def test_depends_on_dataset_environment_and_trial_alone() -> None:
    base = split(environment(100), 0.2, "D", "e", 0)["out"]
    torch.manual_seed(5)
    assert torch.equal(base, split(environment(100, value=3.0), 0.2, "D", "e", 0)["out"])
    for names in (("C", "e", 0), ("D", "f", 0), ("D", "e", 1)):
        assert not torch.equal(base, split(environment(100), 0.2, *names)["out"])


def test_a_larger_holdout_takes_more_of_the_same() -> None:
    small = split(environment(100), 0.1, "D", "e", 0)["out"].tolist()
    large = split(environment(100), 0.4, "D", "e", 0)["out"].tolist()
    assert set(small) < set(large)


def test_the_draw_is_random_over_examples() -> None:
    counts = torch.zeros(50)
    for trial in range(400):
        counts[split(environment(50), 0.2, "D", "e", trial)["out"]] += 1
    assert counts.min() > 80 - 4.5 * 8  # binomial(400, .2): mean 80, deviation 8
    assert counts.max() < 80 + 4.5 * 8
