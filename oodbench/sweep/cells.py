"""What the cells of a sweep are: rows on datasets with some environments held out, and their runs."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from oodbench.data import facts
from oodbench.errors import UserError, unknown
from oodbench.hparams import drawn_values, identity, rates_family
from oodbench.registry import CHANGES
from oodbench.results.run_spec import CONSTANT, OPTIONS, RunSpec
from oodbench.seeds import derive
from oodbench.sweep.file import KIND, Component, Names, Row, Sweep, Training, short

Draw = tuple[dict[str, Any], dict[str, Any]]
"""The hyperparameters of a method and those of its network."""


def rows_of(sweep: Sweep) -> list[Row]:
    """The rows of a sweep, completed: `all` and `kind: KIND` are the methods that no row names."""
    from oodbench.algorithms import algorithms

    listed = [completed_row(row) for row in sweep.algorithms]
    labels = {row.label for row in listed}
    rows = []
    for row in listed:
        if row.name != "all" and not row.name.startswith(KIND):
            rows.append(row)
            continue
        kind = row.name.removeprefix(KIND)
        if kind not in ("all", *CHANGES):
            raise unknown("kind of methods", short(kind)[1:-1], CHANGES, "algorithms")
        for name in algorithms:
            if kind in ("all", algorithms.get(name).changes) and name not in labels:
                rows.append(Row(name=name, label=name))
                labels.add(name)
    return rows


def completed_row(row: str | Row) -> Row:
    """A row with its label in tables and the numbers of its weight average; raises UserError.

    Unless the file gives a label, it is the method and, where the row has one, its weight average.
    """
    row = row if isinstance(row, Row) else Row(name=row)
    if row.average in ("none", {"name": "none"}):
        return row.model_copy(update={"label": row.label or row.name, "average": "none"})
    from oodbench.train.averages import AVERAGES, numbers

    average = numbers({"name": row.average} if isinstance(row.average, str) else row.average)
    label = row.label or f"{row.name} + {AVERAGES[average['name']].label}"
    return row.model_copy(update={"label": label, "average": average})


def check_rows(rows: Sequence[Row]) -> None:
    """Raise UserError for rows that a table could not tell apart, or that cannot be compared."""
    counts = Counter(row.label for row in rows)
    for label, count in counts.items():
        if count > 1:
            raise UserError(f"two algorithms are called {short(label)}: give them a `label` each")
    if CONSTANT in counts:
        raise UserError(f"'{CONSTANT}' is the row of the constant answer: use another `label`")
    if all(row.ceiling for row in rows):
        raise UserError("every row is marked `ceiling: true`: there is no method below the ceiling")
    for row in rows:
        if row.options and not row.ceiling:
            raise UserError(
                f"{short(row.label)} has `options` of its own for the data: only a row "
                "marked `ceiling: true` may, as the others are compared on the same data"
            )


def indices(value: int | list[int], key: str) -> list[int]:
    """The numbers of trials or draws that a key counts or lists; raises UserError for others."""
    numbers = list(range(value)) if isinstance(value, int) else value
    if not numbers or len(set(numbers)) < len(numbers):
        raise UserError(f"{key} must be a list of different numbers, not {short(value)}")
    return numbers


@dataclass(frozen=True)
class Source:
    """A dataset of a sweep, with what the file says of it."""

    dataset: Any
    label: str
    """The dataset as tables call it."""
    training: Training
    ceiling: Mapping[str, Any]
    """The options of the data of its ceilings, under those of a row (`Row.options`)."""


@dataclass(frozen=True)
class Conditions:
    """What all rows of a sweep have in common on a dataset."""

    steps: int
    evaluate_every: int
    holdout: float
    """The share of the `out` splits; 0 for data with evaluation splits of their own."""
    network: Component
    """The network's name, and the values that sweep and dataset fix."""
    hparams: Mapping[str, Any]
    """Values and ranges of hyperparameters; those of a row go before them."""
    validation: str | int | Names
    """What is held out for validation, as the sweep file says it."""


def conditions_of(sweep: Sweep, source: Source) -> Conditions:
    """The conditions on a dataset: what the file says of training on it goes before the sweep's."""
    dataset, training = source.dataset, source.training
    steps = training.steps or (dataset.metadata.steps if sweep.steps == "default" else sweep.steps)
    every = training.evaluate_every or sweep.evaluate_every
    holdout = sweep.holdout if "holdout" in sweep.model_fields_set else facts.holdout(dataset)
    named = sweep.network if training.network is None else training.network
    network = Component(name=named) if isinstance(named, str) else named
    usual = facts.network(dataset)
    if network.name in ("default", usual):
        values = {**facts.network_hparams(dataset), **network.hparams}
        network = Component(name=usual, hparams=values)
    validation = training.validation_environments
    return Conditions(
        steps=int(steps),
        evaluate_every=-(-int(steps) // 20) if every == "default" else every,
        holdout=0.0 if facts.evaluation_environments(dataset) else holdout,
        network=network,
        hparams=training.hparams,
        validation=sweep.validation_environments if validation is None else validation,
    )


def test_environment_sets(sweep: Sweep, source: Source) -> list[tuple[str, ...]]:
    """The sets of test environments on which a sweep's methods are tried, each in the dataset's order.

    Raises UserError for unknown names and for sets that are empty or stand twice.
    """
    wanted = sweep.test_environments
    if wanted == "default":
        sets = [source.dataset.test_environments]
    elif wanted in ("each", "pairs"):
        sets = [(name,) for name in source.dataset.environments]
        if wanted == "pairs":
            sets += list(itertools.combinations(source.dataset.environments, 2))
    else:
        sets = [_spelled(names, source, "test_environments") for names in wanted]
    for names in sets:
        if not names or len(set(names)) < len(names):
            raise UserError(
                f"test_environments must be lists of different names, not {short(list(names))}"
            )
    ordered = [tuple(sorted(names, key=source.dataset.environments.index)) for names in sets]
    for names, count in Counter(ordered).items():
        if count > 1:
            raise UserError(f"test_environments lists {' and '.join(names)} more than once")
    return ordered


def _validation_environments(
    wanted: str | int | Names, source: Source, tests: tuple[str, ...], trial: int
) -> tuple[str, ...]:
    """The environments that a trial's runs hold out for selection beside those of the test.

    Raises UserError where none would be left to train on.
    """
    if wanted == "none":
        return ()
    if isinstance(wanted, str):
        return tuple(n for n in source.dataset.validation_environments if n not in tests)
    if isinstance(wanted, int):
        free = facts.training_environments(source.dataset, tests)
        if wanted >= len(free):
            raise UserError(
                f"{source.label} has {len(free)} environments besides the test ones: "
                f"{wanted} validation environments leave none to train on"
            )
        stream = random.Random(derive("validation", source.dataset.name, tests, trial))
        return tuple(sorted(stream.sample(free, wanted), key=free.index))
    names = _spelled(wanted, source, "validation_environments")
    for name in names:
        if name in tests:
            raise UserError(f"environment '{name}' of {source.label} is both test and validation")
    return names


def training_environments(source: Source, spec: RunSpec) -> tuple[str, ...]:
    """The environments that are left to train on; raises UserError if there is none."""
    held_out = (*spec.test_environments, *spec.validation_environments)
    names = facts.training_environments(source.dataset, held_out)
    if not names:
        raise UserError(
            f"{source.label}: with {', '.join(held_out)} held out, "
            "no environment is left to train on"
        )
    return names


def _spelled(names: Sequence[str | float], source: Source, key: str) -> tuple[str, ...]:
    """Environment names as the dataset spells them; YAML reads 0.9 as a number."""
    spelled = tuple(f"{n:g}" if isinstance(n, float) else str(n) for n in names)
    for name in spelled:
        if name not in source.dataset.environments:
            raise unknown(
                "environment",
                short(name)[1:-1],
                source.dataset.environments,
                f"{key} of {source.label}",
            )
    return spelled


def specs_of(
    sweep: Sweep, row: Row, source: Source, sets: Sequence[tuple[str, ...]]
) -> Iterator[list[RunSpec]]:
    """The runs of a row on a dataset for each set of test environments, by draw, then trial.

    Raises UserError for hyperparameters and environments that cannot be.
    """
    from oodbench.algorithms import algorithms
    from oodbench.networks.base import networks

    conditions, dataset = conditions_of(sweep, source), source.dataset
    network, algorithm = networks.get(conditions.network.name), algorithms.get(row.name)
    trials, draws = indices(sweep.trials, "trials"), indices(sweep.hparam_draws, "hparam_draws")
    drawn: dict[tuple[int, int], Draw] = {}
    for draw, trial in itertools.product(draws, trials):
        if sweep.draws == "shared" and trial != trials[0]:
            drawn[draw, trial] = drawn[draw, trials[0]]
        else:
            stream = trial if sweep.draws == "per trial" else None
            drawn[draw, trial] = _drawn(sweep, row, source, conditions, draw, stream)
    options = {name: getattr(sweep, name) for name in OPTIONS}
    for tests in sets:
        yield [
            RunSpec(
                dataset=dataset.name,
                options=identity(
                    type(dataset.options),
                    facts.run_options(dataset, network.is_pretrained(network_hparams)),
                ),
                algorithm=row.name,
                hparams=hparams,
                label=str(row.label),
                network=conditions.network.name,
                network_hparams=network_hparams,
                test_environments=tests,
                validation_environments=_validation_environments(
                    conditions.validation, source, tests, trial
                ),
                draw=draw,
                trial=trial,
                steps=conditions.steps,
                evaluate_every=conditions.evaluate_every,
                holdout=conditions.holdout,
                average=row.average if isinstance(row.average, dict) else None,
                dataset_label=source.label,
                ceiling=row.ceiling,
                transductive=algorithm.transductive,
                **options,
            )
            for (draw, trial), (hparams, network_hparams) in drawn.items()
        ]


def _drawn(
    sweep: Sweep, row: Row, source: Source, conditions: Conditions, draw: int, trial: int | None
) -> Draw:
    """The hyperparameters of a row in a draw; `trial` where each trial has a draw of its own."""
    from oodbench.algorithms import Algorithm, algorithms
    from oodbench.networks.base import networks

    name, fixed = conditions.network.name, {**conditions.network.hparams, **row.network}
    network, algorithm = networks.get(name), algorithms.get(row.name)
    stream = f"{'network' if sweep.shared_quantiles else row.name}/{name}"

    def of_network(family: str) -> dict[str, Any]:
        return drawn_values(network.Hparams, stream, name, draw, family, given=fixed, trial=trial)

    shared = {f.name for f in fields(Algorithm.Hparams)} if sweep.shared_quantiles else ()
    metadata = source.dataset.metadata
    family = metadata.family
    family = rates_family(family, network.is_pretrained(of_network(family)))
    hparams = drawn_values(
        algorithm.Hparams,
        row.name,
        row.name,
        draw,
        family,
        metadata.hparams,
        given={**conditions.hparams, **row.hparams},
        shared=shared,
        trial=trial,
    )
    return hparams, network.resolved(of_network(family), source.dataset)
