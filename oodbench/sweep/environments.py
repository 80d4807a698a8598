"""Which environments a run trains on, and which it holds out."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from oodbench.errors import UserError, unknown
from oodbench.seeds import derive
from oodbench.sweep.file import Sweep
from oodbench.sweep.file_errors import short


def test_environment_sets(sweep: Sweep, dataset: Any) -> list[tuple[str, ...]]:
    """The sets of test environments on which a sweep's methods are tried, each in the dataset's order.

    Raises UserError for unknown names and for sets that are empty or stand twice.
    """
    wanted = sweep.test_environments
    if wanted == "default":
        sets = [dataset.test_environments]
    elif wanted in ("each", "pairs"):
        sets = [(name,) for name in dataset.environments]
        if wanted == "pairs":
            sets += list(itertools.combinations(dataset.environments, 2))
    else:
        sets = [_known(names, dataset, "test_environments") for names in wanted]
    for names in sets:
        if not names or len(set(names)) < len(names):
            raise UserError(
                f"test_environments must be lists of different names, not {short(list(names))}"
            )
    ordered = [tuple(sorted(names, key=dataset.environments.index)) for names in sets]
    for names, count in Counter(ordered).items():
        if count > 1:
            raise UserError(f"test_environments lists {' and '.join(names)} more than once")
    return ordered


def validation_environments(
    sweep: Sweep, dataset: Any, tests: tuple[str, ...], trial: int
) -> tuple[str, ...]:
    """The environments that a trial's runs hold out for selection beside those of the test.

    Raises UserError where none would be left to train on.
    """
    wanted = sweep.validation_environments
    training = dataset.given_training
    if training is not None and training.validation_environments is not None:
        wanted = training.validation_environments
    if wanted == "none":
        return ()
    if wanted == "default":
        return tuple(n for n in dataset.validation_environments if n not in tests)
    free = dataset.trained_on(tests)
    if isinstance(wanted, int):
        if wanted >= len(free):
            raise UserError(
                f"{dataset.label} has {len(free)} environments besides the test ones: "
                f"{wanted} validation environments leave none to train on"
            )
        stream = random.Random(derive("validation", dataset.name, tests, trial))
        return tuple(sorted(stream.sample(free, wanted), key=free.index))
    names = _known(wanted, dataset, "validation_environments")
    for name in names:
        if name in tests:
            raise UserError(f"environment '{name}' of {dataset.label} is both test and validation")
    return names


def training_environments(
    dataset: Any, tests: Sequence[str], validation: Sequence[str]
) -> tuple[str, ...]:
    """The environments that are left to train on; raises UserError if there is none."""
    names: tuple[str, ...] = dataset.trained_on({*tests, *validation})
    if not names:
        raise UserError(
            f"{dataset.label}: with {', '.join([*tests, *validation])} held out, "
            "no environment is left to train on"
        )
    return names


def _known(names: Sequence[str | float], dataset: Any, key: str) -> tuple[str, ...]:
    """Environment names as the dataset spells them; YAML reads 0.9 as a number."""
    spelled = tuple(f"{n:g}" if isinstance(n, float) else str(n) for n in names)
    for name in spelled:
        if name not in dataset.environments:
            raise unknown(
                "environment", short(name)[1:-1], dataset.environments, f"{key} of {dataset.label}"
            )
    return spelled
