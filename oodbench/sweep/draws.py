"""Which draws and trials a sweep has, and the hyperparameters of each draw."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from oodbench.errors import UserError
from oodbench.hparams import checked, draw, given_ranges, identity, rates_family
from oodbench.sweep.file import Component, Row, Sweep
from oodbench.sweep.file_errors import short


def indices(value: int | list[int], key: str) -> list[int]:
    """The numbers of trials or draws that a key counts or lists; raises UserError for others."""
    numbers = list(range(value)) if isinstance(value, int) else value
    if not numbers or len(set(numbers)) < len(numbers):
        raise UserError(f"{key} must be a list of different numbers, not {short(value)}")
    return numbers


def chosen_network(sweep: Sweep, dataset: Any) -> Component:
    """The network that a sweep trains on a dataset, with the values that the two fix."""
    named = sweep.network
    if dataset.given_training is not None and dataset.given_training.network is not None:
        named = dataset.given_training.network
    chosen = Component(name=named) if isinstance(named, str) else named
    if chosen.name not in ("default", dataset.network):
        return chosen
    return Component(name=dataset.network, hparams={**dataset.network_hparams, **chosen.hparams})


def given_hparams(dataset: Any, row: Row) -> dict[str, Any]:
    """The values and ranges that a sweep gives a row on a dataset: the row's over the dataset's."""
    training = dataset.given_training
    return {**(training.hparams if training is not None else {}), **row.hparams}


def row_hparams(
    sweep: Sweep, dataset: Any, row: Row, index: int, trial: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The hyperparameters of a row's algorithm and of its network in draw `index`.

    Each trial has a draw of its own, unless it is None: the draw of all trials.
    """
    from oodbench.algorithms import Algorithm, algorithms
    from oodbench.networks.base import networks

    own = given_hparams(dataset, row)
    chosen = chosen_network(sweep, dataset)
    network = networks.get(chosen.name)
    algorithm = algorithms.get(row.name)
    owner = f"{'network' if sweep.shared_quantiles else row.name}/{chosen.name}"
    given = {**chosen.hparams, **row.network}

    def of_network(family: str) -> dict[str, Any]:
        drawn = draw(network.Hparams, owner, index, family, trial=trial)
        return _with_given(network.Hparams, drawn, given, index, chosen.name)

    family = dataset.metadata.family
    family = rates_family(family, network.is_pretrained(of_network(family)))
    network_hparams = network.resolved(of_network(family), dataset)
    of_all = {f.name for f in fields(Algorithm.Hparams)} if sweep.shared_quantiles else set()
    drawn = draw(
        algorithm.Hparams,
        row.name,
        index,
        family,
        dataset.metadata.hparams,
        shared=of_all,
        trial=trial,
        ranges=given_ranges(own, row.name),
    )
    hparams = _with_given(algorithm.Hparams, drawn, own, index, row.name)
    return hparams, network_hparams


def _with_given(
    space: type, drawn: Mapping[str, Any], given: Mapping[str, Any], index: int, owner: str
) -> dict[str, Any]:
    """Draw `index` with a sweep file's own values over it, checked; a list has one for each draw."""
    place = f"the hyperparameters of {owner}"
    chosen = {}
    for name, value in given.items():
        if isinstance(value, dict):  # a range: it was drawn
            continue
        if isinstance(value, list):
            if index >= len(value):
                raise UserError(
                    f"'{name}' in {place} lists {len(value)} values, none for draw {index}"
                )
            value = value[index]
        chosen[name] = value
    return identity(space, asdict(checked(space, {**drawn, **chosen}, place)))
