"""The cells of a sweep: rows on datasets with some environments held out, and their runs."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from oodbench.data.facts import PlanFacts
from oodbench.errors import UserError, unknown
from oodbench.hparams import drawn_values, identity, rates_family
from oodbench.registry import CHANGES
from oodbench.results.run_spec import CONSTANT, OPTIONS, RunSpec
from oodbench.seeds import derive
from oodbench.sweep.chosen import Chosen
from oodbench.sweep.file import KIND, Component, DatasetSettings, Names, Row, Sweep, TestSets, short

MAX_EVALUATIONS = 100_000
"""The most evaluations of one run."""
Draw = tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]
"""The hyperparameters of a method, those of its network, and its adaptation, if it has one."""


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
    """A row with its label in tables, its weight average and its adaptation; raises UserError.

    Unless the file gives a label, it is the method and, where the row has them, its weight average and
    its adaptation.
    """
    row = row if isinstance(row, Row) else Row(name=row)
    parts: list[str] = [row.name]
    changes: dict[str, Any] = {"average": "none", "adapt": "none"}
    if row.average not in ("none", {"name": "none"}):
        from oodbench.train.averages import AVERAGES, numbers

        average = numbers({"name": row.average} if isinstance(row.average, str) else row.average)
        changes["average"] = average
        parts.append(AVERAGES[average["name"]].label)
    if row.adapt not in ("none", {"name": "none"}):
        changes["adapt"] = {"name": row.adapt} if isinstance(row.adapt, str) else row.adapt
        parts.append(_adaptation(changes["adapt"]))
    return row.model_copy(update={"label": row.label or " + ".join(parts), **changes})


def _adaptation(adapt: Mapping[str, Any]) -> str:
    """The name of an adaptation; raises UserError for an unknown one."""
    from oodbench.adaptations import adaptations

    name = str(adapt.get("name"))
    if adaptations.find(name) is None:
        raise unknown(adaptations.noun, name, [*adaptations, "none"])
    return name


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


def trials_of(sweep: Sweep, training: DatasetSettings) -> list[int]:
    """The trials of a dataset, given its settings: its own or the sweep's; raises as `indices`."""
    return indices(sweep.trials if training.trials is None else training.trials, "trials")


@dataclass(frozen=True)
class Source:
    """A dataset of a sweep, with the file's settings for it."""

    dataset: Any
    facts: PlanFacts
    label: str
    """The dataset as tables call it."""
    training: DatasetSettings
    ceiling: Mapping[str, Any]
    """The options of its ceilings' data; a row's own (`Row.options`) take precedence."""
    tests: Sequence[tuple[str, ...]] = ()
    """The sets of test environments on which the methods are tried."""
    validation: int | tuple[str, ...] = ()
    """The environments that are held out for selection, or how many, drawn by trial."""
    chosen: Chosen | None = None
    """The hyperparameters that an earlier sweep has chosen, if the file names one."""


def with_environments(sweep: Sweep, source: Source) -> Source:
    """A dataset with the environments that its runs hold out, each set in the dataset's order.

    Raises UserError for unknown names, for sets that are empty or stand twice, and where validation
    environments are test environments or leave none to train on.
    """
    dataset, for_dataset = source.dataset, source.training.validation_environments
    wanted = sweep.validation_environments if for_dataset is None else for_dataset
    tests = _test_sets(source.training.test_environments or sweep.test_environments, dataset)
    validation: int | tuple[str, ...] = ()
    if wanted == "default":
        validation = dataset.validation_environments
    elif isinstance(wanted, int):
        validation = wanted
    elif isinstance(wanted, list):
        validation = _spelled(wanted)
        for name in validation:
            if any(name in names for names in tests):
                raise UserError(
                    f"environment '{name}' of {source.label} is both test and validation"
                )
    _check_environments(source, tests, validation)
    tests = [tuple(sorted(names, key=dataset.environments.index)) for names in tests]
    for names, count in Counter(tests).items():
        if count > 1:
            raise UserError(f"test_environments lists {' and '.join(names)} more than once")
    return replace(source, tests=tests, validation=validation)


def _test_sets(wanted: TestSets | Names, dataset: Any) -> list[tuple[str, ...]]:
    """The sets of a dataset's environments that a file names, as datasets spell them; names are one set."""
    if wanted == "default":
        return [dataset.test_environments]
    if isinstance(wanted, list):
        sets = [each for each in wanted if isinstance(each, list)]
        return [_spelled(names) for names in sets or [cast(Names, wanted)]]
    pairs = itertools.combinations(dataset.environments, 2) if wanted == "pairs" else ()
    return [*((name,) for name in dataset.environments), *pairs]


def _spelled(names: Sequence[str | float]) -> tuple[str, ...]:
    """Environment names as datasets spell them; YAML reads 0.9 as a number."""
    return tuple(f"{n:g}" if isinstance(n, float) else str(n) for n in names)


def _check_environments(
    source: Source, tests: Sequence[tuple[str, ...]], validation: int | tuple[str, ...]
) -> None:
    """Raise UserError for unknown names, for empty sets, and where none is left to train on."""
    known = source.dataset.environments
    listed = [("test_environments", names) for names in tests]
    if isinstance(validation, tuple):
        listed.append(("validation_environments", validation))
    for key, names in listed:
        for name in names:
            if name not in known:
                place = f"{key} of {source.label}"
                raise unknown("environment", short(name)[1:-1], known, place)
    for names in tests:
        if not names or len(set(names)) < len(names):
            raise UserError(
                f"test_environments must be lists of different names, not {short(list(names))}"
            )
        free = [name for name in source.facts.trainable if name not in names]
        if isinstance(validation, int) and validation >= len(free):
            raise UserError(
                f"{source.label} has {len(free)} environments besides the test ones: "
                f"{validation} validation environments leave none to train on"
            )


def _validation(source: Source, tests: tuple[str, ...], trial: int) -> tuple[str, ...]:
    """The environments that a trial's runs hold out for selection besides the test environments."""
    if not isinstance(source.validation, int):
        return tuple(name for name in source.validation if name not in tests)
    free = [name for name in source.facts.trainable if name not in tests]
    stream = random.Random(derive("validation", source.dataset.name, tests, trial))
    return tuple(sorted(stream.sample(free, source.validation), key=free.index))


def specs_of(sweep: Sweep, row: Row, source: Source) -> Iterator[list[RunSpec]]:
    """The runs of a row on a dataset for each set of test environments, by draw, then trial.

    The file's settings of training on this dataset take precedence over its settings for all. Raises
    UserError for impossible hyperparameters.
    """
    from oodbench.algorithms import algorithms
    from oodbench.networks.base import networks

    dataset, training = source.dataset, source.training
    steps = training.steps or (dataset.metadata.steps if sweep.steps == "default" else sweep.steps)
    every = training.evaluate_every or sweep.evaluate_every
    if every != "default" and int(steps) > MAX_EVALUATIONS * every:
        raise UserError(
            f"{source.label}: {int(steps):,} steps with an evaluation every {every} are more than "
            f"{MAX_EVALUATIONS:,} evaluations of a run: raise `evaluate_every`"
        )
    holdout = sweep.holdout if "holdout" in sweep.model_fields_set else source.facts.holdout
    named = _network(sweep, row, source)
    network, algorithm = networks.get(named.name), algorithms.get(row.name)
    drawn = {} if source.chosen else _draws(sweep, row, source, named)
    options = {key: getattr(sweep, key) for key in OPTIONS}
    for tests in source.tests:
        if source.chosen:
            drawn = _chosen_draw(sweep, row, source, named.name, tests, source.chosen)
        yield [
            RunSpec(
                dataset=dataset.name,
                options=identity(
                    type(dataset.options),
                    source.facts.options[network.is_pretrained(network_hparams)],
                ),
                algorithm=row.name,
                hparams=hparams,
                label=str(row.label),
                network=named.name,
                network_hparams=network_hparams,
                test_environments=tests,
                validation_environments=_validation(source, tests, trial),
                draw=draw,
                trial=trial,
                steps=int(steps),
                evaluate_every=-(-int(steps) // 20) if every == "default" else every,
                holdout=0.0 if source.facts.has_evaluation_splits else holdout,
                average=row.average if isinstance(row.average, dict) else None,
                adapt=adapt,
                test_order=sweep.test_order if algorithm.transductive else "stored",
                dataset_label=source.label,
                ceiling=row.ceiling,
                transductive=algorithm.transductive or adapt is not None,
                reference=algorithm.changes == "reference",
                **options,
            )
            for (draw, trial), (hparams, network_hparams, adapt) in drawn.items()
        ]


def _network(sweep: Sweep, row: Row, source: Source) -> Component:
    """The network of a row, with the hyperparameters that row, sweep and dataset fix."""
    named = sweep.network if source.training.network is None else source.training.network
    network = Component(name=named) if isinstance(named, str) else named
    name, fixed = network.name, network.hparams
    if name in ("default", source.facts.network):
        name, fixed = source.facts.network, {**source.facts.network_hparams, **fixed}
    return Component(name=name, hparams={**fixed, **row.network})


def _draws(
    sweep: Sweep, row: Row, source: Source, network: Component
) -> dict[tuple[int, int], Draw]:
    """The hyperparameters of a row by draw and trial."""
    trials, draws = trials_of(sweep, source.training), indices(sweep.hparam_draws, "hparam_draws")
    drawn: dict[tuple[int, int], Draw] = {}
    for draw, trial in itertools.product(draws, trials):
        if sweep.draws == "shared" and trial != trials[0]:
            drawn[draw, trial] = drawn[draw, trials[0]]
        else:
            stream = trial if sweep.draws == "per trial" else None
            drawn[draw, trial] = _drawn(sweep, row, source, network, draw, stream)
    return drawn


def _chosen_draw(
    sweep: Sweep, row: Row, source: Source, network: str, tests: tuple[str, ...], chosen: Chosen
) -> dict[tuple[int, int], Draw]:
    """The hyperparameters that an earlier sweep has chosen for a row, by draw and trial."""
    spec = chosen.spec(source.label, str(row.label), tests)
    here = row.name, network, *(_name(part) for part in (row.average, row.adapt))
    there = spec.algorithm, spec.network, *(_name(part) for part in (spec.average, spec.adapt))
    if here != there:
        raise UserError(
            f"{chosen.about['results']} has chosen hyperparameters for {' '.join(there)} in the row "
            f"{short(row.label)} on {source.label}, which is {' '.join(here)} here"
        )
    values = spec.hparams, spec.network_hparams, spec.adapt
    return {(spec.draw, trial): values for trial in trials_of(sweep, source.training)}


def _name(part: Mapping[str, Any] | str | None) -> str:
    """The name of a weight average or an adaptation."""
    return str(part["name"]) if isinstance(part, Mapping) else "none"


def _drawn(
    sweep: Sweep, row: Row, source: Source, named: Component, draw: int, trial: int | None
) -> Draw:
    """The hyperparameters of a row in a draw; `trial` where each trial has a draw of its own."""
    from oodbench.algorithms import Algorithm, algorithms
    from oodbench.networks.base import networks

    name, metadata = named.name, source.dataset.metadata
    network = networks.get(name)
    stream = f"{'network' if sweep.shared_quantiles else row.name}/{name}"

    def of_network(family: str) -> dict[str, Any]:
        return drawn_values(
            network.Hparams, stream, name, draw, family, given=named.hparams, trial=trial
        )

    family = metadata.family
    family = rates_family(family, network.is_pretrained(of_network(family)))
    hparams = drawn_values(
        algorithms.get(row.name).Hparams,
        row.name,
        row.name,
        draw,
        family,
        metadata.hparams,
        given={**source.training.hparams, **row.hparams},
        shared={f.name for f in fields(Algorithm.Hparams)} if sweep.shared_quantiles else (),
        trial=trial,
    )
    adapt = (
        None if isinstance(row.adapt, str) else _drawn_adaptation(row.adapt, draw, family, trial)
    )
    return hparams, network.resolved(of_network(family), source.dataset), adapt


def _drawn_adaptation(
    given: Mapping[str, Any], draw: int, family: str, trial: int | None
) -> dict[str, Any]:
    """An adaptation as a run's spec holds it: its `name` and its hyperparameters in a draw."""
    from oodbench.adaptations import adaptations

    name = given["name"]
    values = {key: value for key, value in given.items() if key != "name"}
    space = adaptations.get(name).Hparams
    return {"name": name} | drawn_values(space, name, name, draw, family, given=values, trial=trial)
