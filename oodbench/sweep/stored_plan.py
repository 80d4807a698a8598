"""The plan of a sweep in its results directory: what must agree with it, and what it remembers."""

from collections.abc import Sequence
from typing import Any

from oodbench.errors import UserError
from oodbench.files import is_part
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.file import Sweep
from oodbench.sweep.launchers.job import Job
from oodbench.sweep.search import Study, objectives

SHARED_KEYS = {
    "steps",
    "evaluate_every",
    "network",
    "holdout",
    "validation_environments",
    "draws",
    "shared_quantiles",
}
"""Keys of a sweep file in which all launches into one results directory agree."""


BEFORE = {"draws": "shared", "shared_quantiles": False}
"""What results directories hold that were written before there were these keys."""


def continued(sweep: Sweep, results: Results) -> Sweep:
    """The sweep as its results directory goes on with it, where there is one.

    The directory's plug-ins come first, and its draws stay as they are unless the file names a way.
    """
    if not (results.path / "sweep.json").exists():
        return sweep
    settings = results.plan()["settings"]
    kept = {
        key: settings.get("sweep", {}).get(key, value)
        for key, value in BEFORE.items()
        if key not in sweep.model_fields_set
    }
    plugins = list(dict.fromkeys([*settings.get("plugins", ()), *sweep.plugins]))
    return sweep.model_copy(update=kept | {"plugins": plugins})


def store_plan(job: Job, launcher: str, sweep: Sweep) -> None:
    """Write the job's plan into its results directory, beside the runs that it plans already.

    Raises UserError if the directory holds anything else than earlier launches of this sweep.
    """
    results, runs = job.results, job.specs
    shared = _shared_values(sweep, job.studies)
    if (results.path / "sweep.json").exists():
        stored = results.plan()
        if stored["name"] != sweep.name:
            raise UserError(
                f"{results.path} holds the sweep '{stored['name']}', not '{sweep.name}'; "
                "use another --out"
            )
        earlier = BEFORE | stored["settings"].get("sweep", {})
        for key, value in shared.items():
            if earlier.get(key) != value:
                raise UserError(
                    f"{results.path} holds '{stored['name']}' with {key} {earlier.get(key)}, "
                    f"not {value}; use another --out"
                )
        runs = {i: RunSpec.from_json(s) for i, s in stored["runs"].items()} | runs
    elif results.path.exists() and not all(map(is_part, results.path.iterdir())):
        raise UserError(f"{results.path} is not empty and holds no sweep; use another --out")
    data_dir = job.settings.data_dir
    settings = {
        "sweep": shared,
        "selection": sweep.selection,
        "protocol": sweep.protocol,
        "data_dir": str(data_dir.absolute()) if data_dir else None,
        "plugins": list(job.settings.plugins),
        "keep_predictions": job.settings.keep_predictions,
        "keep_weights": list(job.settings.keep_weights),
        "run_timeout": job.settings.run_timeout,
        "launcher": launcher,
        "resources": job.resources.model_dump(exclude_defaults=True),
    }
    if sweep.search is not None:
        study = job.studies[0]
        settings["search"] = sweep.search.model_dump() | {
            "objective": objectives(job.studies),
            "draws": study.total // study.trials,
        }
    results.write_plan(sweep.name, settings, runs)


def _shared_values(sweep: Sweep, studies: Sequence[Study]) -> dict[str, Any]:
    """What the runs of one results directory share, so that a table never mixes them."""
    search = None
    if sweep.search is not None:
        shared = {"trials": sweep.trials, "objective": objectives(studies)}
        search = sweep.search.model_dump(exclude={"runs"}) | shared
    return sweep.model_dump(mode="json", include=SHARED_KEYS) | {"search": search}
