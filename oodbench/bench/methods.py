"""What an update step of every method costs beside ERM's."""

from collections.abc import Callable, Sequence
from typing import Any

from oodbench.algorithms import algorithms
from oodbench.bench.rows import Row
from oodbench.bench.steps import on_random_data, paired, random_updates

ENVIRONMENTS, EXAMPLES, INPUTS = 16, 32, 18
DOMAINBED = {
    "ADRMX": 141.0,
    "ANDMask": 3.40,
    "CAD": 5.92,
    "CDANN": 2.89,
    "CORAL": 24.9,
    "CausIRL_CORAL": 3.95,
    "CausIRL_MMD": 6.93,
    "CondCAD": 4.96,
    "DANN": 2.82,
    "EQRM": 2.09,
    "ERMPlusPlus": 1.20,
    "Fish": 5.45,
    "GroupDRO": 2.26,
    "IB_ERM": 2.47,
    "IB_IRM": 4.28,
    "IGA": 10.8,
    "IRM": 2.50,
    "MLDG": 13.5,
    "MMD": 43.0,
    "MTL": 2.95,
    "Mixup": 2.36,
    "RSC": 1.60,
    "SANDMask": 9.67,
    "SD": 1.02,
    "SagNet": 4.39,
    "SelfReg": 34.4,
    "Transfer": 14.5,
    "URM": 2.32,
    "VREx": 1.22,
}
"""The CPU time of DomainBed's `update` (at b93c22a) over that of its ERM, on one thread: medians of 5
interleaved rounds with an MLP 18-256-256-256 at 16 environments x 32 examples."""

REACH = {
    "CAD": 2.6,
    "CORAL": 1.7,
    "CausIRL_CORAL": 1.6,
    "CausIRL_MMD": 4.0,
    "CondCAD": 2.6,
    "EQRM": 1.3,
    "Fish": 4.0,
    "Fishr": 1.3,
    "GroupDRO": 1.1,
    "IB_ERM": 1.2,
    "IB_IRM": 1.2,
    "IGA": 5.0,
    "MLDG": 5.0,
    "MMD": 4.0,
    "Mixup": 1.4,
    "RDM": 2.2,
    "RSC": 1.6,
    "SAM": 2.2,
    "SANDMask": 2.0,
    "SD": 1.2,
    "SagNet": 3.0,
    "SelfReg": 6.0,
}
"""What each method is to cost at most, over ERM."""
GROWTH = (4, 16, 64)
"""The numbers of environments at which the cost's growth is measured."""


def compared(environments: int = ENVIRONMENTS) -> dict[str, Callable[[], object]]:
    """The update step of every method that trains a network of one logit, by name."""
    works = {}
    for name in algorithms:
        if algorithms.get(name).trains_network:
            built: Any = on_random_data(name, "MLP", (INPUTS,), (environments, EXAMPLES))
            if built[0].skip(built[0].problem) is None:
                works[name] = random_updates(*built)
    return works


def method_costs(repeat: int = 5, rounds: int = 15) -> list[Row]:
    """A row for each method: its CPU time over ERM's at its default hyperparameters."""
    works = compared()
    seconds = dict(zip(works, paired(list(works.values()), repeat, rounds=rounds), strict=True))
    shape = f"{ENVIRONMENTS} environments x {EXAMPLES}"
    return [
        Row(
            what=f"update step, {name} / ERM at {shape}, MLP {INPUTS}-256-256-256, 1 logit",
            reach=f"<= {REACH[name]}" if name in REACH else "-",
            measured=f"{of_name / seconds['ERM']:.2f}",
            domainbed=f"{DOMAINBED[name]:.3g}" if name in DOMAINBED else "-",
        )
        for name, of_name in seconds.items()
    ]


def method_growth(
    environments: Sequence[int] = GROWTH, repeat: int = 2, rounds: int = 7
) -> list[Row]:
    """A row for each method: its CPU milliseconds at several numbers of environments."""
    found: dict[str, list[str]] = {}
    for count in environments:
        works = compared(count)
        for name, seconds in zip(
            works, paired(list(works.values()), repeat, rounds=rounds), strict=True
        ):
            found.setdefault(name, []).append(f"{1e3 * seconds:.1f}")
    counts = ", ".join(map(str, environments))
    return [
        Row(
            what=f"update step, {name}, ms at {counts} environments x {EXAMPLES}",
            measured=", ".join(ms),
        )
        for name, ms in found.items()
    ]
