from dataclasses import replace

import torch

from oodbench.algorithms import Problem, algorithms
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm


def test_a_step_may_be_of_some_environments() -> None:
    problem = Problem((4,), TASKS["binary"], tuple("abcdefgh"), 1000, seed=3)

    def drawn(seed: int, count: int, name: str = "ERM") -> list[list[int]]:
        of = replace(problem, seed=seed)
        algorithm = tiny_algorithm(algorithms.get(name), of, {"environments_per_step": count})
        return [list(algorithm.environments_at(step)) for step in range(400)]

    assert drawn(3, 0) == drawn(3, 8) == drawn(3, 9) == [list(range(8))] * 400
    some = drawn(3, 3)
    assert all(len(set(step)) == 3 for step in some)
    assert some == drawn(3, 3, "VREx") and some != drawn(4, 3)
    counts = torch.bincount(torch.tensor(some).flatten(), minlength=8)
    assert counts.sum() == 1200 and 110 < counts.min() and counts.max() < 190  # 150 expected
    assert algorithms.get("ERM").Hparams().environments_per_step == 0
