"""Mixup, CutMix and LISA against their equations, written out by loops."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from oodbench.algorithms.lisa import partners
from scipy.stats import beta as beta_distribution
from scipy.stats import chisquare, kstest
from torch import Tensor

from oodbench.algorithms import Batch, algorithms, beta, why_skipped
from oodbench.conformance.tiny_problems import TASKS, ImageTask, tiny_batch, tiny_problem
from oodbench.train.batches import Batches, Examples
from tests.helpers.algorithms.methods import BINARY, tiny


def require_mixed(algorithm: Any, batch: Batch, step: int, pairs: dict[int, int], m: Any) -> None:
    """The loss is the mean over pairs of examples, the first of which weighs m, one or one of each."""
    task, x, y = algorithm.problem.task, batch.x.flatten(0, 1), batch.y.flatten(0, 1)
    total = torch.zeros((), dtype=torch.float64)
    for (i, j), share in zip(pairs.items(), m.expand(len(pairs)), strict=True):
        logits = algorithm.network((share * x[i] + (1 - share) * x[j]).unsqueeze(0))
        for weight, k in ((share, i), (1 - share, j)):
            total += weight * task.losses(logits, y[k : k + 1])[0] / len(x)
    out = algorithm.outputs(algorithm.prepared(batch, step), step)
    torch.testing.assert_close(algorithm.objective(out), total)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "distribution"])
def test_mixup_mixes_environments_in_a_ring_and_the_original_all_examples_by_one_share(
    kind: str,
) -> None:
    batch = tiny_batch(TASKS[kind])
    mixup, original = (tiny(name, TASKS[kind], alpha=0.4) for name in ("Mixup", "OrgMixup"))
    drawn = mixup.noise_at(batch, 7)
    ring = drawn["order"].tolist()
    following = zip(ring, [*ring[1:], ring[0]], strict=True)
    pairs = {6 * e + i: 6 * other + i for e, other in following for i in range(6)}
    require_mixed(mixup, batch, 7, pairs, drawn["share"].flatten().repeat_interleave(6))
    drawn = original.noise_at(batch, 7)
    order = drawn["order"].tolist()
    assert sorted(order) == list(range(30))
    require_mixed(original, batch, 7, dict(enumerate(order)), drawn["share"].flatten()[:1])


def test_each_step_has_draws_of_its_own_that_no_hyperparameter_moves() -> None:
    first, other = (tiny("Mixup", alpha=alpha) for alpha in (0.2, 0.9))
    drawn = [algorithm.noise_at(tiny_batch(BINARY), 3) for algorithm in (first, other)]
    assert torch.equal(drawn[0]["order"], drawn[1]["order"])
    assert not torch.equal(drawn[0]["share"], first.noise_at(tiny_batch(BINARY), 4)["share"])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_shares_have_the_beta_distribution(alpha: float) -> None:
    drawn = beta(alpha, (4000,), torch.Generator().manual_seed(0))
    assert kstest(drawn.numpy(), beta_distribution(alpha, alpha).cdf).pvalue > 0.01


def cut_mix(side: int = 8, **values: Any) -> tuple[Any, Batch]:
    """CutMix, and a batch of images of `side` x `side` - 2 pixels."""
    task, shape = ImageTask("multiclass", 3), (2, side, side - 2)
    x = torch.rand(5, 6, *shape, dtype=torch.float64)
    algorithm = tiny("CutMix", task, problem={"input_shape": shape}, **values)
    return algorithm, replace(tiny_batch(task), x=x)


def test_pixels_and_targets_are_those_of_the_partner_in_the_rectangle_alone() -> None:
    algorithm, batch = cut_mix()
    sizes = set()
    for step in range(20):
        drawn = algorithm.noise_at(batch, step)
        made = algorithm.prepared(batch, step)
        (top, left), (bottom, right) = drawn["corners"].tolist()
        assert 0 <= top <= bottom <= 8 and 0 <= left <= right <= 6
        area = (bottom - top) * (right - left)
        sizes.add(area)
        for i, j in enumerate(drawn["order"].tolist()):
            (e, k), (f, n) = divmod(i, 6), divmod(j, 6)
            wanted = batch.x[e, k].clone()
            wanted[:, top:bottom, left:right] = batch.x[f, n, :, top:bottom, left:right]
            assert torch.equal(made.x[e, k], wanted)
            assert made.other_y[e, k] == batch.y[f, n]
            assert made.share[e, k] == pytest.approx(1 - area / 48)
    assert len(sizes) > 5


def test_rectangles_cover_the_share_that_is_drawn_unless_they_are_cut_off() -> None:
    """(1 - m) of the pixels is 1/2 in the mean for alpha 1; the borders take some of it."""
    algorithm, batch = cut_mix(64)
    corners = [algorithm.noise_at(batch, step)["corners"] for step in range(400)]
    areas = torch.stack([(last - first).prod() for first, last in corners]) / (64 * 62)
    assert areas.min() < 0.02 and 0.2 < areas.mean() < 0.5 and areas.max() > 0.6


def test_some_steps_leave_images_as_they_are() -> None:
    algorithm, batch = cut_mix(probability=0.5)
    kept = [torch.equal(algorithm.prepared(batch, step).x, batch.x) for step in range(100)]
    assert 30 < sum(kept) < 75


def test_partners_share_one_thing_and_differ_in_the_other() -> None:
    random = torch.Generator().manual_seed(0)
    for _ in range(50):
        same = torch.randint(3, (20,), generator=random)
        other = torch.randint(4, (20,), generator=random)
        place = torch.rand(20, generator=random, dtype=torch.float64)
        for i, j in enumerate(partners(same, other, (3, 4), place).tolist()):
            possible = [k for k in range(20) if same[k] == same[i] and other[k] != other[i]]
            assert j in possible if possible else j == i


def test_every_possible_partner_is_as_likely() -> None:
    same, other = torch.tensor([0, 0, 1, 0, 0, 0]), torch.tensor([1, 0, 0, 2, 1, 0])
    random = torch.Generator().manual_seed(0)
    found = [
        int(partners(same, other, (2, 3), torch.rand(6, generator=random, dtype=torch.float64))[0])
        for _ in range(600)
    ]
    counts = [found.count(k) for k in (1, 3, 5)]
    assert sum(counts) == 600 and chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize("domains", ["environments", "attributes"])
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_the_loss_of_lisa_is_that_of_every_mixed_example(kind: str, domains: str) -> None:
    task = TASKS[kind]
    algorithm, batch = tiny("LISA", task, domains=domains), tiny_batch(task)
    y, attributes = batch.y.flatten(), cast(Tensor, batch.attributes).flatten()
    domain = attributes if domains == "attributes" else torch.arange(5).repeat_interleave(6)
    strategies = set()
    for step in range(8):
        drawn = algorithm.noise_at(batch, step)
        strategies.add(bool(drawn["same_label"]))
        pair = (y.long(), domain) if drawn["same_label"] else (domain, y.long())
        sizes = (task.classes, 5 if domains == "environments" else 2)
        mate = partners(*pair, sizes if drawn["same_label"] else sizes[::-1], drawn["place"])
        pairs = dict(enumerate(mate.tolist()))
        require_mixed(algorithm, batch, step, pairs, drawn["share"].flatten())
    assert strategies == {True, False}


def test_a_step_of_some_environments_knows_which_they_are() -> None:
    algorithm, batch = tiny("LISA", same_label=1.0), tiny_batch(BINARY).of([4, 1])
    made = algorithm.prepare(replace(batch, noise=algorithm.noise_at(batch, 0)))
    assert made.other_y is not None and torch.equal(made.y, made.other_y)
    assert not torch.equal(made.x, batch.x)


WATERBIRDS = (3498, 184, 56, 1057)
"""How many training examples each group has: a target and an attribute of two values each."""


@pytest.mark.parametrize("size", [16, 32])
def test_balanced_batches_mix_the_pairs_of_groups_equally_often(size: int) -> None:
    """As when equally many examples of each group are drawn and paired off, which its authors do."""
    group = torch.arange(4).repeat_interleave(torch.tensor(WATERBIRDS))
    x, y, attribute = group.double().unsqueeze(1), group.double() // 2, group % 2
    batches = Batches([Examples(x, y, None, attribute, group)], size, 0)
    algorithm = tiny("LISA", domains="attributes", sampling="rwg", environments=1)
    pairs: Counter[tuple[int, int, bool]] = Counter()
    for step in range(4000 // size):
        drawn = algorithm.noise_at(batches[step], step)
        algorithm_noise = replace(batches[step], noise={**drawn, "share": 0 * drawn["share"]})
        partner = algorithm.prepare(algorithm_noise).x  # a share of 0 leaves the partner alone
        both = zip(batches[step].x.flatten().tolist(), partner.flatten().tolist(), strict=True)
        pairs.update((int(a), int(b), bool(drawn["same_label"])) for a, b in both)
    alone = sum(count for (a, b, _), count in pairs.items() if a == b)
    assert alone / pairs.total() < 2 * 0.75 ** (size - 1)
    for same, flipped in ((True, 1), (False, 2)):  # another attribute, another target
        counts = [pairs[a, a ^ flipped, same] for a in range(4)]
        assert sum(counts) == sum(n for (a, b, s), n in pairs.items() if s == same and a != b)
        assert chisquare(counts).pvalue > 0.01


def test_attributes_are_mixed_in_balanced_batches_alone() -> None:
    why = partial(why_skipped, algorithms.get("LISA"), tiny_problem(BINARY))
    values = {"domains": "attributes"}
    assert "`sampling: rwg`" in str(why(values))
    for sampling in ("rwg", "subg"):
        assert why({**values, "sampling": sampling}) is None
