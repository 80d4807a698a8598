"""LISA against its algorithm, written out by loops."""

from dataclasses import replace

import pytest
import torch
from oodbench.algorithms.lisa import partners
from scipy.stats import chisquare

from oodbench.conformance.tiny_problems import TASKS, tiny_batch
from oodbench.steps import noise_at, outputs, prepared
from tests.helpers.methods import BINARY, tiny


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
def test_the_loss_is_that_of_every_mixed_example(kind: str, domains: str) -> None:
    task = TASKS[kind]
    algorithm, batch = tiny("LISA", task, domains=domains), tiny_batch(task)
    y = batch.y.flatten()
    domain = torch.arange(5).repeat_interleave(6)
    if domains == "attributes":
        assert batch.attributes is not None
        domain = batch.attributes.flatten()
    strategies = set()
    for step in range(8):
        drawn = noise_at(algorithm, batch, step)
        strategies.add(bool(drawn["same_label"]))
        pair = (y.long(), domain) if drawn["same_label"] else (domain, y.long())
        sizes = (task.classes, 5 if domains == "environments" else 2)
        mate = partners(*pair, sizes if drawn["same_label"] else sizes[::-1], drawn["place"])
        total = torch.zeros((), dtype=torch.float64)
        for i, j in enumerate(mate.tolist()):
            m = drawn["share"].flatten()[i]
            x = m * batch.x.flatten(0, 1)[i] + (1 - m) * batch.x.flatten(0, 1)[j]
            logits = algorithm.network(x.unsqueeze(0))
            total += m * task.losses(logits, y[i : i + 1])[0] / 30
            total += (1 - m) * task.losses(logits, y[j : j + 1])[0] / 30
        out = outputs(algorithm, prepared(algorithm, batch, step), step)
        torch.testing.assert_close(algorithm.objective(out), total)
    assert strategies == {True, False}


def test_a_step_of_some_environments_knows_which_they_are() -> None:
    algorithm, batch = tiny("LISA", same_label=1.0), tiny_batch(BINARY).of([4, 1])
    made = algorithm.prepare(replace(batch, noise=noise_at(algorithm, batch, 0)))
    assert made.other_y is not None and torch.equal(made.y, made.other_y)
    assert not torch.equal(made.x, batch.x)
