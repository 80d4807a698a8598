"""The plan of a sweep in its results directory: it is continued, written, and compared with a launch."""

from collections.abc import Collection, Mapping
from typing import Any

from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.chosen import Chosen
from oodbench.sweep.file import Sweep
from oodbench.train.settings import TrainSettings

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


def continued(sweep: Sweep, results: Results) -> Sweep:
    """Return the sweep, with the plug-ins and the kind of draws that its results directory, if any, has.

    The directory's plug-ins come first; its draws are kept unless the file sets them.
    """
    if not (results.path / "sweep.json").exists():
        return sweep
    settings = results.plan()["settings"]
    kept = {
        key: settings["sweep"][key]
        for key in ("draws", "shared_quantiles")
        if key in settings.get("sweep", {}) and key not in sweep.model_fields_set
    }
    plugins = list(dict.fromkeys([*settings.get("plugins", ()), *sweep.plugins]))
    return sweep.model_copy(update=kept | {"plugins": plugins})


def store_plan(
    results: Results,
    sweep: Sweep,
    runs: Mapping[str, RunSpec],
    settings: TrainSettings,
    *,
    launcher: str = "local",
    resources: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    chosen: Chosen | None = None,
) -> None:
    """Add the plan of some runs to a results directory, and remove the runs `without`, given by id.

    The plan also records from where hyperparameters are that an earlier sweep has `chosen`.
    Raises UserError if the directory holds anything else than earlier launches of this sweep.
    """
    shared = sweep.model_dump(mode="json", include=SHARED_KEYS)
    if chosen:
        shared["hparams_from"] = dict(chosen.about)
    data_dir = settings.data_dir
    launched = {
        "sweep": shared,
        "selection": sweep.selection,
        "protocol": sweep.protocol,
        "data_dir": str(data_dir.absolute()) if data_dir else None,
        "plugins": list(settings.plugins),
        "keep_predictions": settings.keep_predictions,
        "keep_weights": list(settings.keep_weights),
        "keep_checkpoints": settings.keep_checkpoints,
        "run_timeout": settings.run_timeout,
        "launcher": launcher,
        "resources": dict(resources or {}),
    }
    results.write_plan(sweep.name, launched, runs, without)
