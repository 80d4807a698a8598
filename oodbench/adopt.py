"""A results directory takes up a sweep, unless it holds another one. Imports no torch."""

from collections.abc import Sequence
from typing import Any

from oodbench.errors import UserError
from oodbench.job import Job
from oodbench.plan import Sweep
from oodbench.results.run_spec import RunSpec
from oodbench.search import Study, objectives


def adopt(job: Job, launcher: str, sweep: Sweep) -> None:
    """Write the plan into the results directory, unless it holds another sweep's results."""
    results, runs = job.results, job.specs
    if (results.path / "sweep.json").exists():
        stored = results.plan()
        if stored["name"] != sweep.name:
            raise UserError(
                f"{results.path} holds the sweep '{stored['name']}', not '{sweep.name}'; "
                "use another --out"
            )
        old, new = stored["settings"]["sweep"], _fixed(sweep, job.studies)
        for key, value in new.items():
            if old.get(key) != value:
                raise UserError(
                    f"{results.path} holds '{stored['name']}' with {key} {old.get(key)}, not {value}; "
                    "use another --out"
                )
        runs = {i: RunSpec.from_json(s) for i, s in stored["runs"].items()} | runs
    elif results.path.exists() and any(results.path.iterdir()):
        raise UserError(f"{results.path} is not empty and holds no sweep; use another --out")
    data_dir = job.settings.data_dir
    settings = {
        "sweep": _fixed(sweep, job.studies),
        "data_dir": str(data_dir.absolute()) if data_dir else None,
        "plugins": list(job.settings.plugins),
        "keep_predictions": job.settings.keep_predictions,
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


def _fixed(sweep: Sweep, studies: Sequence[Study]) -> dict[str, Any]:
    """What the runs of one results directory must share, so that a table never mixes them."""
    keys = {"steps", "evaluate_every", "network", "holdout", "validation_environments"}
    search = None
    if sweep.search is not None:
        shared = {"trials": sweep.trials, "objective": objectives(studies)}
        search = sweep.search.model_dump(exclude={"runs"}) | shared
    return sweep.model_dump(mode="json", include=keys) | {"search": search}
