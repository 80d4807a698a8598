"""Looks up the methods of a sweep's rows, and draws the hyperparameters of their runs."""

import importlib.util
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
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
from oodbench.sweep.sources import Problems, Source, sources_of
from oodbench.validation import short

if TYPE_CHECKING:
    from oodbench.algorithms import Algorithm

CHOSEN_FOR = ["dataset_label", "label", "test_environments"]
"""The columns of runs among which hyperparameters are chosen."""


class Draw(NamedTuple):
    """The drawn fields of a run's spec."""

    hparams: dict[str, Any]
    network_hparams: dict[str, Any]
    adapt: dict[str, Any] | None


Draws = Mapping[tuple[int, int], Draw]
"""Hyperparameters by draw and trial."""


class Chosen(NamedTuple):
    """The hyperparameters that an earlier sweep has chosen."""

    about: dict[str, Any]
    """Its `results` directory, selection `rule`, number of `draws`, and `trials`."""
    runs: Mapping[tuple[str, str, tuple[str, ...]], RunSpec]
    """The chosen run for each dataset, row and set of test environments (CHOSEN_FOR)."""


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
        for name, algorithm in sorted(algorithms.items(), key=lambda item: item[0].casefold()):
            if kind in ("all", algorithm.changes) and name not in labels:
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


def draws_of(sweep: Sweep, source: Source, row: Row, algorithm: "type[Algorithm]") -> Draws:
    """The hyperparameters of a row on a dataset; raises UserError for impossible values."""
    drawn = cache(partial(_drawn, source, row, algorithm, sweep.shared_quantiles))
    every = product(sweep.hparam_draws, source.trials)
    return {(d, t): drawn(d, t if sweep.draws == "per trial" else None) for d, t in every}


def chosen_draws(row: Row, source: Source, tests: tuple[str, ...], chosen: Chosen) -> Draws:
    """The hyperparameters that an earlier sweep has chosen for a cell; raises UserError without any."""
    earlier, spec = chosen.about["results"], chosen.runs.get((source.label, row.title, tests))
    if spec is None:
        raise UserError(
            f"{earlier} has no choice of hyperparameters for {row.title} on {source.label} (test "
            f"{'+'.join(tests)}): it does not plan this row, or runs of the row have not ended"
        )
    here = [row.name, source.network.name, *map(_name, (row.average, row.adapt))]
    there = [spec.algorithm, spec.network, *map(_name, (spec.average, spec.adapt))]
    if here != there:
        raise UserError(
            f"{earlier} has chosen hyperparameters for {' '.join(there)} in the row "
            f"{short(row.title)} on {source.label}, which is {' '.join(here)} here"
        )
    values = Draw(spec.hparams, spec.network_hparams, spec.adapt)
    return {(spec.draw, trial): values for trial in source.trials}


def _name(values: Mapping[str, Any] | None) -> str:
    return "none" if values is None else str(values["name"])


def _drawn(
    source: Source,
    row: Row,
    algorithm: "type[Algorithm]",
    shared_quantiles: bool,
    draw: int,
    trial: int | None,
) -> Draw:
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
    return Draw(hparams, network.resolved(network_hparams, source.dataset), adapt)


def chosen_in(directory: Path, rule: str | None, trials: Sequence[int]) -> Chosen:
    """The hyperparameters that a rule, by default the directory's usual rule, chooses for other `trials`.

    A draw is judged by the mean over trials of each run's best validation score, or by its single run if
    each trial has separate draws. Ties go to the lowest draw. Raises UserError for trials that took part
    in the choice, and for a rule that sees the test environments.
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
            f"trained again; use other trials, such as `trials: {others}`"
        )
    about = {
        "results": str(directory),
        "rule": rule,
        "draws": int(runs["draw"].nunique()),
        "trials": before,
    }
    stored = Directory(directory).specs()
    return Chosen(about, {place: stored[i] for place, i in _best_runs(frames, rule).items()})


def _best_runs(frames: Tables, rule: str) -> dict[Any, str]:
    runs, table = frames.runs, judge(frames, rule).candidates
    best_steps = table[table["complete"]].drop_duplicates("run")
    columns = ["hparams", "network_hparams", "adapt"]
    settings = [json.dumps(row, sort_keys=True) for row in runs[columns].to_numpy().tolist()]
    metric = find_rule(rule).metric
    higher = known_direction(metric, plugins_of(frames)) if metric else runs["higher_is_better"]
    known = pd.DataFrame({"setting": settings, "higher": higher}, runs.index)
    planned = runs[~runs["helper"]].groupby(CHOSEN_FOR)["trial"].nunique().rename("planned")
    places = best_steps.join(known, on="run").join(planned, on=CHOSEN_FOR)
    trials = places.groupby(CHOSEN_FOR)["trial"].transform("nunique")
    places = places[~(trials < places["planned"])]
    sign = np.where(places["higher"], -1, 1)
    by_setting = (
        places.assign(cost=sign * places["score"])
        .groupby([*CHOSEN_FOR, "setting"], sort=False)
        .agg(
            cost=("cost", lambda cost: cost.mean(skipna=False)),
            draw=("draw", "min"),
            id=("id", "first"),
        )
    )
    order = by_setting.sort_values(["cost", "draw"], na_position="last")
    chosen: dict[Any, str] = order.groupby(CHOSEN_FOR, sort=False)["id"].first().to_dict()
    return chosen
