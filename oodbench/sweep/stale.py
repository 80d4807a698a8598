"""What a launch does about stale runs: it refuses, trains them again, or keeps them."""

from collections.abc import Iterator, Mapping
from typing import Any

from oodbench.errors import UserError
from oodbench.results.digests import Digests
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec
from oodbench.results.stale import Stale, Trained, stale
from oodbench.sweep.launchers import RunStatus
from oodbench.terminal import Terminal

RETRAIN, KEEP = "retrain", "keep"
"""What `LaunchOptions.stale` asks for; otherwise a launch is refused."""
SAID = {RETRAIN: "they are trained again", KEEP: "they are kept"}


def choice(retrain: bool, keep: bool) -> str:
    """What the flags --retrain-stale and --keep-stale ask for; raises UserError for both."""
    if retrain and keep:
        raise UserError("--retrain-stale and --keep-stale exclude each other")
    return RETRAIN if retrain else KEEP if keep else ""


def reasons(
    results: Results,
    specs: Mapping[str, RunSpec],
    statuses: Mapping[str, RunStatus],
    here: Mapping[str, Digests] | None = None,
) -> list[Stale]:
    """Why runs that are complete, or have got as far as a checkpoint, are stale, see `stale`."""
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
    """The ids of the stale runs, once the user has said what becomes of them; raises UserError before."""
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
        console.say(f"{reason.sentence}; {SAID[wish]}.")
    return frozenset(i for reason in known for i in reason.ids)


def replaced(specs: Mapping[str, RunSpec], stored: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """The stored runs that a plan has other runs in place of, as of data that have changed."""
    places = {_place(spec) for spec in specs.values()}
    return {i: s for i, s in stored.items() if i not in specs and _place(s) in places}


def with_kept(specs: Mapping[str, RunSpec], kept: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """The runs of a plan, but for those in whose places other runs are kept."""
    by_place = {_place(spec): (run_id, spec) for run_id, spec in kept.items()}
    return dict(by_place.get(_place(spec), (run_id, spec)) for run_id, spec in specs.items())


def _place(spec: RunSpec) -> tuple[Any, ...]:
    return spec.dataset_name, spec.label, spec.test_environments, spec.draw, spec.trial
