"""The first pass of a launch: looks up every name of a sweep once and reports all problems.

`oodbench.sweep.plan` makes the runs from what is found.
"""

import importlib.util
import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from oodbench.errors import PLUGIN_HINT, MissingError, UserError, unknown
from oodbench.hparams import draw as draw_hparams
from oodbench.hparams import identity, rates_family
from oodbench.metrics import known_direction
from oodbench.registry import CHANGES
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_spec import CONSTANT, RunSpec
from oodbench.results.tables import Tables, plugins_of
from oodbench.selection import find_rule, sees_test, usual
from oodbench.selection.judge import judge
from oodbench.sweep.file import KIND, Row, Sweep
from oodbench.sweep.launchers import check_resources
from oodbench.sweep.sources import Problems, Source, ceiling_of, indices, measured, sources_of
from oodbench.validation import short

if TYPE_CHECKING:
    from oodbench.algorithms import Algorithm

MAX_RUNS = 200_000
"""The most runs of one sweep."""
Draw = tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]
"""The hyperparameters of a method, those of its network, and its adaptation, if it has one."""
Draws = Mapping[tuple[int, int], Draw]
"""Hyperparameters by draw and trial."""
Chosen = tuple[dict[str, Any], Mapping[tuple[str, str, tuple[str, ...]], RunSpec]]
"""The choice of an earlier sweep: its `results` directory, its selection `rule`, its number of `draws` and
its `trials`; and a run with the hyperparameters for each dataset, row and set of test environments."""
CHOSEN_FOR = ["dataset_label", "label", "test_environments"]
"""The columns of a run that name the place of a choice."""


@dataclass(frozen=True)
class Pair:
    """A row on a dataset, with the hyperparameters of its runs."""

    row: Row
    algorithm: "type[Algorithm]"
    source: Source
    """The dataset with the options of the row, which a ceiling has."""
    draws: Mapping[tuple[str, ...], Draws] = field(default_factory=dict)
    """By set of test environments."""


def resolve(
    sweep: Sweep, data_dir: Path | None = None, *, to_train: bool = True
) -> tuple[list[tuple[Source, list[Pair]]], Chosen | None, list[str]]:
    """Look up all names of a sweep, load its data and draw its hyperparameters.

    Returns each dataset with the methods on it in the order of the file, the choice of an earlier sweep if
    the file names one, and what is unusual in files of weights, such as prefixes of names.

    Raises one UserError for all unknown names, impossible values of algorithms and networks, wrong
    environments and missing data; and, if the runs are to be trained, MissingError for an optional
    package that a method needs.
    """
    problems = Problems(sweep.name)
    with problems.noted():
        check_resources(sweep.name, sweep.resources)
    methods = _methods(sweep, problems)
    sources = sources_of(sweep, data_dir, problems)
    chosen: Chosen | None = None
    pairs: list[list[Pair]] = []
    with warnings.catch_warnings(record=True) as warned, problems.noted():
        warnings.simplefilter("always")
        _check_size(sweep, sources, len(methods))
        if sweep.hparams_from is not None:
            trials = sorted({trial for source in sources for trial in source.trials})
            chosen = chosen_in(Path(sweep.hparams_from), sweep.selection, trials)
        for source in sources:
            pairs.append([])
            for method in methods:
                with problems.noted():
                    of = ceiling_of(sweep, method[0], source, data_dir)
                    pairs[-1].append(_with_draws(sweep, Pair(*method, of), chosen))
    problems.tell()
    if to_train:
        check_packages({row.name: algorithm for row, algorithm in methods})
    notes = []
    for warning in warned:
        if warning.category is UserWarning:
            notes.append(str(warning.message))
        else:  # another package's, shown or not as the process would
            place = warning.category, warning.filename, warning.lineno
            warnings.warn_explicit(warning.message, *place)
    return list(zip(map(measured, sources), pairs, strict=True)), chosen, notes


def check_requirements(sweep: Sweep, data_dir: Path | None = None) -> None:
    """Raise MissingError for data or an optional package that the sweep's runs would lack.

    Raises UserError for what is unknown or damaged.
    """
    problems = Problems(sweep.name)
    sources_of(sweep, data_dir, problems)
    methods = _methods(sweep, problems)
    problems.tell()
    check_packages({row.name: algorithm for row, algorithm in methods})


def check_packages(methods: Mapping[str, "type[Algorithm]"]) -> None:
    """Raise MissingError for an optional package that one of the methods, by name, needs."""
    for name, algorithm in methods.items():
        for package, command in algorithm.needs.packages.items():
            if importlib.util.find_spec(package) is None:
                raise MissingError(f"{name} needs {package}: `{command}`", command)


def _methods(sweep: Sweep, problems: Problems) -> "list[tuple[Row, type[Algorithm]]]":
    from oodbench.adaptations import adaptations
    from oodbench.algorithms import algorithms

    rows: list[Row] = []
    with problems.noted():
        rows += _rows(sweep)
        _check_rows(rows)
    methods = []
    for row in rows:
        with problems.noted():
            if isinstance(row.adapt, dict):
                adaptations.get(str(row.adapt.get("name")))
            methods.append((row, algorithms.get(row.name, hint=PLUGIN_HINT)))
    return methods


def _rows(sweep: Sweep) -> list[Row]:
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
        for name, algorithm in sorted(algorithms.items(), key=lambda item: item[0].casefold()):
            if kind in ("all", algorithm.changes) and name not in labels:
                rows.append(Row(name=name, label=name))
                labels.add(name)
    return rows


def completed_row(row: Row) -> Row:
    """A row with its label in tables, its weight average and its adaptation; raises UserError.

    The default label is the method, followed by the row's weight average and adaptation, if any.
    A label in the file overrides it.
    """
    parts: list[str] = [row.name]
    changes: dict[str, Any] = {"average": "none", "adapt": "none"}
    if row.average not in ("none", {"name": "none"}):
        from oodbench.train.averages import AVERAGES, numbers

        average = numbers({"name": row.average} if isinstance(row.average, str) else row.average)
        changes["average"] = average
        parts.append(AVERAGES[average["name"]].label)
    if row.adapt not in ("none", {"name": "none"}):
        changes["adapt"] = {"name": row.adapt} if isinstance(row.adapt, str) else row.adapt
        parts.append(str(changes["adapt"].get("name")))
    return row.model_copy(update={"label": row.label or " + ".join(parts), **changes})


def _check_rows(rows: Sequence[Row]) -> None:
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


def _check_size(sweep: Sweep, sources: Sequence[Source], rows: int) -> None:
    draws = 1 if sweep.hparams_from else len(indices(sweep.hparam_draws, "hparam_draws"))
    runs = rows * draws * sum(len(source.tests) * len(source.trials) for source in sources)
    if runs > MAX_RUNS:
        cells = rows * sum(len(source.tests) for source in sources)
        counts = " or ".join(map(str, sorted({len(source.trials) for source in sources})))
        raise UserError(
            f"sweep '{sweep.name}' has {runs:,} runs ({cells} cells, {draws} draws, {counts} trials); "
            f"one sweep has at most {MAX_RUNS:,}"
        )


def _with_draws(sweep: Sweep, pair: Pair, chosen: Chosen | None) -> Pair:
    tests = pair.source.tests
    if chosen is None:
        return replace(pair, draws=dict.fromkeys(tests, _draws(sweep, pair)))
    return replace(pair, draws={t: _chosen_draws(pair.row, pair.source, t, chosen) for t in tests})


def _draws(sweep: Sweep, pair: Pair) -> Draws:
    drawn: dict[tuple[int, int], Draw] = {}
    for draw in indices(sweep.hparam_draws, "hparam_draws"):
        if sweep.draws == "shared":
            drawn |= dict.fromkeys(
                [(draw, t) for t in pair.source.trials], _drawn(sweep, pair, draw)
            )
        else:
            drawn |= {(draw, t): _drawn(sweep, pair, draw, t) for t in pair.source.trials}
    return drawn


def _chosen_draws(row: Row, source: Source, tests: tuple[str, ...], chosen: Chosen) -> Draws:
    about, specs = chosen
    spec = specs.get((source.label, str(row.label), tests))
    if spec is None:
        raise UserError(
            f"{about['results']} has no choice of hyperparameters for {row.label} on {source.label} (test "
            f"{'+'.join(tests)}): it plans no such row, or not all runs of it have ended"
        )
    network = source.network.name
    here = row.name, network, *(_name(part) for part in (row.average, row.adapt))
    there = spec.algorithm, spec.network, *(_name(part) for part in (spec.average, spec.adapt))
    if here != there:
        raise UserError(
            f"{about['results']} has chosen hyperparameters for {' '.join(there)} in the row "
            f"{short(row.label)} on {source.label}, which is {' '.join(here)} here"
        )
    values = spec.hparams, spec.network_hparams, spec.adapt
    return {(spec.draw, trial): values for trial in source.trials}


def _name(part: Mapping[str, Any] | str | None) -> str:
    return str(part["name"]) if isinstance(part, Mapping) else "none"


def _drawn(sweep: Sweep, pair: Pair, draw: int, trial: int | None = None) -> Draw:
    from oodbench.algorithms import Algorithm

    row, source, metadata = pair.row, pair.source, pair.source.dataset.metadata
    network, name = source.network_class, source.network.name
    stream = f"{'network' if sweep.shared_quantiles else row.name}/{name}"
    given = {**source.network.hparams, **row.network}

    def of_network(family: str) -> dict[str, Any]:
        space = network.Hparams
        drawn = draw_hparams(space, stream, draw, family, given=given, trial=trial, name=name)
        return identity(space, drawn)

    of_usual = of_network(metadata.family)
    family = rates_family(metadata.family, network.is_pretrained(of_usual))
    space = pair.algorithm.Hparams
    hparams = draw_hparams(
        space,
        row.name,
        draw,
        family,
        metadata.hparams,
        given={**source.entry.training.hparams, **row.hparams},
        shared={f.name for f in fields(Algorithm.Hparams)} if sweep.shared_quantiles else (),
        trial=trial,
    )
    own = of_usual if family == metadata.family else of_network(family)
    adapt = (
        None if isinstance(row.adapt, str) else _drawn_adaptation(row.adapt, draw, family, trial)
    )
    return identity(space, hparams), network.resolved(own, source.dataset), adapt


def _drawn_adaptation(
    adapt: Mapping[str, Any], draw: int, family: str, trial: int | None
) -> dict[str, Any]:
    from oodbench.adaptations import adaptations

    name, values = adapt["name"], {key: value for key, value in adapt.items() if key != "name"}
    space = adaptations.get(name).Hparams
    drawn = draw_hparams(space, name, draw, family, given=values, trial=trial)
    return {"name": name} | identity(space, drawn)


def chosen_in(directory: Path, rule: str | None, trials: Sequence[int]) -> Chosen:
    """The hyperparameters that a rule, the directory's usual one by default, chooses for other `trials`.

    A draw is judged by the mean over trials of each run's best validation score, or, if each trial has
    separate draws, by its run alone. Ties go to the lowest draw. Raises UserError for trials that
    took part in the choice, and for a rule that sees the test environments.
    """
    frames = read_results(Directory(directory))
    rule = rule or usual(frames)
    if sees_test(rule):
        raise UserError(
            f"hparams_from: {rule} sees the test environments; name another `selection`"
        )
    runs = frames.runs
    before = sorted(map(int, runs["trial"].unique()))
    if again := sorted({*before} & {*trials}):
        others = list(range(before[-1] + 1, before[-1] + 1 + len(trials)))
        raise UserError(
            f"the hyperparameters in {directory} were chosen in the trials {before}: {again} would be "
            f"trained again; use others, such as `trials: {others}`"
        )
    about = {"results": str(directory), "rule": rule, "draws": int(runs["draw"].nunique())}
    stored = Directory(directory).specs()
    specs = {p: stored[i.partition("@")[0]] for p, i in _best_runs(frames, runs, rule).items()}
    return about | {"trials": before}, specs


def _best_runs(frames: Tables, runs: pd.DataFrame, rule: str) -> dict[Any, str]:
    table = judge(frames, rule).candidates
    best_steps = table[table["complete"]].drop_duplicates("id")
    columns = ["hparams", "network_hparams", "adapt"]
    settings = [json.dumps(row, sort_keys=True) for row in runs[columns].to_numpy().tolist()]
    metric = find_rule(rule).metric
    higher = known_direction(metric, plugins_of(frames)) if metric else runs["higher_is_better"]
    known = runs[["id"]].assign(setting=settings, higher=higher)
    planned = runs[~runs["helper"]].groupby(CHOSEN_FOR)["trial"].nunique().rename("planned")
    chosen: dict[Any, str] = {}
    places = best_steps.merge(known, on="id").join(planned, on=CHOSEN_FOR)
    for place, group in places.groupby(CHOSEN_FOR, sort=False):
        if group["trial"].nunique() < group["planned"].iloc[0]:
            continue
        sign = -1 if group["higher"].iloc[0] else 1
        by_setting = group.assign(cost=sign * group["score"]).groupby("setting", sort=False)
        costs = by_setting["cost"].agg(lambda cost: cost.mean(skipna=False))
        order = pd.DataFrame({"cost": costs, "draw": by_setting["draw"].min()})
        best = order.sort_values(["cost", "draw"], na_position="last").index[0]
        chosen[place] = str(group.loc[group["setting"] == best, "id"].iloc[0])
    return chosen
