from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oodbench.algorithms import Batch
from oodbench.diagnose.gradient_correlation import (
    SIGNALS,
    correlation,
    correlations,
    pearson,
    permuted,
)
from oodbench.errors import UserError
from oodbench.report.figures import save


def test_permuting_moves_some_inputs_within_each_environment() -> None:
    x = torch.arange(2 * 20 * 4.0).view(2, 20, 4)
    batch = Batch(x.clone(), torch.zeros(2, 20))
    found = permuted(batch, slice(1, 3), 0).x
    assert torch.equal(batch.x, x)
    assert torch.equal(found[..., [0, 3]], x[..., [0, 3]])
    assert not torch.equal(found, x)
    assert torch.equal(found[..., 1:3].sort(1).values, x[..., 1:3])
    assert torch.equal(found[..., 2] - found[..., 1], torch.ones(2, 20))


def test_pearson_is_numpys() -> None:
    a, b = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    assert pearson(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert np.isnan(pearson(a[:2], b[:2]))
    assert np.isnan(pearson(a, torch.ones(50)))


def test_agreement_is_where_the_mechanism_is() -> None:
    """The thesis: about .4 without a mask, more with AND-mask, less with XOR-mask."""
    options: dict[str, Any] = {"num_environments": 16, "num_examples": 256, "standardize": False}
    options |= {"shortcut_dims": 32, "shortcut_scale": 0.1}
    found = np.mean([correlations(options, [0.125, 0.75, 1.0], trial) for trial in range(3)], 0)
    (xor_low, _, xor_all), (and_low, and_high, _) = found
    mechanism, shortcut, share = range(3)
    assert list(SIGNALS) == ["mechanism", "shortcut"]
    assert 0.25 < xor_all[mechanism] < 0.6 < xor_all[shortcut]
    assert xor_low[mechanism] < xor_all[mechanism] < and_low[mechanism] < and_high[mechanism]
    assert xor_low[share] + and_low[share] == pytest.approx(1)


def test_without_a_shortcut_all_signal_is_the_mechanisms() -> None:
    options: dict[str, Any] = {
        "num_environments": 4,
        "num_examples": 64,
        "shortcut_dims": 8,
        "shortcut_scale": 0.0,
    }
    found = correlations(options, [0.0], 0)[1, 0]
    assert found[0] == pytest.approx(1)
    assert found[1] < 0.999


def test_correlation_shows_both_masks_at_every_threshold(tmp_path: Path) -> None:
    finding = correlation(environments=5, examples=16, seeds=2)
    assert [row[:2] for row in finding.rows] == [
        [mask, tau] for mask in ("XOR-mask", "AND-mask") for tau in ("0.2", "0.6", "1")
    ]
    assert float(finding.rows[3][4]) == 1
    assert all(path.stat().st_size > 1000 for path in save(finding, "c", tmp_path))


@pytest.mark.parametrize(("count", "seeds"), [(1, 2), (4, 1)])
def test_too_few_for_a_correlation(count: int, seeds: int) -> None:
    with pytest.raises(UserError, match="at least 2 environments and 2 seeds"):
        correlation(count, 10, seeds)
