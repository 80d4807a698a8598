"""One run from Python: planned as a sweep plans it, trained in the caller's process."""

import tempfile
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oodbench.errors import MOST_THREADS, UserError, whole_number
from oodbench.registry import load_plugins
from oodbench.results.directory import Results
from oodbench.results.frames import tidy
from oodbench.results.load import load_frames
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep.file import validate
from oodbench.sweep.launchers import status_on_disk
from oodbench.sweep.plan import Plan, make_plan
from oodbench.sweep.stale import RETRAIN, reasons
from oodbench.sweep.stored_plan import store_plan
from oodbench.sweep.weights import check_rules
from oodbench.train.digests import digests_now
from oodbench.train.settings import TrainSettings

if TYPE_CHECKING:
    import pandas as pd

CALLER = "oodbench.run"


def run(
    dataset: str | Mapping[str, Any],
    algorithm: str | Mapping[str, Any] = "ERM",
    *,
    trial: int = 0,
    out: str | PathLike[str] | None = None,
    data_dir: str | PathLike[str] | None = None,
    device: str = "cpu",
    threads: int = 1,
    keep_weights: Sequence[str] = (),
    plugins: Sequence[str] = (),
    stale: str = "",
    **keys: Any,
) -> "pd.DataFrame":
    """Train one run in this process and return its records, as `oodbench.load` returns those of a sweep.

    `dataset` and `algorithm` are entries of a sweep file: a name, or a mapping with the key `name` and
    options, or `hparams`; `keys` are further keys of the file, such as `steps`, `evaluate_every`,
    `network` or `test_environments: [["test"]]`. The run is the one that such a sweep trains, with the
    same id and the same records. With `out`, a results directory, it goes on where it was interrupted
    there, is not trained again once it has ended, and `load_model` finds the weights that it keeps.
    If its code or data have changed since it was trained there, it is refused, unless `stale` is `retrain`
    or `keep`. Several runs may share the directory, as those of a sweep do, and be trained there at
    once. Without `out` nothing is left on the disk. The process's settings and random generators are
    afterwards as they were before.

    Raises UserError for what cannot be run, and RuntimeError with the traceback if the run fails.
    """
    from oodbench.train.execute import execute
    from oodbench.train.process import check_device, check_precision, kept_generators

    for name, entry in (("dataset", dataset), ("algorithm", algorithm)):
        if not isinstance(entry, str | Mapping):
            raise UserError(f"{CALLER}: {name} is a name, or a mapping with one, not {entry!r}")
    for name, several in (("keep_weights", keep_weights), ("plugins", plugins)):
        if isinstance(several, str):
            raise UserError(f"{CALLER}: {name} is a list, such as [{several!r}]")
    trial, threads = whole_number(trial, "trial"), whole_number(threads, "threads", 1, MOST_THREADS)
    if keep_weights and out is None:
        raise UserError(f"{CALLER}: weights are kept in a results directory, which `out` names")
    load_plugins(plugins)
    check_device(device)
    data = None if data_dir is None else Path(data_dir)
    with kept_generators():
        plan, spec = _planned(dataset, algorithm, trial, data, keys)
        check_precision(spec.precision, device)
        settings = TrainSettings(
            data_dir=data,
            device=device,
            threads=threads,
            plugins=tuple(plugins),
            keep_weights=check_rules(keep_weights, [spec]),
            keep_checkpoints=plan.sweep.keep_checkpoints,
            scratch=out is None,
        )
        with tempfile.TemporaryDirectory() as scratch:
            results = Results(Path(scratch) if out is None else Path(out))
            if not _is_planned(results, spec):
                store_plan(results, plan.sweep, plan.runs, settings, chosen=plan.chosen)
            directory = results.run(spec.id)
            _check_stale(results, spec, data, stale)
            state, message = execute(spec, directory, settings)
            if state is State.ELSEWHERE:
                raise UserError(f"another process trains the run in {directory.path}")
            if not state.complete:
                failure = directory.failure()
                trace = "" if failure is None else f"\n{failure.traceback}"
                raise RuntimeError(f"the run is {state}: {message}{trace}")
            return tidy(load_frames(results, {spec.id: spec}))


def _check_stale(results: Results, spec: RunSpec, data_dir: Path | None, wish: str) -> None:
    """Let a stale run start anew if the user wishes; raises UserError if there is no wish."""
    specs, statuses = {spec.id: spec}, {spec.id: status_on_disk(results, spec.id)}
    if not statuses[spec.id].provenance:
        return
    known = reasons(results, specs, statuses, digests_now(specs, data_dir, results.path))
    sentences = [reason.sentence for reason in known if reason.is_known]
    if sentences and not wish:
        raise UserError(
            f"{CALLER}: {'; '.join(sentences)}: stale='retrain' trains it again, stale='keep' keeps it"
        )
    if sentences and wish == RETRAIN:
        results.run(spec.id).start_anew()


def _planned(
    dataset: str | Mapping[str, Any],
    algorithm: str | Mapping[str, Any],
    trial: int,
    data_dir: Path | None,
    keys: Mapping[str, Any],
) -> tuple[Plan, RunSpec]:
    """Return the plan of one run, and the run; raises UserError if there is none, or more than one."""
    entries = [each if isinstance(each, str) else dict(each) for each in (dataset, algorithm)]
    values = {"name": CALLER, "datasets": entries[:1], "algorithms": entries[1:]}
    plan = make_plan(validate({**values, "trials": [trial], **keys}, CALLER), data_dir)
    if plan.impossible and not plan.runs:
        raise UserError(f"{CALLER}: {plan.impossible[0].reason}")
    if len(plan.runs) != 1:
        raise UserError(f"{CALLER} trains one run, and these keys make {len(plan.runs)}")
    (spec,) = plan.runs.values()
    return plan, spec


def _is_planned(results: Results, spec: RunSpec) -> bool:
    """Return whether a results directory plans the run, whatever its sweep is called."""
    return (results.path / "sweep.json").exists() and spec.id in results.plan()["runs"]
