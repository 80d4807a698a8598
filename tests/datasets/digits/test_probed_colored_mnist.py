from pathlib import Path

import torch

from oodbench.datasets import make
from tests.datasets.digits.test_colored_mnist import color, near, read


def test_probes_share_out_the_last_images_and_lie_on_a_line(mnist_dir: Path) -> None:
    dataset = make("ProbedColoredMNIST", {}, mnist_dir)
    environments = dataset.load(0)
    assert dataset.test_environments == ("0", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1")
    assert [len(e.x) for e in environments.values()][:2] == [25_000, 25_000]
    images, _ = read(mnist_dir)
    shapes = torch.stack([environments[n].x[0].sum(0) for n in dataset.test_environments])
    torch.testing.assert_close(shapes * 255, images[50_000:50_009, ::2, ::2].float())
    assert sum(len(environments[n].x) for n in dataset.test_environments) == 10_000
    for name, environment in environments.items():
        assert near(color(environment) != environment.y, float(name)) or name in ("0", "1")
    assert (color(environments["0"]) == environments["0"].y).all()
    assert (color(environments["1"]) != environments["1"].y).all()
