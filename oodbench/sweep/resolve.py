"""Resolves the names of a sweep: its datasets with their environments, its methods, their hyperparameters.

No examples are loaded. The problems of a sweep are collected, and reported all at once.
"""

import importlib.util
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from oodbench.errors import PLUGIN_HINT, MissingError, UserError, unknown
from oodbench.hparams import draw as draw_hparams
from oodbench.hparams import identity, rates_family
from oodbench.registry import CHANGES
from oodbench.results.run_spec import CONSTANT, OVERALL
from oodbench.seeds import derive
from oodbench.sweep.file import KIND, Component, DatasetSettings, Entry, Row, Sweep, component
from oodbench.terminal import printable
from oodbench.validation import several, short

if TYPE_CHECKING:
    from oodbench.algorithms import Algorithm

MAX_EVALUATIONS = 100_000
"""The most evaluations of one run."""


class Problems:
    """Collects the problems of a sweep, to report all of them at once."""

    def __init__(self, sweep: str) -> None:
        self.place = f"sweep '{sweep}'"
        self.found: list[UserError] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Collect a UserError raised in the block."""
        try:
            yield
        except UserError as error:
            self.found.append(error)

    def tell(self) -> None:
        """Raise the collected errors as one, which is a MissingError if all of them are."""
        if not self.found:
            return
        texts = [printable(str(problem)) for problem in self.found]
        missing = [problem for problem in self.found if isinstance(problem, MissingError)]
        if len(missing) == len(self.found):
            text = texts[0] if len(set(texts)) == 1 else several(self.place, texts)
            raise MissingError(text, missing[0].command)
        raise UserError(several(self.place, texts)) from self.found[0]


@dataclass(frozen=True)
class Source:
    """A dataset of a sweep, with the file's settings of its runs."""

    dataset: Any
    label: str
    """The dataset's name in tables."""
    entry: Entry
    network: Component
    """The network, with the hyperparameters that sweep and dataset fix."""
    steps: int
    evaluate_every: int
    holdout: float
    trials: Sequence[int]
    options: Mapping[bool, dict[str, Any]]
    """The options of runs without (False) and with (True) a pretrained network."""
    noise: dict[str, Any] | None
    """The noise in the labels or targets of training data, see `oodbench.data.noise`."""
    tests: Sequence[tuple[str, ...]] = ()
    """The sets of test environments."""
    validation: int | tuple[str, ...] = ()
    """The environments that are held out for selection, or their number, for a draw in each trial."""

    def validation_environments(self, tests: tuple[str, ...], trial: int) -> tuple[str, ...]:
        """The environments that runs with these test environments hold out for selection in a trial."""
        if not isinstance(self.validation, int):
            return tuple(name for name in self.validation if name not in tests)
        free = self.dataset.trainable(tests)
        stream = random.Random(derive("validation", self.dataset.name, tests, trial))
        return tuple(sorted(stream.sample(free, self.validation), key=free.index))


def check_requirements(sweep: Sweep, data_dir: Path | None = None) -> None:
    """Raise MissingError for data or an optional package that the sweep's runs would lack.

    Raises UserError for what is unknown or damaged.
    """
    problems = Problems(sweep.name)
    sources_of(sweep, data_dir, problems)
    methods = methods_of(sweep.algorithms, problems)
    problems.tell()
    check_packages({row.name: algorithm for row, algorithm in methods})


def check_packages(methods: Mapping[str, "type[Algorithm]"]) -> None:
    """Raise MissingError for an optional package that one of the methods, by name, needs."""
    for name, algorithm in methods.items():
        for package, command in algorithm.needs.packages.items():
            if importlib.util.find_spec(package) is None:
                raise MissingError(f"{name} needs {package}: `{command}`", command)


def methods_of(listed: Sequence[Row], problems: Problems) -> "list[tuple[Row, type[Algorithm]]]":
    """The rows of a sweep, labelled and with the numbers of their averages, each with its method.

    Problems are collected.
    """
    from oodbench.adaptations import adaptations
    from oodbench.algorithms import algorithms
    from oodbench.train.averages import numbers

    rows: list[Row] = []
    with problems.noted():
        rows += _rows([row.model_copy(update={"label": row.title}) for row in listed])
        _check_rows(rows)
    methods = []
    for row in rows:
        with problems.noted():
            if row.adapt is not None:
                adaptations.get(str(row.adapt.get("name")))
            average = None if row.average is None else numbers(row.average)
            method = algorithms.get(row.name, hint=PLUGIN_HINT)
            methods.append((row.model_copy(update={"average": average}), method))
    return methods


def _rows(listed: Sequence[Row]) -> list[Row]:
    """The rows; `all` and kinds of methods become a row for each method."""
    from oodbench.algorithms import algorithms

    labels = {row.title for row in listed}
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


def _check_rows(rows: Sequence[Row]) -> None:
    counts = Counter(row.title for row in rows)
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
                f"{short(row.label)} has `options` for the data: only a row marked `ceiling: true` may, "
                "as the others are compared on the same data"
            )


def sources_of(sweep: Sweep, data_dir: Path | None, problems: Problems) -> list[Source]:
    """The datasets of a sweep whose data exist. Problems are collected.

    A dataset with wrong environments is returned with empty `tests`, so that its other problems are found.
    """
    from oodbench.networks.base import networks

    by_label: dict[str, Source] = {}
    with problems.noted():  # even if every dataset has another network
        if (name := component(sweep.network).name) != "default":
            networks.get(name, hint=PLUGIN_HINT)
    for entry in sweep.datasets:
        with problems.noted():
            dataset, label, noise = looked_up(entry, data_dir)
            if label in by_label:
                same = by_label[label].dataset.options == dataset.options
                hint = "leave one out, or " * same + "give them a `label` each"
                raise UserError(f"two datasets are called '{label}': {hint}")
            if label == OVERALL:
                raise UserError(
                    f"'{label}' is the name of what is over all datasets: use another `label`"
                )
            settings = sweep.on(entry)
            source = by_label[label] = _source(settings, dataset, label, entry, noise)
            by_label[label] = _with_environments(settings, source)
    return list(by_label.values())


def looked_up(entry: Entry, data_dir: Path | None) -> tuple[Any, str, dict[str, Any] | None]:
    """The dataset of an entry, its label, and the noise in its training.

    Raises UserError for mistakes, and MissingError for data or a package with the command that gets it.
    """
    from oodbench.data.noise import KEYS, PARTS, checked
    from oodbench.datasets import datasets, make

    name, label, options = entry.name, entry.label, entry.options
    # such as ColoredMNIST's label_noise
    known = [f.name for f in fields(datasets.get(name, hint=PLUGIN_HINT).Options)]
    keys = {key: options.pop(key) for key in KEYS if key in options and key not in known}
    for key in (key for key in options if key not in known):
        if key in DatasetSettings.model_fields:
            raise UserError(
                f"'{key}' of {name} belongs under `training`: `training: {{{key}: ...}}`"
            )
        if key in PARTS:
            shown = ", ".join(f"{part}: ..." for part in dict.fromkeys(["amount", key]))
            raise UserError(
                f"'{key}' of {name} belongs under `label_noise`: `label_noise: {{{shown}}}`"
            )
        raise unknown("name", key, [*known, *KEYS], f"the options of {name}")
    dataset = make(name, options, data_dir)
    dataset.check()
    noise = checked(dataset, keys)
    if label is None:
        label = dataset.label
        if noise:
            label += f", {noise['kind']}={noise['amount']}{', pairs' if noise['pairs'] else ''}"
    return dataset, label, noise


def _source(
    sweep: Sweep, dataset: Any, label: str, entry: Entry, noise: dict[str, Any] | None
) -> Source:
    from oodbench.networks.base import networks

    _ = dataset.higher_is_better  # or a UserError
    network = component(sweep.network)
    if network.name in ("default", dataset.network):
        fixed = {**dataset.network_hparams, **network.hparams}
        network = Component(name=dataset.network, hparams=fixed)
    networks.get(network.name, hint=PLUGIN_HINT)
    steps = dataset.metadata.steps if sweep.steps == "default" else sweep.steps
    every = sweep.evaluate_every
    if every != "default" and int(steps) > MAX_EVALUATIONS * every:
        raise UserError(
            f"{label}: {int(steps):,} steps with an evaluation every {every} are more than "
            f"{MAX_EVALUATIONS:,} evaluations of a run: raise `evaluate_every`"
        )
    holdout = sweep.holdout if "holdout" in sweep.model_fields_set else float(dataset.holdout)
    options = {}
    for pretrained in (False, True):
        values = {**asdict(dataset.options), **dataset.resolved_options(pretrained)}
        options[pretrained] = identity(type(dataset.options), values)
    return Source(
        *(dataset, label, entry, network),
        steps=int(steps),
        evaluate_every=-(-int(steps) // 20) if every == "default" else every,
        holdout=0.0 if dataset.evaluation_environments else holdout,
        trials=sweep.trials,
        options=options,
        noise=noise,
    )


def ceiling_of(sweep: Sweep, row: Row, source: Source, data_dir: Path | None) -> Source:
    """The dataset that a row trains on; for a ceiling with the `ceiling` options of dataset and row."""
    from oodbench.datasets import make

    options = {**source.entry.ceiling, **row.options}
    if not row.ceiling or not options:
        return source
    usual = source.dataset
    dataset = make(usual.name, asdict(usual.options) | options, data_dir)
    if (dataset.environments, dataset.task) != (usual.environments, usual.task):
        raise UserError(
            f"the options of {short(row.title)} change the environments or the task of "
            f"{source.label}: it would be another dataset's ceiling"
        )
    dataset.check()
    ceiling = _source(sweep.on(source.entry), dataset, source.label, source.entry, noise=None)
    return replace(ceiling, tests=source.tests, validation=source.validation)


def _with_environments(sweep: Sweep, source: Source) -> Source:
    dataset = source.dataset
    tests = [_known(source, "test_environments", names) for names in _test_sets(sweep, dataset)]
    for names in tests:
        if not names or len(set(names)) < len(names):
            raise UserError(
                f"test_environments must be lists of different names, not {short(list(names))}"
            )
    tests = [tuple(sorted(names, key=dataset.environments.index)) for names in tests]
    for names, count in Counter(tests).items():
        if count > 1:
            raise UserError(f"test_environments lists {' and '.join(names)} more than once")
    validation = _validation(sweep, source, tests)
    noisy = (source.noise or {}).get("amount")
    for name in noisy if isinstance(noisy, dict) else ():
        if tests and all(name in names for names in tests):
            raise UserError(
                f"the noise of {source.label} in '{name}': a test environment stays clean"
            )
    return replace(source, tests=tests, validation=validation)


def _test_sets(sweep: Sweep, dataset: Any) -> Sequence[Sequence[str | float]]:
    wanted = sweep.test_environments
    if wanted == "default":
        return [dataset.test_environments]
    if isinstance(wanted, list):
        return [each for each in wanted if isinstance(each, list)] or [cast(Any, wanted)]
    pairs = combinations(dataset.environments, 2) if wanted == "pairs" else ()
    return [*((name,) for name in dataset.environments), *pairs]


def _validation(
    sweep: Sweep, source: Source, tests: Sequence[tuple[str, ...]]
) -> int | tuple[str, ...]:
    wanted, key = sweep.validation_environments, "validation_environments"
    if wanted == "default":
        return _known(source, key, source.dataset.validation_environments)
    if isinstance(wanted, int):
        for free in map(source.dataset.trainable, tests):
            if wanted >= len(free):
                raise UserError(
                    f"{source.label} has {len(free)} environments besides the test ones: "
                    f"{wanted} validation environments leave none to train on"
                )
        return wanted
    names = () if wanted == "none" else _known(source, key, cast(Any, wanted))
    for name in names:
        if any(name in of_set for of_set in tests):
            raise UserError(f"environment '{name}' of {source.label} is both test and validation")
    return names


def _known(source: Source, key: str, listed: Sequence[str | float]) -> tuple[str, ...]:
    """The environments that a key lists; raises UserError for an unknown one."""
    # YAML reads the environment 0.9 as a number
    names = tuple(f"{n:g}" if isinstance(n, float) else str(n) for n in listed)
    for name in names:
        if name not in source.dataset.environments:
            place, known = f"{key} of {source.label}", source.dataset.environments
            hint = " (`each` holds out one after the other)" * key.startswith("test")
            raise unknown("environment", short(name)[1:-1], known, place, hint)
    return names


DRAWN = ("hparams", "network_hparams", "adapt")
"""The drawn fields of a run's spec."""
Draws = Mapping[tuple[int, int], dict[str, Any]]
"""The drawn fields by draw and trial."""


def draws_of(sweep: Sweep, source: Source, row: Row, algorithm: "type[Algorithm]") -> Draws:
    """The hyperparameters of a row on a dataset; raises UserError for impossible values."""
    drawn = cache(partial(_drawn, source, row, algorithm, sweep.shared_quantiles))
    every = product(sweep.hparam_draws, source.trials)
    return {(d, t): drawn(d, t if sweep.draws == "per trial" else None) for d, t in every}


def _drawn(
    source: Source,
    row: Row,
    algorithm: "type[Algorithm]",
    shared_quantiles: bool,
    draw: int,
    trial: int | None,
) -> dict[str, Any]:
    from oodbench.adaptations import adaptations
    from oodbench.algorithms import Algorithm
    from oodbench.networks.base import networks

    metadata, name = source.dataset.metadata, source.network.name
    network = networks.get(name)

    def drawn(
        space: type, owner: str, family: str, given: Mapping[str, Any], **more: Any
    ) -> dict[str, Any]:
        values = draw_hparams(space, owner, draw, family, given=given, trial=trial, **more)
        return identity(space, values)

    def of_network(family: str) -> dict[str, Any]:
        stream = f"{'network' if shared_quantiles else row.name}/{name}"
        given = {**source.network.hparams, **row.network}
        return drawn(network.Hparams, stream, family, given, name=name)

    network_hparams = of_network(metadata.family)
    family = rates_family(metadata.family, network.is_pretrained(network_hparams))
    if family != metadata.family:
        network_hparams = of_network(family)
    given = {**source.entry.training.hparams, **row.hparams}
    of_all = {f.name for f in fields(Algorithm.Hparams)} if shared_quantiles else ()
    about = {"dataset_defaults": metadata.hparams, "shared": of_all}
    hparams = drawn(algorithm.Hparams, row.name, family, given, **about)
    adapt = None
    if row.adapt is not None:
        values = {key: value for key, value in row.adapt.items() if key != "name"}
        adaptation = row.adapt["name"]
        space = adaptations.get(adaptation).Hparams
        adapt = {"name": adaptation} | drawn(space, adaptation, family, values)
    resolved = network.resolved(network_hparams, source.dataset)
    return dict(zip(DRAWN, (hparams, resolved, adapt), strict=True))
