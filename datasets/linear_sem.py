"""Linear structural equation models with causes and effects of the target among the inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from oodbench.datasets import Dataset, Environment, Metadata, numbered_environments, register
from oodbench.hparams import hparam
from oodbench.tasks import Task

VARIANTS = tuple(f"{h}{n}{s}" for h in "FP" for n in "OE" for s in "US")


@dataclass(frozen=True)
class Model:
    """The coefficients of one structural equation model, with k = `dim`."""

    hx: Tensor
    """(k, k): the weights from the confounder H to the causes X; the others are named alike."""
    hy: Tensor
    hz: Tensor
    xy: Tensor
    yz: Tensor
    scrambling: Tensor
    """(2k, 2k), orthogonal: inputs are (X, Z) times it."""


@register(
    "LinearSEM",
    Metadata(
        paper="arXiv:1907.02893",
        licence="generated",
        family="linear",
        shift="the scale of the noise",
        network="Linear",
        steps=2000,
    ),
)
class LinearSEM(Dataset):
    """Regression on causes X and effects Z of the target, with noise whose scale changes.

    Arjovsky et al., section 5.1, after their code: with H ~ e N(0, 1) and an environment's scale
    e, X = H W_hx + e N(0, 1); Y = X W_xy + H W_hy + noise_y; Z = Y W_yz + H W_hz + noise_z. Inputs
    are (X, Z) S, (2 * dim,); the target is the sum of Y's columns, (1,). Letters of the variant:

    - F fully observed (W_hx = 1, W_hy = W_hz = 0) or P partially (H confounds: entries of all
      three are N(0, 1) / (2 * dim));
    - O homoskedastic Y (noise_y of scale 1, noise_z of scale e) or E heteroskedastic Y (the
      reverse);
    - U unscrambled (S = 1) or S scrambled (S a random rotation).

    A trial is one model, shared by its environments. `dim` counts the columns of X (and of Z); the
    paper's text has 10 of each, the code and its stored results 5.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Dataset.Options):
        """The variant and its sizes."""

        variant: str = hparam("FOU", options=VARIANTS)
        scales: tuple[float, ...] = hparam((0.2, 2.0, 5.0))
        """The noise's scale e, by environment; the last is the test environment."""
        num_examples: int = hparam(1000, low=1)
        dim: int = hparam(5, low=1)
        unit_weights: bool = hparam(True)
        """W_xy = W_yz = 1, as in the stored results; else entries N(0, 1) / (2 * dim)."""
        as_test: bool = hparam(False, neutral=False)
        """Whether every environment has the test environment's scale, for a ceiling."""

    options: Options

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        valid = all(scale > 0 for scale in options.scales)
        self.environments = numbered_environments(self, "scales", valid, " above 0")
        self.test_environments = self.environments[-1:]
        self.input_shape = (2 * options.dim,)
        self.task = Task("regression")

    def load(self, trial: int) -> dict[str, Environment]:
        """Inputs (N, 2 * dim) and targets (N, 1) of each environment."""
        model = self.model(trial)
        scales = self.options.scales
        if self.options.as_test:
            scales = scales[-1:] * len(scales)
        return {
            name: self._environment(model, scale, self.noise(trial, name))
            for name, scale in zip(self.environments, scales, strict=True)
        }

    def noise(self, trial: int, environment: str) -> Tensor:
        """Draw N(0, 1) for H, X, Y and Z, (4, num_examples, dim)."""
        shape = (4, self.options.num_examples, self.options.dim)
        generator = self.generator(trial, environment)
        return torch.randn(shape, generator=generator, dtype=torch.double)

    def model(self, trial: int) -> Model:
        """The coefficients of a trial; all variants share the draws."""
        k = self.options.dim
        generator = self.generator(trial, "model")
        hx, hy, hz, xy, yz = torch.randn(5, k, k, generator=generator, dtype=torch.double) / (2 * k)
        rotation, _ = torch.linalg.qr(
            torch.randn(2 * k, 2 * k, generator=generator, dtype=torch.double)
        )
        one = torch.eye(k, dtype=torch.double)
        if self.options.variant[0] == "F":
            hx, hy, hz = one, 0 * one, 0 * one
        if self.options.unit_weights:
            xy = yz = one
        if self.options.variant[2] == "U":
            rotation = torch.eye(2 * k, dtype=torch.double)
        return Model(hx, hy, hz, xy, yz, rotation)

    def _environment(self, model: Model, scale: float, noise: Tensor) -> Environment:
        h, noise_x, noise_y, noise_z = noise
        scale_y, scale_z = (1.0, scale) if self.options.variant[1] == "O" else (scale, 1.0)
        h = scale * h
        x = h @ model.hx + scale * noise_x
        y = x @ model.xy + h @ model.hy + scale_y * noise_y
        z = y @ model.yz + h @ model.hz + scale_z * noise_z
        inputs = torch.cat([x, z], 1) @ model.scrambling
        return Environment(inputs.float(), y.sum(1, keepdim=True).float())

    def predictor_metrics(
        self, predict: Callable[[Tensor], Tensor], trial: int
    ) -> dict[str, float]:
        """Errors of a linear predictor's weights; empty for a predictor that is not linear.

        With w the weights in terms of (X, Z), S times those in terms of the inputs: `causal_error`
        is the mean squared difference between X's w and the row sums of W_xy, `noncausal_error`
        the mean square of Z's w, whose true value is 0; `weight_error` is the mean of the two (the
        error that arXiv:2003.00688's code reports as causal where the inputs are scrambled). An
        intercept is ignored.
        """
        k = self.options.dim
        weights = linear_weights(predict, 2 * k)
        if weights is None:
            return {}
        model = self.model(trial)
        w = model.scrambling @ weights.squeeze(1).double()
        causal = (w[:k] - model.xy.sum(1)).square().mean().item()
        noncausal = w[k:].square().mean().item()
        return {
            "causal_error": causal,
            "noncausal_error": noncausal,
            "weight_error": (causal + noncausal) / 2,
        }


def named_weights(predict: Callable[[Tensor], Tensor], names: Sequence[str]) -> dict[str, float]:
    """The weights of a linear predictor by the inputs' `names`; empty if it is not linear."""
    weights = linear_weights(predict, len(names))
    return {} if weights is None else dict(zip(names, weights.flatten().tolist(), strict=True))


def linear_weights(predict: Callable[[Tensor], Tensor], dim: int) -> Tensor | None:
    """Weights (dim, C) of a predictor of inputs (N, dim); None if random inputs show it is not linear."""
    generator = torch.Generator().manual_seed(0)
    probes = torch.cat([torch.eye(dim), torch.randn(2 * dim, dim, generator=generator)])
    outputs = predict(torch.cat([torch.zeros(1, dim), probes]))
    probes = probes.to(outputs.dtype)  # estimators predict in double precision
    measured = outputs[1:] - outputs[0]
    weights = measured[:dim]
    if (measured - probes @ weights).norm() > 1e-3 * measured.norm():
        return None
    return weights
