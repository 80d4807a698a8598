"""Colored MNIST in DomainBed's construction, which differs from the original benchmark."""

import numpy as np
import torch

from oodbench.datasets import Environment, Metadata, register
from oodbench.tasks import Task

from .colored_mnist import ColoredImages
from .rotated_mnist import CHECKSUMS, DealtMNIST


@register(
    "DomainBedColoredMNIST",
    Metadata(
        paper="arXiv:2007.01434",
        licence="CC BY-SA 3.0 (MNIST)",
        family="digits",
        shift="how often the colour contradicts the label",
        network="MNISTCNN",
        steps=5001,
        checksums=CHECKSUMS,
    ),
)
class DomainBedColoredMNIST(DealtMNIST):
    """Digits below 5 against the others, with labels flipped with 25 % and a colour that agrees or not.

    The colour is the label, flipped with 10, 20 or 90 %: `+90%`, `+80%`, `-90%`. Unlike `ColoredMNIST` it
    divides all 70,000 images among the three environments, keeps all 28 x 28 pixels and has two outputs.
    Inputs are (2, 28, 28) in [0, 1]; the image is in channel 1 if its colour is 1, else in 0.
    """

    environments = ("+90%", "+80%", "-90%")
    degrees_of_change = (0.1, 0.2, 0.9)
    test_environments = ("-90%",)
    input_shape = (2, 28, 28)
    task = Task("multiclass", 2)
    classes = ColoredImages.classes
    attributes = ColoredImages.attributes

    def changed(
        self, images: np.ndarray, digits: torch.Tensor, degree: float, generator: torch.Generator
    ) -> Environment:
        """The images coloured; `degree` is how often the colour contradicts the label."""
        noise = torch.rand(2, len(images), generator=generator)
        label = (digits < 5) ^ (noise[0] < 0.25)
        color = (label ^ (noise[1] < degree)).long()
        x = torch.zeros(len(images), 2, 28, 28)
        x[torch.arange(len(images)), color] = torch.from_numpy(images).float() / 255
        return Environment(x, label.long(), attributes=color)
