from pathlib import Path

import pytest

from oodbench.diagnose.environment_counts import accuracy, threshold
from oodbench.diagnose.mean_gradients import expected_size
from tests.diagnose.test_cli import call


def test_the_threshold_lets_little_noise_pass() -> None:
    assert [threshold(d) for d in (2, 8)] == [1, 1]
    for environments_ in (16, 33, 64):
        tau = threshold(environments_)
        assert expected_size(environments_, tau, 1).kept <= 1e-3
        assert expected_size(environments_, tau - 2 / environments_, 1).kept > 1e-3


@pytest.mark.slow
def test_and_mask_needs_fewer_environments() -> None:
    assert accuracy("ERM", 8, 300, 1) < 0.6
    assert accuracy("ANDMask", 8, 300, 1) > 0.95


def test_environments_on_the_command_line(tmp_path: Path) -> None:
    result = call(
        *("environments", "--environments", "2,3", "--trials", "1", "--steps", "2"),
        *("--out", str(tmp_path)),
    )
    assert result.exit_code == 0, result.output
    assert {p.name for p in tmp_path.iterdir()} == {"environments.png", "environments.svg"}
