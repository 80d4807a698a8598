"""The next values of a search by optuna's tree-structured Parzen estimator. Imports no torch."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from oodbench.errors import missing_package
from oodbench.hparams import Distribution, Value

Space = Mapping[str, Distribution]
"""The distribution of each hyperparameter that is searched, by its name."""


def suggest(
    space: Space,
    seen: Sequence[tuple[Mapping[str, Value], float]],
    running: Sequence[Mapping[str, Value]],
    seed: int,
) -> dict[str, Value]:
    """The next values by optuna's multivariate TPE (Bergstra et al., 2011); a pure function.

    `seen` are values and their costs (the less the better; NaN is the worst), `running` values whose
    costs are not known yet, which TPE takes for bad ones so as to go elsewhere. Values outside of
    the space, as defaults may be, are left out.
    """
    library = optuna()
    spaces = {name: _distribution(d) for name, d in space.items()}
    states = library.trial.TrialState
    sampler = library.samplers.TPESampler(n_startup_trials=1, seed=seed % 2**32)
    study = library.create_study(direction="minimize", sampler=sampler)

    def add(values: Mapping[str, Value], state: Any, cost: float | None) -> None:
        if all(_contains(d, values[name]) for name, d in space.items()):
            trial = library.trial.create_trial(
                params=dict(values), distributions=spaces, state=state, value=cost
            )
            study.add_trial(trial)

    for values, cost in seen:
        add(values, states.COMPLETE, math.inf if math.isnan(cost) else cost)
    for values in running:
        add(values, states.RUNNING, None)
    return dict(study.ask(spaces).params)


def optuna() -> Any:
    """The package optuna, quiet; raises MissingError if it is not installed."""
    try:
        import optuna as library
    except ImportError as error:
        raise missing_package("a TPE search", "optuna", "search") from error
    library.logging.set_verbosity(library.logging.WARNING)
    return library


def _bounds(distribution: Distribution) -> tuple[float, float]:
    """The least and the largest value of a distribution over numbers; log-integers start at 1."""
    low, high = (float(a) for a in distribution.arguments if a is not None)
    if distribution.kind.endswith("_int"):
        log = distribution.kind.startswith("log_")
        return max(1, int(low)) if log else int(low), math.ceil(high) - 1
    return low, math.nextafter(high, low)


def _distribution(distribution: Distribution) -> Any:
    """Optuna's distribution with the support of ours."""
    distributions = optuna().distributions
    if distribution.kind == "choice":
        return distributions.CategoricalDistribution(distribution.arguments)
    integers = distribution.kind.endswith("_int")
    kind = distributions.IntDistribution if integers else distributions.FloatDistribution
    return kind(*_bounds(distribution), log=distribution.kind.startswith("log_"))


def _contains(distribution: Distribution, value: Value) -> bool:
    if distribution.kind == "choice":
        return value in distribution.arguments
    low, high = _bounds(distribution)
    return isinstance(value, int | float) and low <= value <= high
