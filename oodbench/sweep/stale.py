"""Stale runs at a launch, which refuses them, trains them again, or keeps them."""

from collections.abc import Iterator, Mapping
from typing import Any

from oodbench.errors import UserError
from oodbench.results.directory import Results
from oodbench.results.provenance import Digests
from oodbench.results.run_spec import RunSpec
from oodbench.results.stale import Stale, Trained, stale
from oodbench.sweep.launchers import RunStatus
from oodbench.terminal import Terminal

RETRAIN, KEEP = "retrain", "keep"
"""The values of `LaunchOptions.stale` with which a launch accepts stale runs."""
OUTCOME = {RETRAIN: "they are trained again", KEEP: "they are kept"}


def choice(retrain: bool, keep: bool) -> str:
    """Return the value of `LaunchOptions.stale` by the flags; raises UserError if both are given."""
    if retrain and keep:
        raise UserError("--retrain-stale and --keep-stale exclude each other")
    return RETRAIN if retrain else KEEP if keep else ""


def reasons(
    results: Results,
    specs: Mapping[str, RunSpec],
    statuses: Mapping[str, RunStatus],
    here: Mapping[str, Digests] | None = None,
) -> list[Stale]:
    """Return the reasons why runs with a result or a checkpoint are stale, see `stale`."""
    return stale(_trained(results, specs, statuses), here)


def _trained(
    results: Results, specs: Mapping[str, RunSpec], statuses: Mapping[str, RunStatus]
) -> Iterator[Trained]:
    directory = str(results.path)
    for run_id, spec in specs.items():
        status = statuses[run_id]
        if status.provenance and (
            status.state.complete
            or (status.state.at_rest and results.run(run_id).checkpoint.exists())
        ):
            yield Trained(
                *(run_id, spec.algorithm, spec.network, spec.dataset, spec.dataset_name),
                *(status.provenance, directory),
            )


def settled(known: list[Stale], wish: str, console: Terminal) -> frozenset[str]:
    """Print what is stale, and return the ids.

    Raises UserError without a `wish`: neither --retrain-stale nor --keep-stale is given.
    """
    for reason in known:
        if not reason.is_known:
            console.say(f"{reason.sentence}.")
    known = [reason for reason in known if reason.is_known]
    if known and not wish:
        raise UserError(
            f"{'; '.join(reason.sentence for reason in known)}: --retrain-stale trains them again, "
            "--keep-stale keeps them"
        )
    for reason in known:
        console.say(f"{reason.sentence}; {OUTCOME[wish]}.")
    return frozenset(i for reason in known for i in reason.ids)


def replaced(specs: Mapping[str, RunSpec], stored: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """Return the stored runs that other runs of a plan replace, as after a change of the data."""
    places = {_place(spec) for spec in specs.values()}
    return {i: s for i, s in stored.items() if i not in specs and _place(s) in places}


def with_kept(specs: Mapping[str, RunSpec], kept: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """Return the runs of a plan, with the `kept` runs in their places."""
    by_place = {_place(spec): (run_id, spec) for run_id, spec in kept.items()}
    return dict(by_place.get(_place(spec), (run_id, spec)) for run_id, spec in specs.items())


def _place(spec: RunSpec) -> tuple[Any, ...]:
    return spec.dataset_name, spec.label, spec.test_environments, spec.draw, spec.trial
