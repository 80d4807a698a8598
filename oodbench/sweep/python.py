"""Implements `oodbench.sweep` and `oodbench.run`."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from oodbench.errors import MOST_THREADS, UserError, whole_number
from oodbench.registry import load_plugins
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_spec import State
from oodbench.results.stale import stale_in
from oodbench.results.tables import tidy
from oodbench.sweep.file import Keys, Sweep, from_commas, takes_keys, validate
from oodbench.sweep.launch import KEEP, RETRAIN, check_rules, launch, settled, store_plan
from oodbench.sweep.launchers import LaunchOptions
from oodbench.sweep.objects import as_names, imported
from oodbench.sweep.plan import Plan, make_plan
from oodbench.sweep.results import Results
from oodbench.train.digests import digests_now
from oodbench.train.execute import execute
from oodbench.train.process import check_device, check_precision, kept_generators

if TYPE_CHECKING:
    import pandas as pd

    from oodbench.datasets import Dataset

SWEEP, RUN = "oodbench.sweep", "oodbench.run"
ON_THIS_MACHINE = ("local", "debug")
"""The launchers whose workers find classes of a script or a notebook."""
OPTIONS = {f.name for f in fields(LaunchOptions)} - Sweep.model_fields.keys()
"""The arguments of `oodbench.sweep` that are options of a launch."""


def sweep(arguments: dict[str, Any]) -> Results:
    """Launch a sweep by the arguments of `oodbench.sweep`."""
    options = {key: arguments.pop(key) for key in OPTIONS & arguments.keys()}
    name, out, data_dir = arguments["name"], options["out"], options["data_dir"]
    if out is None and not name:
        raise UserError(f"{SWEEP}: `out` must be a results directory, such as out='results/mine'")
    options["out"] = path = Path("results") / name if out is None else Path(out)
    options["data_dir"] = data = None if data_dir is None else Path(data_dir)
    if options["stale"] not in ("", RETRAIN, KEEP):
        raise UserError(f"{SWEEP}: `stale` is {RETRAIN} or {KEEP}, not {options['stale']!r}")
    options["threads"] = whole_number(options["threads"], "threads", 1, MOST_THREADS)
    options["observers"] = tuple(from_commas(options["observers"]))
    whole_number(options["retries"], "retries")
    if options["workers"] is not None:
        whole_number(options["workers"], "workers", 1, MOST_THREADS)
    values = {**arguments, "name": name or path.resolve().name}
    with kept_generators(), _made(values, SWEEP, path, path, data) as (made, classes):
        if classes and options["launcher"] not in ON_THIS_MACHINE:
            raise UserError(
                f"{SWEEP}: this script or notebook defines {', '.join(classes)}, where the launcher "
                f"{options['launcher']} does not look: write a file of it, and import that"
            )
        launch(made, LaunchOptions(table=False, **options))
    return Results(path)


@contextmanager
def _made(
    values: Mapping[str, Any], caller: str, path: Path, kept: Path | None, data_dir: Path | None
) -> Iterator[tuple[Sweep, list[str]]]:
    """The sweep, and the classes of `__main__` that it names, which are in modules during the block."""
    if isinstance(plugins := values["plugins"], str):
        raise UserError(f"{caller}: plugins is a list, such as [{plugins!r}]")
    try:
        load_plugins(plugins)
        values = as_names(values, kept, data_dir)
    except UserError as error:
        raise error.at(caller) from error
    with imported(values, path) as (modules, classes):
        values["plugins"] = [*dict.fromkeys([*plugins, *modules])]
        yield validate(values, caller), classes


@takes_keys
def run(
    dataset: "str | type | Mapping[str, Any] | Dataset | pd.DataFrame",
    algorithm: str | type | Mapping[str, Any] = "ERM",
    *,
    trial: int = 0,
    name: str = "",
    out: str | PathLike[str] | None = None,
    data_dir: str | PathLike[str] | None = None,
    device: str = "cpu",
    threads: int = 1,
    keep_weights: Sequence[str] = (),
    plugins: Sequence[str] = (),
    stale: Literal["", "retrain", "keep"] = "",
    **keys: Unpack[Keys],
) -> "pd.DataFrame":
    """Train one run in this process and return its records, as `oodbench.load` returns those of a sweep.

    `dataset` and `algorithm` are entries as `oodbench.sweep` takes them. The run has the id and the records
    that such a sweep gives it. With `out`, a results directory, an interrupted run is resumed, an ended run
    is not trained again, and `load_model` finds the kept weights. A run whose code or data have changed
    since it was trained there is refused, unless `stale` is `retrain` or `keep`. Several runs may share the
    directory and be trained at once; their sweep is called `name`. Without `out` nothing is left on the
    disk. The process's settings and random generators are restored afterwards.

    Raises UserError for what cannot be run, and RuntimeError with the traceback if the run fails.
    """
    trial, threads = whole_number(trial, "trial"), whole_number(threads, "threads", 1, MOST_THREADS)
    if keep_weights and out is None:
        raise UserError(f"{RUN}: weights are kept in a results directory, which `out` names")
    check_device(device)
    data, kept = (None if path is None else Path(path) for path in (data_dir, out))
    values = {"name": name or RUN, "plugins": plugins, "keep_weights": keep_weights, **keys}
    values |= {"datasets": [dataset], "algorithms": [algorithm], "trials": [trial]}
    with kept_generators(), tempfile.TemporaryDirectory() as scratch:
        path = kept or Path(scratch)
        with _made(values, RUN, path, kept, data) as (made, _):
            plan = make_plan(made, data)
            spec = plan.only(RUN)
            check_precision(spec.precision, device)
            options = LaunchOptions(
                out=path,
                data_dir=data,
                device=device,
                threads=threads,
                plugins=tuple(made.plugins),
                keep_weights=check_rules(made.keep_weights, plan.runs),
                scratch=kept is None,
                stale=stale,
            )
            return _records(plan, options)


def _records(plan: Plan, options: LaunchOptions) -> "pd.DataFrame":
    """Train the run of a plan unless it has ended, and return its records."""
    results = Directory(options.out)
    ((run_id, spec),) = plan.runs.items()
    is_planned = (results.path / "sweep.json").exists() and run_id in results.specs()
    if not is_planned:  # else the sweep there keeps its name and settings
        store_plan(results, plan, options)
    directory = results.run(run_id)
    if directory.made_by():
        here = digests_now(plan.runs, options.data_dir, results.path)
        found = stale_in(results, plan.runs, results.statuses([run_id]), here)
        old = settled(found, options.stale)
        if options.stale == RETRAIN:
            results.start_anew([*old])
    state, message = execute(spec, directory, options)
    if state is State.ELSEWHERE:
        raise UserError(f"another process trains the run in {directory.path}")
    if not state.complete:
        failure = directory.failure()
        trace = "" if failure is None else f"\n{failure.traceback}"
        raise RuntimeError(f"the run is {state}: {message}{trace}")
    return tidy(read_results(results, plan.runs))
