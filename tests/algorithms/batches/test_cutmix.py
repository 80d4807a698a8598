"""CutMix against its equations, written out pixel by pixel."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.conformance.tiny_problems import (
    ImageTask,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
)

CUT_MIX: Any = algorithms.get("CutMix")
TASK = ImageTask("multiclass", 3)


def images(side: int = 8) -> tuple[Problem, Batch]:
    problem = replace(tiny_problem(TASK), input_shape=(2, side, side - 2))
    x = torch.rand(5, 6, 2, side, side - 2, dtype=torch.float64)
    return problem, replace(tiny_batch(TASK), x=x)


def test_pixels_and_targets_are_those_of_the_partner_in_the_rectangle_alone() -> None:
    problem, batch = images()
    algorithm = tiny_algorithm(CUT_MIX, problem)
    sizes = set()
    for step in range(20):
        drawn = algorithm.noise_at(batch, step)
        made = algorithm.prepared(batch, step)
        (top, left), (bottom, right) = drawn["corners"].tolist()
        assert 0 <= top <= bottom <= 8 and 0 <= left <= right <= 6
        area = (bottom - top) * (right - left)
        sizes.add(area)
        assert made.other_y is not None and made.share is not None
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
    problem, batch = images(64)
    algorithm = tiny_algorithm(CUT_MIX, problem)
    corners = [algorithm.noise_at(batch, step)["corners"] for step in range(400)]
    areas = torch.stack([(last - first).prod() for first, last in corners]) / (64 * 62)
    assert areas.min() < 0.02 and 0.2 < areas.mean() < 0.5 and areas.max() > 0.6


def test_some_steps_leave_images_as_they_are() -> None:
    problem, batch = images()
    algorithm = tiny_algorithm(CUT_MIX, problem, {"probability": 0.5})
    kept = [torch.equal(algorithm.prepared(batch, step).x, batch.x) for step in range(100)]
    assert 30 < sum(kept) < 75
