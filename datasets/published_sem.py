"""The models and examples behind two papers' linear studies, number for number."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oodbench.datasets import register
from oodbench.hparams import hparam

from .linear_sem import LinearSEM, Model


@register("PublishedSEM", replace(LinearSEM.metadata, paper="arXiv:1907.02893 and 2003.00688"))
class PublishedSEM(LinearSEM):
    """`LinearSEM` with the random draws of two papers' released code, from its default seeds.

    With torch's generator, whose stream of numbers is still the same, the models and examples are those
    behind the published numbers, so that ours can be compared model by model. The results stored with the
    code of arXiv:1907.02893 have a seed for each model, which is its trial; those of arXiv:2003.00688
    (`one_stream`, with `unit_weights` false) draw all models from seed 0, one after another. The noise of
    the last of `scales` is drawn here, as neither paper has it.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(LinearSEM.Options):
        """The options of `LinearSEM`, with a test environment, and how models are seeded."""

        scales: tuple[float, ...] = hparam((0.2, 2.0, 5.0, 10.0))
        one_stream: bool = hparam(False)

    options: Options

    def model(self, trial: int) -> Model:
        """The coefficients of a trial."""
        return self._drawn(trial)[0]

    def noise(self, trial: int, environment: str) -> Tensor:
        """Draw N(0, 1) for H, X, Y and Z, (4, num_examples, dim)."""
        drawn = self._drawn(trial)[1]
        return drawn[environment] if environment in drawn else super().noise(trial, environment)

    def _drawn(self, trial: int) -> tuple[Model, dict[str, Tensor]]:
        """A trial's model and its environments' noise, drawn in the order of the released code."""
        o, k = self.options, self.options.dim
        seed, before = (0, trial) if o.one_stream else (trial, 0)
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).double()

        one = torch.eye(k).double()
        for _ in range(before + 1):
            xy = yz = one
            hx, hy, hz = one, 0 * one, 0 * one
            rotation = torch.eye(2 * k).double()
            if not o.unit_weights:
                xy, yz = (normal(k, k) / (2 * k) for _ in range(2))
            if o.variant[2] == "S":
                rotation, _ = torch.linalg.qr(normal(2 * k, 2 * k))
            if o.variant[0] == "P":
                hx, hy, hz = (normal(k, k) / (2 * k) for _ in range(3))
            noise = {
                name: torch.stack([normal(o.num_examples, k) for _ in range(4)])
                for name in self.environments[:-1]
            }
        return Model(hx, hy, hz, xy, yz, rotation), noise
