"""WiSE-FT against its equation, by hand in float64."""

import copy

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from oodbench.conformance.tiny_problems import TASKS, tiny_batch
from tests.helpers.algorithms.methods import tiny


def test_predictions_are_under_weights_between_the_trained_head_and_the_end() -> None:
    """While the head alone is trained they are those of the network itself."""
    task = TASKS["multiclass"]
    algorithm, batch = tiny("WiSEFT", task, alpha=0.3, head_only=2, lr=0.1), tiny_batch(task)
    first = copy.deepcopy(algorithm.network)
    x = batch.x.flatten(0, 1)
    for step in range(2):
        assert torch.equal(algorithm.predict(x), algorithm.network(x))
        algorithm.train_step(batch, step)
    assert torch.equal(algorithm.predict(x), algorithm.network(x))
    start = copy.deepcopy(algorithm.network)
    assert torch.equal(*(parameters_to_vector(n.featurizer.parameters()) for n in (first, start)))
    assert not torch.equal(*(parameters_to_vector(n.parameters()) for n in (first, start)))
    for step in range(2, 6):
        algorithm.train_step(batch, step)
    between = copy.deepcopy(start)
    ends = [parameters_to_vector(n.parameters()).detach() for n in (start, algorithm.network)]
    vector_to_parameters(0.7 * ends[0] + 0.3 * ends[1], between.parameters())
    with torch.no_grad():
        torch.testing.assert_close(algorithm.predict(x), between(x))
        assert not torch.allclose(algorithm.predict(x), algorithm.network(x))
