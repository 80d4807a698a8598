import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from oodbench.train.batches import Batches, Examples
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.results.sweeps import DIGITS, first


def data(*sizes: int) -> list[Examples]:
    """Inputs that name their (environment, example), and targets that repeat the example."""
    return [
        Examples(
            torch.stack([torch.full((n,), float(e)), torch.arange(float(n))], 1),
            torch.arange(float(n)),
        )
        for e, n in enumerate(sizes)
    ]


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    batch_size=st.integers(0, 50),
    seed=st.integers(0, 3),
)
def test_an_epoch_is_without_replacement(sizes: list[int], batch_size: int, seed: int) -> None:
    batches = Batches(data(*sizes), batch_size, seed)
    size = min([*sizes, batch_size] if batch_size else sizes)
    for e, n in enumerate(sizes):
        per_epoch = n // size
        for epoch in range(2):
            seen: list[float] = []
            for step in range(epoch * per_epoch, (epoch + 1) * per_epoch):
                batch = batches[step]
                assert batch.x.shape == (len(sizes), size, 2)
                assert batch.y.shape == (len(sizes), size)
                assert (batch.x[e, :, 0] == e).all()
                assert torch.equal(batch.x[e, :, 1], batch.y[e])
                seen += batch.y[e].tolist()
            assert len(set(seen)) == len(seen) == per_epoch * size


@settings(max_examples=25, deadline=None)
@given(steps=st.permutations(range(12)))
def test_any_step_is_reproducible_out_of_order(steps: list[int]) -> None:
    in_order = Batches(data(10, 7, 23), 3, 0)
    expected = [in_order[step].x for step in range(12)]
    for step in steps:
        torch.manual_seed(step)  # which changes nothing
        fresh = Batches(data(10, 7, 23), 3, 0)
        assert torch.equal(fresh[step].x, expected[step])
    shuffled = {step: in_order[step].x for step in steps}
    assert all(torch.equal(shuffled[step], expected[step]) for step in range(12))


def test_epochs_environments_and_seeds_have_orders_of_their_own() -> None:
    batches = Batches(data(50, 50), 25, 0)
    first, second = (torch.cat([batches[2 * i].y, batches[2 * i + 1].y], 1) for i in (0, 1))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, second)
    assert not torch.equal(batches[0].y, Batches(data(50, 50), 25, 1)[0].y)


def test_the_full_batch_is_the_data_in_order() -> None:
    batches = Batches(data(9, 9), 0, 0)
    for step in (0, 1, 17):
        assert torch.equal(batches[step].y, torch.arange(9.0).expand(2, 9))
        assert batches[step].x[:, 0, 0].tolist() == [0, 1]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=3, max_size=5),
    batch_size=st.integers(1, 12),
    seed=st.integers(0, 5),
)
def test_steps_of_some_environments_see_every_example_once_before_any_twice(
    sizes: list[int], batch_size: int, seed: int
) -> None:
    def two(step: int) -> list[int]:
        return random.Random(f"{seed} {step}").sample(range(len(sizes)), 2)

    batches = Batches(data(*sizes), batch_size, 0, environments_at=two, repeat=True)
    counts = [torch.zeros(size) for size in sizes]
    for step in range(40):
        batch = batches[step]
        assert batch.y.shape == (2, min(batch_size, max(sizes)))
        for place, environment in enumerate(two(step)):
            assert (batch.x[place, :, 0] == environment).all()
            for example in batch.y[place].long().tolist():
                assert counts[environment][example] == counts[environment].min()
                counts[environment][example] += 1
    resumed = Batches(data(*sizes), batch_size, 0, environments_at=two, repeat=True)
    assert torch.equal(resumed[39].y, batches[39].y)


LABELS = [torch.tensor([0] * 30 + [1] * 6 + [5] * 4), torch.tensor([2] * 20 + [3] * 20)]
LABELLED = [e._replace(labels=labels) for e, labels in zip(data(40, 40), LABELS, strict=True)]


def test_labels_are_drawn_equally_often_with_replacement() -> None:
    batches = Batches(LABELLED, 10, 0)
    seen = torch.cat([batches[step].y for step in range(400)], 1).long()
    for e, labels in enumerate(LABELS):
        drawn = labels[seen[e]]
        assert chisquare(torch.unique(drawn, return_counts=True)[1]).pvalue > 0.001
        for label in torch.unique(labels):
            examples = torch.bincount(seen[e][drawn == label], minlength=40)[labels == label]
            assert chisquare(examples).pvalue > 0.001
    again = Batches(LABELLED, 10, 0)
    assert torch.equal(again[123].y, batches[123].y)


def test_as_many_of_each_label_are_kept_as_of_the_rarest() -> None:
    batches = Batches(LABELLED, 0, 0, subsampled=True)
    assert batches.sizes == [12, 40] and batches.batch_size == 12
    whole = [set(batches[step].y[0].long().tolist()) for step in range(3)]
    assert whole[0] == whole[1] == whole[2]
    assert torch.bincount(LABELS[0][list(whole[0])]).tolist() == [4, 4, 0, 0, 0, 4]
    other = Batches(LABELLED, 0, 1, subsampled=True)
    assert set(other[0].y[0].long().tolist()) != whole[0]


def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + torch.rand(x.shape, generator=generator)


def test_views_have_draws_of_their_own_and_leave_the_inputs_as_they_are() -> None:
    plain = Batches(data(20, 20), 5, 0, transform=noisy)
    batches = Batches(data(20, 20), 5, 0, transform=noisy, views=2)
    for step in (0, 7):
        batch = batches[step]
        assert torch.equal(batch.x, plain[step].x) and batch.views is not None
        assert batch.views.shape == (2, 5, 2, 2)
        whole = torch.cat([batch.x.unsqueeze(2), batch.views], 2)
        assert torch.equal(whole.floor()[..., 0, 1], batch.y)
        assert torch.equal(whole.floor()[..., 1, :], whole.floor()[..., 2, :])
        for i, j in ((0, 1), (0, 2), (1, 2)):
            assert not torch.equal(whole[:, :, i], whole[:, :, j])
    views = Batches(data(20, 20), 5, 0, transform=noisy, views=2)[7].views
    assert views is not None and torch.equal(views, whole[:, :, 1:])
    several = [
        e._replace(y=torch.stack([e.y, e.y], 1)) for e in data(20, 20)
    ]  # targets of an example
    assert torch.equal(Batches(several, 5, 0, transform=noisy)[7].x, plain[7].x)


def test_rwy_draws_classes_and_rwg_groups_equally_often() -> None:
    agree = {}
    for sampling in ("rwy", "rwg"):
        entry = {"name": "ERM", "hparams": {"sampling": sampling, "batch_size": 64}}
        batches = Run(first(datasets=[DIGITS], algorithms=[entry]), TrainSettings()).batches_at(0)
        drawn = [batches[step] for step in range(60)]
        y = torch.cat([batch.y for batch in drawn], 1)
        red, green = torch.cat([batch.x.flatten(3).sum(3) for batch in drawn], 1).unbind(2)
        assert abs(y.mean() - 0.5) < 0.02
        agree[sampling] = ((green > red) == (y > 0.5)).float().mean()
    assert abs(agree["rwg"] - 0.5) < 0.02 and abs(agree["rwy"] - 0.5) > 0.1
