"""Any module on a dataset's environments, without training."""

import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss
from torch import Tensor, nn

import oodbench
from oodbench.datasets import make
from oodbench.tasks import Task
from oodbench.train.models import as_outputs


class ColourAlone(nn.Module):
    """Two logits, from which of the two channels has the ink."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seen_training: set[bool] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen_training.add(self.training or torch.is_grad_enabled())
        return self.scale * x.sum((2, 3))


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    module = ColourAlone().train()
    table = oodbench.evaluate(module, "ColoredDigits", {"copies": 1}, trial=3)
    assert module.seen_training == {False} and module.training
    return table


def test_it_has_the_metrics_of_every_environment(found: pd.DataFrame) -> None:
    dataset = make("ColoredDigits", {"copies": 1})
    assert list(found.columns) == ["environment", "split", "metric", "value", "count"]
    assert set(found["environment"]) == set(dataset.environments) and set(found["split"]) == {"in"}
    for name, environment in dataset.load(3).items():
        scores = dataset.transform(environment.x, None).sum((2, 3))
        y, guess = environment.y.long().numpy(), scores.argmax(1).numpy()
        own = found[found["environment"] == name].set_index("metric")
        assert (own["count"].loc[["accuracy", "loss"]] == len(y)).all()
        assert own["value"]["accuracy"] == pytest.approx(accuracy_score(y, guess))
        assert own["value"]["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, guess))
        share = scores.double().softmax(1).numpy()
        assert own["value"]["loss"] == pytest.approx(log_loss(y, share), rel=1e-5)
        assert 0 <= own["value"]["worst_group_accuracy"] <= own["value"]["accuracy"]


def test_environments_may_be_named() -> None:
    table = oodbench.evaluate(ColourAlone(), "ColoredDigits", environments=["0.9"], holdout=0.25)
    assert set(table["environment"]) == {"0.9"} and set(table["split"]) == {"in", "out"}


def test_metrics_of_the_predictor_itself_are_there() -> None:
    table = oodbench.evaluate(nn.LazyLinear(1), "LinearSEM", {"num_examples": 40})
    own = table[table["environment"].isna()]
    assert "causal_error" in set(own["metric"]) and own["split"].isna().all()


def test_outputs_of_two_classes_have_three_shapes() -> None:
    binary, logits = Task("binary"), torch.tensor([[0.0, 2.0], [1.0, 0.5]])
    wanted = torch.tensor([[2.0], [-0.5]])
    for given in (wanted, wanted.squeeze(1), logits):
        assert as_outputs(given, 2, binary).equal(wanted)
