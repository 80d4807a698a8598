"""The hyperparameters that every method has."""

from dataclasses import dataclass

from oodbench.hparams import choice, hparam, log_uniform, log_uniform_int
from oodbench.optimizers import SCHEDULES

BALANCED = {"uniform": "", "rwy": "classes", "rwg": "groups", "subg": "groups"}
"""The values of `sampling`, and what each balances."""


@dataclass(frozen=True, kw_only=True)
class CommonHparams:
    """What every method has. Sources of the ranges: arXiv:2007.01434, D.2; arXiv:2009.00329, A.6."""

    lr: float = hparam(
        1e-3,
        log_uniform(10**-4.5, 10**-2.5),
        low=0.0,
        by_family={
            "synthetic": (1e-2, choice(1e-3, 1e-2, 1e-1)),
            "linear": (1e-2, log_uniform(1e-3, 1e-1)),
            "small_images": (1e-3, log_uniform(10**-3.5, 10**-2.5)),
            "noisy_labels": (5e-4, choice(5e-4, 1e-3, 5e-3)),
            "images": (5e-5, log_uniform(1e-5, 10**-3.5)),
            "text": (1e-5, log_uniform(1e-6, 1e-4)),
        },
    )
    """The learning rate."""
    weight_decay: float = hparam(
        0.0,
        log_uniform(1e-6, 1e-2),
        low=0.0,
        by_family={
            "synthetic": (1e-3, choice(0.0, 1e-5, 1e-4, 1e-3)),
            "linear": (0.0, None),
            "small_images": (2e-3, log_uniform(2e-5, 2e-2)),
            "noisy_labels": (1e-6, None),
            "digits": (0.0, None),
        },
    )
    """Added to the gradient as weight_decay * parameter (twice the factor of a penalty ||w||^2),
    but for `adamw`, which takes it, times the learning rate, from the parameter itself."""
    batch_size: int = hparam(
        32,
        log_uniform_int(2**3, 2**5.5),
        low=0,
        by_family={
            "synthetic": (256, choice(64, 128, 256)),
            "linear": (0, None),
            "small_images": (0, None),
            "noisy_labels": (80, None),
            "digits": (64, log_uniform_int(2**3, 2**9)),
        },
    )
    """Examples per environment and step; 0: as many as the smallest environment has."""
    environments_per_step: int = hparam(0, low=0)
    """How many training environments a step is of, drawn anew each time; 0: all. A drawn one
    with fewer than `batch_size` examples goes on with its next epoch."""
    optimizer: str = hparam("adam", options=("adam", "adamw", "sgd"))
    momentum: float = hparam(0.9, low=0.0, high=1.0)
    """The momentum of the optimizer `sgd`."""
    lr_schedule: str = hparam(
        "constant",
        options=tuple(SCHEDULES),
        by_family={"synthetic": ("drop", None), "noisy_labels": ("drop", None)},
    )
    sampling: str = hparam("uniform", options=tuple(BALANCED), neutral="uniform")
    """Which examples an environment's batches are of (arXiv:2110.14503): `rwy` and `rwg` draw each of
    its classes or groups equally often, with replacement; `subg` keeps as many of each group as
    its smallest has. Groups are pairs of target and attribute."""
    warm_up: int | float = hparam(0.0, low=0, neutral=0.0)
    """Updates in which the learning rate rises linearly to its schedule, below 1 a share of the
    run's steps (arXiv:1706.02677, section 2.2)."""
    clip_norm: float = hparam(0.0, low=0.0, neutral=0.0)
    """The largest norm of an update's whole gradient, which is scaled down to it (arXiv:1211.5063,
    algorithm 1), after masks and before weight decay; 0: any."""
    accumulation: int = hparam(1, low=1, neutral=1)
    """The parts in which a batch goes through the featurizer, so that the activations of one are in
    memory (gradient caching, arXiv:2101.06983). Objectives still see the whole batch, and the
    gradients are those of the whole batch; batch normalisation sees a part."""
    head_only: int | float = hparam(0.0, low=0, neutral=0.0)
    """Updates at the start that train the classifier alone, below 1 a share of the run's steps
    (arXiv:2202.10054); meanwhile the featurizer is as in evaluation."""
