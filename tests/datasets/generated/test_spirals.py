import numpy as np
import pytest
import torch

from oodbench.datasets import make


def test_sizes() -> None:
    dataset = make("Spirals", {"num_validation": 2})
    environments = dataset.load(0)
    training = [str(i) for i in range(16)]
    assert list(environments) == [*training, "validation0", "validation1", "test"]
    assert dataset.validation_environments == ("validation0", "validation1")
    assert dataset.test_environments == ("test",)
    sizes = [tuple(e.x.shape) for e in environments.values()]
    assert sizes == [(1024, 18)] * 18 + [(2000, 18)]


def test_papers_own_setting() -> None:
    options: dict[str, object] = {"num_environments": 32, "shortcut_dims": 32, "num_examples": 1280}
    options |= {"shortcut_scale": 0.1, "standardize": False}
    environments = make("Spirals", options).load(0)
    assert len(environments) == 33
    x = environments["31"].x
    assert x.shape == (1280, 34)
    assert x[:, :2].norm(dim=1).max() <= 1.02
    signatures = torch.stack([environments[str(i)].x[0, 2:] for i in range(32)])
    assert signatures.std().item() == pytest.approx(0.1, rel=0.15)


def reference(seed: int, count: int, dims: int, noise: bool) -> tuple[np.ndarray, np.ndarray]:
    """The released process, written out one example at a time."""
    random = np.random.RandomState(seed)
    s = random.randn(dims)
    r = random.uniform(0.08, 1, size=count)
    y = random.randint(0, 2, size=count)
    dr = random.uniform(-0.02, 0.02, size=count)
    other = random.randn(count, dims) if noise else None
    points, shortcuts = [], []
    for i in range(count):
        angle = 2 * np.pi * 3 * r[i] + (np.pi if y[i] else 0.0)
        points.append([(r[i] + dr[i]) * np.cos(angle), (r[i] + dr[i]) * np.sin(angle)])
        shortcuts.append(other[i] if other is not None else (s if y[i] else -s))
    mechanism = np.array(points)
    return np.hstack([mechanism / np.sqrt(mechanism.var(axis=0)), shortcuts]), y


@pytest.mark.parametrize(("name", "count"), [("0", 1024), ("7", 1024), ("test", 2000)])
def test_draws_follow_the_released_order(name: str, count: int) -> None:
    dataset = make("Spirals", {})
    environment = dataset.load(4)[name]
    x, y = reference(dataset.seed(4, name) % 2**32, count, 16, noise=name == "test")
    np.testing.assert_allclose(environment.x.numpy(), x, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(environment.y.numpy(), y)


def test_as_in_the_test_environment_the_shortcut_is_noise_beside_the_same_spirals() -> None:
    plain, noise = (make("Spirals", {"as_test": a}).load(0) for a in (False, True))
    assert (plain["test"].x == noise["test"].x).all()
    for name in plain:
        assert (plain[name].x[:, :2] == noise[name].x[:, :2]).all()
        assert (plain[name].y == noise[name].y).all()
        signed = noise[name].x[:, 2:] * (2 * noise[name].y - 1).unsqueeze(1)
        assert signed.mean(0).abs().max() < 4.5 / 1024**0.5


def test_an_environment_depends_on_its_own_name_alone() -> None:
    few = make("Spirals", {"num_environments": 2, "num_validation": 1}).load(0)
    many = make("Spirals", {"num_environments": 5, "num_validation": 3}).load(0)
    for name, environment in few.items():
        assert torch.equal(environment.x, many[name].x)
        assert torch.equal(environment.y, many[name].y)
