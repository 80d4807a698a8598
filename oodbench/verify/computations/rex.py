"""Numbers of arXiv:2003.00688 (REx): summaries of two sweeps, and toy problems with known risks.

The search counts the configurations that beat chance out of distribution (section 4.1). The financial
indicators have 20 tasks (table 11.VI of the thesis). Two toy problems are from the appendix, with risks
that are functions of one or two numbers. The third is figure 11.4 of the thesis, on the directions in which
MM-REx and V-REx push two training risks.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from oodbench.algorithms import Batch, Outputs, Problem, algorithms
from oodbench.hparams import checked, defaults
from oodbench.networks.base import build
from oodbench.results.tables import Tables
from oodbench.selection.judge import choose
from oodbench.tasks import Task
from oodbench.verify.measured import last_values, recorded_values
from oodbench.verify.targets import Values

CHANCE = 0.5
TOY_METHODS: dict[str, dict[str, Any]] = {
    "ERM": {},
    "RI": {},
    "MMREx": {"lambda_min": -1000.0},
    "VREx": {"penalty_weight": 1e4},
}
DOMAINS = {"below": (0.1, 0.2), "between": (0.2, 0.6), "above": (0.5, 0.8)}
"""P(costly) in the two training environments, by position relative to 1/3."""
CHEAP, COSTLY = 2.0, 4.0
"""The costs u and v of the two kinds of mistakes."""
W_1, W_2 = 1.5, 0.8
"""The coefficients of the cause and of the effect."""
SCALES = (0.5, 1.0, 2.0)
"""The standard deviations, by environment, of the noise that varies; other noise has 1."""
FIELD_METHODS: dict[str, dict[str, Any]] = {
    "MMREx": {"lambda_min": -1.0},
    "VREx": {"penalty_weight": 6.0},
}
"""The methods, with weights for which both have the same gradient where the risks differ by 1/2."""
NEAR = 1e-3
"""The difference of risks on each side of equality, where the gradient jumps."""


def covariate_shift_search(trials: int, frames: Mapping[str, Tables]) -> Values:
    """Whether each completed run is satisfactory (1 or 0), by row and imbalance.

    A satisfactory run has a last test accuracy above chance and below the training accuracy.
    """
    values: Values = {}
    for sweep in frames.values():
        test, training = (last_values(e, sweep) for e in ("test", "training"))
        imbalances = test["options"].map(lambda options: options["imbalance"])
        good = (test["value"] > CHANCE) & (training["value"] > test["value"])
        for (row, imbalance), of_row in good.groupby([test["label"], imbalances]):
            values[f"{row}, {imbalance}"] = [float(v) for v in np.asarray(of_row)]
    return values


def financial_indicators(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The mean, least and greatest test accuracy over tasks, by row, in each trial with all tasks."""
    values: Values = {}
    for sweep in frames.values():
        chosen = choose(sweep, "val_env")[["id", "step"]]
        recorded = recorded_values(sweep, sweep.runs, "accuracy", "test", "in")
        of_tasks = recorded.merge(chosen, on=["id", "step"])
        runs = sweep.runs[["id", "label", "trial"]].merge(of_tasks, on="id", how="left")
        for row, of_row in runs.groupby("label"):
            by_trial = of_row.groupby("trial")["value"]
            whole = by_trial.agg(lambda task: task.notna().all())
            for what in ("mean", "min", "max"):
                values[f"{row}, {what}"] = [float(v) for v in by_trial.agg(what)[whole]]
    return values


def on_risks(name: str, environments: int, **values: Any) -> Callable[[Tensor], Tensor]:
    """A method's objective after annealing, as a function of the training risks (E,)."""
    cls: Any = algorithms.get(name)
    names = tuple(map(str, range(environments)))
    problem = Problem((1,), Task("regression"), names, 1)
    fixed = {"anneal_steps": 0, "divide_by_weight": False} if values else {}
    hparams = checked(cls.Hparams, {**defaults(cls.Hparams), **values, **fixed}, name)
    algorithm = cls(build("Linear", {}, (1,), 1, 0), problem, hparams)
    none = torch.empty(0)
    batch = Batch(none, none)

    def objective(risks: Tensor) -> Tensor:
        out = Outputs(none, none, none, none, risks, 0, problem.task, batch)
        value: Tensor = algorithm.objective(out)
        return value

    return objective


def costly_risk(p: Tensor, q: Tensor) -> Tensor:
    """The risk (1 - p)(1 - q) u + p q v of section 11.1.5 of the thesis."""
    return (1 - p) * (1 - q) * CHEAP + p * q * COSTLY


def covariate_shift(trials: int, frames: Mapping[str, Tables]) -> Values:
    """By method and pair of environments, the chosen p in [0, 1] and its worst risk; deterministic."""
    values: Values = {}
    for domain, pair in DOMAINS.items():
        q = torch.tensor(pair, dtype=torch.double)
        for name, hparams in TOY_METHODS.items():
            objective = on_risks(name, 2, **hparams)

            def value(p: float, objective: Any = objective, q: Tensor = q) -> float:
                return float(objective(costly_risk(torch.tensor(p, dtype=torch.double), q)))

            p = float(minimize_scalar(value, bounds=(0, 1), method="bounded").x)
            worst = float(costly_risk(torch.tensor(p), torch.tensor([0.0, 1.0])).max())
            values[f"{name}, q {domain} 1/3: p"] = [p]
            values[f"{name}, q {domain} 1/3: worst risk"] = [worst]
    return values


def sem_risks(weights: Tensor, varies: str) -> Tensor:
    """The risks (E,) E[(a X1 + b X2 - Y)^2] for X1 = N1, Y = w1 X1 + NY, X2 = w2 Y + N2.

    The residual is (a + w1 (b w2 - 1)) N1 + (b w2 - 1) NY + b N2. `varies` names the noise, `Y` or `2`,
    with different scales in the environments.
    """
    a, b = weights
    scales = torch.tensor(SCALES, dtype=torch.double)
    one = torch.ones_like(scales)
    noise_y, noise_2 = (scales, one) if varies == "Y" else (one, scales)
    rest = b * W_2 - 1
    risks: Tensor = (a + W_1 * rest) ** 2 + rest**2 * noise_y**2 + b**2 * noise_2**2
    return risks


def scalar_sem(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The weights (a, b) that ERM and V-REx choose if one of the noises varies; deterministic."""
    values: Values = {}
    for varies in ("2", "Y"):
        start = np.zeros(2)  # V-REx continues from the solution at the last penalty weight
        for name, weights in (("ERM", [0.0]), ("VREx", [1e1, 1e3, 1e5, 1e7])):
            for weight in weights:
                objective = on_risks(name, 3, **({"penalty_weight": weight} if weight else {}))

                def value(x: Any, objective: Any = objective, varies: str = varies) -> Any:
                    point = torch.tensor(x, dtype=torch.double, requires_grad=True)
                    total = objective(sem_risks(point, varies))
                    (gradient,) = torch.autograd.grad(total, point)
                    return total.item(), gradient.numpy()

                start = minimize(value, start, jac=True, method="BFGS", tol=1e-12).x
            a, b = map(float, start)
            values[f"{name}, noise {varies} varies: a"] = [a]
            values[f"{name}, noise {varies} varies: b"] = [b]
    return values


def risk_fields(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The gradients of the methods' objectives at pairs of risks; deterministic."""
    pairs = torch.tensor([[0.75, 0.25], [0.5 + NEAR, 0.5], [0.5, 0.5 + NEAR]])
    values: Values = {}
    for name, hparams in FIELD_METHODS.items():
        points = pairs.clone().requires_grad_()
        total = torch.stack([*map(on_risks(name, 2, **hparams), points)]).sum()
        (slopes,) = torch.autograd.grad(total, points)
        apart, above, below = slopes.double()
        values |= {
            f"{name}: first risk": [float(apart[0])],
            f"{name}: second risk": [float(apart[1])],
            f"{name}: jump at equality": [float((above - below).norm())],
        }
    return values
