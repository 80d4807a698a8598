import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oodbench.data.coinrun.experts import Policy, load_policy
from oodbench.data.coinrun.simulator import Simulator
from oodbench.errors import UserError


class Runner(nn.Module):
    """Runs and jumps, by odds of e^2 : 1 to each other action."""

    def __init__(self, outputs: int = 15, value: float = 2.0) -> None:
        super().__init__()
        logits = torch.zeros(outputs)
        logits[8 % outputs] = value
        self.logits = nn.Parameter(logits)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits + 0 * images.float().mean((1, 2, 3)).unsqueeze(1)


IMAGE = torch.zeros(1, 64, 64, 3, dtype=torch.uint8)


def saved(path: Path, module: nn.Module, example: Tensor = IMAGE) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.jit.save(torch.jit.trace(module, example), path)  # type: ignore[no-untyped-call]
    return path


def test_it_plays_by_its_distribution(tmp_path: Path) -> None:
    policy = Policy(3, load_policy(saved(tmp_path / "policy.pt", Runner())))
    episode = list(policy.episode(np.random.default_rng(0)))
    expected = torch.tensor([0.0] * 8 + [2.0] + [0.0] * 6).softmax(0).numpy()
    for image, distribution in episode:
        assert image.shape == (64, 64, 3) and image.dtype == np.uint8
        np.testing.assert_allclose(distribution, expected, rtol=1e-6)
    game = Simulator(3, 1)  # the same draws in a game of its own
    stream = np.random.default_rng(0)
    chances = torch.tensor(expected).double()
    for image, _ in episode:
        assert np.array_equal(game.images()[0], image)
        _, ended = game.step(np.array([stream.choice(15, p=chances / chances.sum())]))
    assert ended.all()
    again = [image for image, _ in policy.episode(np.random.default_rng(0))]
    assert np.array_equal(again, [image for image, _ in episode])
    game.close()
    policy.close()


def test_files_that_are_no_policy(tmp_path: Path) -> None:
    text = tmp_path / "text.pt"
    text.write_text("no policy")
    pickled = tmp_path / "weights.pt"
    torch.save({"a": torch.zeros(1)}, pickled)
    for file in (text, pickled):
        with pytest.raises(UserError, match=f"{file} is not a policy: TorchScript cannot read it"):
            load_policy(file)
    with pytest.raises(UserError, match=r"there is no policy file .*nowhere.pt"):
        load_policy(tmp_path / "nowhere.pt")


def test_programs_that_are_no_policy(tmp_path: Path) -> None:
    six = saved(tmp_path / "six.pt", Runner(6))
    with pytest.raises(UserError, match=r"six.pt does not map uint8 .*: it gives \(1, 6\)"):
        load_policy(six)
    broken = saved(tmp_path / "broken.pt", Runner(value=float("nan")))
    with pytest.raises(UserError, match=r"broken.pt gives logits that are not finite"):
        load_policy(broken)
    linear = saved(tmp_path / "linear.pt", nn.Linear(4, 15), torch.zeros(1, 4))
    with pytest.raises(UserError, match=r"linear.pt does not map uint8 images \(1, 64, 64, 3\)"):
        load_policy(linear)
