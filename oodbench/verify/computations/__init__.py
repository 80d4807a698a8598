"""Papers' numbers that are computed, or combined from several sweeps."""

from collections.abc import Callable, Mapping

from oodbench.results.tables import Tables
from oodbench.verify.computations import and_mask, control, memorization, rex
from oodbench.verify.targets import Values

COMPUTATIONS: dict[str, Callable[[int, Mapping[str, Tables]], Values]] = {
    "control-rewards": control.control_rewards,
    "covariate-shift-search": rex.covariate_shift_search,
    "covariate-shift-toy": rex.covariate_shift,
    "financial-indicators": rex.financial_indicators,
    "gradient-correlation": and_mask.gradient_correlation,
    "ilc-linear": and_mask.ilc_linear,
    "memorization": memorization.orderings,
    "memorization-regularizers": memorization.regularizers,
    "random-gradients": and_mask.random_gradients,
    "risk-fields": rex.risk_fields,
    "scalar-sem": rex.scalar_sem,
}
"""Functions of the number of trials and of the sweeps' results, by the name in `Experiment.compute`."""
