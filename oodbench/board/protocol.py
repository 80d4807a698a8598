"""Reads the protocol of a board, and restricts it to the parts that are trained."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from oodbench.errors import MissingError, UserError, unknown
from oodbench.results.boards import PROTOCOL_FILE, TIERS_FILE, columns_of, frozen_datasets
from oodbench.results.tables import weights_of
from oodbench.selection import sees_test
from oodbench.sweep.file import Entry, Row, Sweep, component, read_values, validate
from oodbench.terminal import terminal
from oodbench.validation import parse
from oodbench.yaml_values import read_yaml

FEATURES = "FrozenFeatures"
"""The dataset whose features may be read from a file."""


def protocol_of(board: Path) -> Sweep:
    """The sweep of a board; raises UserError for a file that is no sweep, or that no board can have."""
    file = board / PROTOCOL_FILE
    values = read_values(file)
    values.pop("protocol", None)  # a protocol names itself
    sweep = validate(values, str(file))
    if sweep.selection is not None and sees_test(sweep.selection):
        raise UserError(
            f"{file} selects by {sweep.selection}, which sees the test environments: no board is "
            "ranked by it"
        )
    if sweep.hparams_from is not None:
        raise UserError(f"{file} has `hparams_from`: every trial of a board chooses for itself")
    for entry in sweep.datasets:
        if entry.options and not entry.label:
            raise UserError(f"{file} gives {entry.name} options: give it a `label`, too")
    of_datasets = [entry.training.test_environments for entry in sweep.datasets]
    if "pairs" in (sweep.test_environments, *of_datasets):
        raise UserError(
            f"{file} plans `pairs`, whose runs judge each other, which a board cannot hold; it holds "
            "several test environments out at once by a list of lists of names"
        )
    names = {
        "algorithms": [row.title for row in sweep.algorithms],
        "datasets": [entry.title for entry in sweep.datasets],
    }
    for what, labels in names.items():
        for label, count in Counter(labels).items():
            if count > 1:
                raise UserError(f"{file} has two {what} called '{label}': give them a `label` each")
    return sweep


def restricted(
    protocol: Sweep,
    rows: Sequence[str],
    trials: int | None = None,
    draws: int | None = None,
    datasets: Sequence[str] = (),
) -> Sweep:
    """The protocol with only these rows and datasets, and the first `trials` and `draws`.

    `rows` are labels of the protocol, names of other methods, or `all` for the protocol's rows. Without
    `datasets`, all datasets are kept. Raises UserError for an unknown dataset, and for more trials or draws
    than the protocol has.
    """
    listed = {row.title: row for row in protocol.algorithms}
    named = [label for row in rows for label in (listed if row == "all" else [row])]
    entries = {entry.title: entry for entry in protocol.datasets}
    for name in datasets:
        if name not in entries:
            raise unknown("dataset", name, entries, f"the protocol {protocol.name}")
    chosen = [entries[name] for name in dict.fromkeys(datasets or entries)]
    planned = {
        "draws": (draws, [protocol.hparam_draws]),
        "trials": (trials, [protocol.on(entry).trials for entry in chosen]),
    }
    for what, (wanted, known) in planned.items():
        if wanted is not None and wanted > (most := max(map(len, known))):
            raise UserError(f"the protocol {protocol.name} has {most} {what}, not {wanted}")
    update = {
        "datasets": [_cut(entry, trials) for entry in chosen],
        "algorithms": [listed.get(name, Row(name=name)) for name in dict.fromkeys(named)],
        "protocol": protocol.name,
        "hparam_draws": protocol.hparam_draws[:draws],
        "trials": protocol.trials[:trials],
    }
    return protocol.model_copy(update=update)


def _cut(entry: Entry, trials: int | None) -> Entry:
    training = entry.training
    if "trials" not in training.model_fields_set:
        return entry
    fewer = training.model_copy(update={"trials": training.trials[:trials]})
    return entry.model_copy(update={"training": fewer})


def with_features(sweep: Sweep, file: Path) -> Sweep:
    """The sweep with its dataset's features read from a file.

    Raises UserError unless the sweep has a single dataset, of frozen features.
    """
    entry, *more = sweep.datasets
    if more or entry.name != FEATURES:
        raise UserError(
            f"--features replaces those of one dataset of {FEATURES}, which --dataset names"
        )
    of_network = ("network", "network_settings", "weights", "sha256")
    kept = {key: value for key, value in dict(entry).items() if key not in of_network}
    return sweep.model_copy(update={"datasets": [Entry(**{**kept, "file": str(file)})]})


class Tier(BaseModel):
    """A cheaper part of a protocol."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    datasets: list[str] = []
    """Labels of datasets; empty means all."""
    draws: int | None = Field(default=None, ge=1)
    """The number of first draws; None means all."""
    trials: int | None = Field(default=None, ge=1)
    """The number of first trials; None means all."""


def tiers(board: Path) -> dict[str, Tier]:
    """The tiers of a board by name; raises UserError for a file without tiers."""
    file = board / TIERS_FILE
    values = read_yaml(file) if file.is_file() else {}
    if not isinstance(values, dict):
        raise UserError(f"{file} must hold tiers by name")
    return {name: parse(Tier, tier, f"{file}: {name}") for name, tier in values.items()}


def find_tier(board: Path, name: str | None) -> Tier:
    """A tier of a board, without a name the whole protocol; raises UserError for an unknown tier."""
    if name is None:
        return Tier()
    known = tiers(board)
    if name not in known:
        raise unknown("tier", name, known, f"the board {board.name}")
    return known[name]


def possible(sweep: Sweep, attempt: Callable[[Entry], object]) -> Sweep:
    """The sweep without the datasets for which `attempt` raises MissingError, which are printed.

    Raises MissingError if no dataset is left.
    """
    left: list[Entry] = []
    by_reason: dict[str, list[str]] = {}
    for entry in sweep.datasets:
        try:
            attempt(entry)
            left.append(entry)
        except MissingError as error:
            if len(sweep.datasets) == 1:
                raise
            reason = f"`{error.command}` gets what is missing" if error.command else str(error)
            by_reason.setdefault(reason, []).append(entry.title)
    for reason, labels in by_reason.items():
        terminal(stderr=True).say(f"left out: {'; '.join(labels)}: {reason}")
    if not left:
        raise MissingError(f"no dataset of {sweep.name} has its data here")
    return sweep.model_copy(update={"datasets": left})


def cache_features(sweep: Sweep, data_dir: Path) -> None:
    """Extract the features of a sweep's datasets, except those without pictures or weights.

    Raises MissingError if no dataset is left.
    """
    from oodbench.datasets import make, require_files

    def extract(entry: Entry) -> None:
        dataset = require_files(make(FEATURES, entry.options, data_dir))
        dataset.cache(os.cpu_count() or 1)

    entries = [entry for entry in sweep.datasets if entry.name == FEATURES]
    possible(sweep.model_copy(update={"datasets": entries}), extract)


def overview(board: Path) -> list[tuple[str, ...]]:
    """For each dataset of a board: label, tiers, test sets, runs, frozen rows, and pretraining data."""
    from oodbench.datasets import make

    sweep, known, columns = protocol_of(board), tiers(board), ("dataset_label", "label")
    frozen = list(zip(*columns_of(board, columns), strict=True)) if frozen_datasets(board) else []
    draws = len(sweep.hparam_draws)
    rows: list[tuple[str, ...]] = []
    for entry in sweep.datasets:
        label, settings, options = entry.title, sweep.on(entry), entry.options
        of = str(options.get("of", entry.name))
        sets: Any = settings.test_environments
        if sets == "each":
            sets = [[n] for n in make(of, {}).environments]
        count = sum(isinstance(each, list) for each in sets) or 1
        runs = count * draws * len(settings.trials) * len(sweep.algorithms)
        of_tiers = [n for n, tier in known.items() if not tier.datasets or label in tier.datasets]
        there = len({row for dataset, row in frozen if dataset == label})
        seen = weights_of(component(settings.network).hparams | options, of)
        rows.append((label, ", ".join(of_tiers), str(count), f"{runs:,}", str(there), seen))
    return rows
