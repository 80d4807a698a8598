"""InformedDigits: colored digits that tell how often the colour contradicts the label."""

from typing import Any

import pytest
import torch

from oodbench.datasets import make

FLIPS = (0.1, 0.4, 0.8)


@pytest.mark.parametrize("grayscale", [False, True])
def test_a_further_channel_holds_the_number_of_the_environment(grayscale: bool) -> None:
    options = {"flips": list(FLIPS), "copies": 2, "grayscale": grayscale}
    loaded: list[Any] = [
        make("InformedDigits", {**options, "informed": informed}).load(1)
        for informed in (True, False)
    ]
    for name, flip in zip(("0.1", "0.4", "0.8"), FLIPS, strict=True):
        told, pooled = (environments[name] for environments in loaded)
        assert torch.equal(told.x[:, :-1], pooled.x[:, :-1])
        assert torch.equal(told.y, pooled.y)
        assert told.x[:, -1].eq(torch.tensor(flip)).all() and not pooled.x[:, -1].any()
        assert told.clusters is not None and told.attributes is not None


def test_its_examples_are_colored_as_its_environments_say() -> None:
    dataset = make("InformedDigits", {})
    assert dataset.environments == ("0.1", "0.3", "0.5", "0.7", "0.9")
    assert dataset.test_environments == ("0.9",)
    for name, environment in dataset.load(0).items():
        assert environment.attributes is not None
        contradicts = (environment.y != environment.attributes).float().mean()
        assert float(contradicts) == pytest.approx(float(name), abs=0.03)
