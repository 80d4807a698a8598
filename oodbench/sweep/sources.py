"""Makes the datasets of a sweep, with the environments that runs hold out and the settings of training."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from oodbench.errors import PLUGIN_HINT, MissingError, UserError, unknown
from oodbench.hparams import identity
from oodbench.notes import Finding
from oodbench.seeds import derive
from oodbench.sweep.file import Component, DatasetSettings, Entry, Row, Sweep, component
from oodbench.terminal import printable
from oodbench.validation import several, short

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


class Measured(NamedTuple):
    """What is known from the examples of a dataset's first trial."""

    discrete: bool
    """Whether the inputs have few values, see `oodbench.data.preparation.is_discrete`."""
    sizes: Mapping[str, int]
    """The number of examples to train on in each environment."""
    counts: Mapping[str, tuple[int, ...]]
    """The numbers of examples in each group, see `Problem.counts`; empty for tasks without classes."""
    findings: Sequence[Finding]
    """The findings of an audit of the data."""


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
    known = {f.name for f in fields(datasets.get(name, hint=PLUGIN_HINT).Options)}
    keys = {key: options.pop(key) for key in KEYS if key in options and key not in known}
    for key in options.keys() - known:
        if key in DatasetSettings.model_fields:
            raise UserError(
                f"'{key}' of {name} belongs under `training`: `training: {{{key}: ...}}`"
            )
        if key in PARTS:
            shown = ", ".join(f"{part}: ..." for part in dict.fromkeys(["amount", key]))
            raise UserError(
                f"'{key}' of {name} belongs under `label_noise`: `label_noise: {{{shown}}}`"
            )
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
    pairs = itertools.combinations(dataset.environments, 2) if wanted == "pairs" else ()
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


def measured(source: Source) -> Measured:
    """Load the examples of a dataset's first trial, and audit them."""
    from oodbench.data.audit import audit
    from oodbench.data.preparation import is_discrete, load_checked
    from oodbench.train.loading import groups_of, split

    dataset, trial = source.dataset, source.trials[0]
    environments = load_checked(dataset, trial)
    # the other trials of generated data have other examples
    known = source.trials if dataset.files_read else source.trials[:1]
    splits = {
        name: {t: split(environment, source.holdout, dataset.name, name, t) for t in known}
        for name, environment in environments.items()
    }
    first = {name: of_trials[trial] for name, of_trials in splits.items()}
    known_labels = {name: dataset.task.known(e.y) for name, e in environments.items()}
    labelled = {n: {h: i[known_labels[n][i]] for h, i in of.items()} for n, of in first.items()}
    groups = groups_of(dataset, environments, labelled)
    outs = {n: {t: s["out"] for t, s in each.items() if "out" in s} for n, each in splits.items()}
    never = () if isinstance(source.validation, int) else source.validation
    roles = [(tests, dataset.trainable({*tests, *never})) for tests in source.tests]
    return Measured(
        discrete=is_discrete(dataset, environments),
        sizes={name: len(halves["in"]) for name, halves in first.items()},
        counts={name: tuple(of["in"].counts) for name, of in groups.items() if "in" in of},
        findings=audit(dataset, environments, roles, outs=outs, trial=trial),
    )
