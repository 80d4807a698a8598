"""The results directory of a single run that is trained by itself."""

from pathlib import Path
from typing import Any

from oodbench.errors import UserError
from oodbench.results.directory import Results, RunDirectory
from oodbench.results.run_spec import RunSpec
from oodbench.train.settings import TrainSettings


def prepared_directory(out: Path, spec: RunSpec, settings: TrainSettings) -> RunDirectory:
    """The run's directory in a results directory that plans it; raises UserError for another's."""
    results = Results(out)
    if (out / "sweep.json").exists():
        if spec.id not in results.plan()["runs"]:
            raise UserError(f"{out} holds results without the run {spec.id}; use another directory")
    elif out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty and holds no results; use another directory")
    else:
        told: dict[str, Any] = {
            "sweep": {},
            "data_dir": str(settings.data_dir.absolute()) if settings.data_dir else None,
            "plugins": list(settings.plugins),
            "keep_predictions": settings.keep_predictions,
            "keep_weights": list(settings.keep_weights),
            "launcher": "local",
            "resources": {},
        }
        results.write_plan(f"run-{spec.id}", told, {spec.id: spec})
    return results.run(spec.id)
