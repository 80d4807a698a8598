import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from oodbench.conformance.tiny_problems import PLAIN, tiny_batch
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.algorithms.methods import (
    ON_EVERY_TASK,
    descend,
    gradient,
    require_same_weights,
    risks_of,
    tiny,
)
from tests.helpers.results.sweeps import first


def gap(featurizer: nn.Module, classifier: nn.Module, task: Task) -> Tensor:
    """The largest minus the smallest risk."""
    risks = risks_of(nn.Sequential(featurizer, classifier), task, tiny_batch(task))
    return risks.max() - risks.min()


@pytest.mark.parametrize("radius", [1e-3, 10.0])
@ON_EVERY_TASK
def test_two_updates_are_those_of_the_algorithm(task: Task, radius: float) -> None:
    values: dict[str, Any] = {"penalty_weight": 0.7, "ascents": 3, "ascent_lr": 0.05}
    algorithm = tiny("Transfer", task, **PLAIN, **values, radius=radius)
    network, adversary = (copy.deepcopy(m) for m in (algorithm.network, algorithm.adversary))
    for step in range(2):
        algorithm.train_step(tiny_batch(task), step)
        descend(network, risks_of(network, task, tiny_batch(task)).mean())
        descend(network.featurizer, 0.7 * gap(network.featurizer, adversary, task))
        adversary = copy.deepcopy(network.classifier)
        centre = parameters_to_vector(adversary.parameters()).detach()
        for _ in range(3):
            slope = gradient(0.7 * gap(network.featurizer, adversary, task), adversary.parameters())
            away = parameters_to_vector(adversary.parameters()).detach() + 0.05 * slope - centre
            away = away * min(1.0, radius / float(away.norm()))
            vector_to_parameters(centre + away, adversary.parameters())
    for ours, wanted in ((algorithm.network, network), (algorithm.adversary, adversary)):
        require_same_weights(ours, wanted, rtol=1e-9, atol=1e-11)


def test_an_adversary_of_a_head_that_stays_as_it_is_moves() -> None:
    """`Linear`, whose classifier is fixed: the featurizer alone is trained."""
    linear = {"name": "Linear", "hparams": {}}
    run = Run(first(algorithms=["Transfer"], network=linear, steps=5), TrainSettings())
    method: Any = run.algorithm
    start = parameters_to_vector(method.network.parameters()).clone()
    assert run.run_steps(5) is None
    assert not torch.equal(method.adversary.weight, method.network.classifier.weight)
    assert method.network.classifier.weight.eq(1).all()
    assert not torch.equal(parameters_to_vector(method.network.parameters()), start)
