"""DigitsOnBackgrounds: the background goes with the label as often as the environment says."""

from typing import Any

import pytest
import torch

from oodbench.datasets import make


@pytest.mark.parametrize(
    ("as_test", "shares"), [(False, [0.95, 0.85, 0.5, 0.1]), (True, [0.1] * 4)]
)
def test_the_background_agrees_as_often_as_it_should(as_test: bool, shares: list[float]) -> None:
    dataset: Any = make("DigitsOnBackgrounds", {"as_test": as_test})
    assert list(dataset.environments) == ["0.95", "0.85", "0.5", "0.1"]
    agrees: dict[str, list[torch.Tensor]] = {name: [] for name in dataset.environments}
    for trial in range(5):
        for name, found in dataset.load(trial).items():
            agrees[name].append(found.attributes == found.y.long())
    for values, share in zip(agrees.values(), shares, strict=True):
        both = torch.cat(values).float()
        error = (share * (1 - share) / len(both)) ** 0.5
        assert abs(both.mean() - share) < 4 * error


def test_stripes_are_upright_or_level_and_behind_the_digit() -> None:
    dataset: Any = make("DigitsOnBackgrounds", {})
    bare = make("DigitsOnBackgrounds", {"contrast": 0}).load(0)
    for name, found in dataset.load(0).items():
        digits = bare[name].x
        assert found.x.shape[1:] == dataset.input_shape
        assert (found.x >= digits).all() and found.x.max() <= 1
        for x, digit, upright in zip(found.x, digits, found.attributes, strict=True):
            behind = torch.where(digit > x - 1e-6, torch.nan, x)[0]
            lines = behind if upright else behind.T
            for line in lines.T:
                seen = line[~line.isnan()]
                assert len(seen) == 0 or torch.allclose(seen, seen[0])


def test_no_scan_is_in_two_environments_and_labels_are_the_digits() -> None:
    found = make("DigitsOnBackgrounds", {"contrast": 0}).load(1)
    assert sum(len(e.y) for e in found.values()) == 1797
    assert sum(e.y.sum() for e in found.values()) == 178 + 182 + 177 + 183 + 181
    assert {float(v) for e in found.values() for v in e.y} == {0.0, 1.0}
