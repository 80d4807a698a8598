"""Our numbers for an experiment: from its trained sweeps, or from a function that computes them."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from oodbench.errors import unknown
from oodbench.identity import commit
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.tables import Tables
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.verify.measured import Measured, read_values
from oodbench.verify.targets import Experiment, Values
from oodbench.version import __version__


def results(experiment: Experiment, out: Path, trials: int | None) -> Measured:
    """Our numbers for an experiment with their provenance; its sweeps' results are read from `out`."""
    started = [name for name in experiment.sweeps if (out / name / "sweep.json").is_file()]
    frames: Mapping[str, Tables] = {name: read_results(Directory(out / name)) for name in started}
    values = our_values(experiment, frames, trials or experiment.trials)
    return Measured(values=values, provenance=_provenance(experiment, frames))


def our_values(experiment: Experiment, frames: Mapping[str, Tables], trials: int) -> Values:
    """Our values by `Target.key`, from sweeps' results or a computation, for the targets that have any."""
    computed: Values = {}
    if experiment.compute is not None:
        from oodbench.verify.computations import COMPUTATIONS  # imports torch

        if experiment.compute not in COMPUTATIONS:
            raise unknown("computation", experiment.compute, COMPUTATIONS)
        computed = COMPUTATIONS[experiment.compute](trials, frames)
    values: Values = {}
    for target in experiment.targets:
        if target.sweep in frames:
            found = read_values(target, frames[target.sweep])
        elif target.sweep or target.row not in computed:
            continue
        else:
            found = computed[target.row]
        # to 10 digits, as the last bits differ between machines
        values[target.key] = [float(f"{target.scale * value:.10g}") for value in found]
    return values


def _provenance(experiment: Experiment, frames: Mapping[str, Tables]) -> dict[str, list[str]]:
    from oodbench.datasets import make

    items: dict[str, set[str]] = {"Protocol": set(), "Code": set(), "torch": set(), "Data": set()}
    for name, frame in frames.items():
        items["Protocol"].add(read_sweep(find_sweep(name)).protocol or f"none (sweep {name})")
        runs = [p for p in frame.runs["provenance"] if isinstance(p, Mapping) and p]
        items["Code"] |= {str(p["commit"] or p["oodbench"]) for p in runs}
        items["torch"] |= {str(p["torch"]) for p in runs}
        for run in frame.runs.drop_duplicates("dataset_label").itertuples():
            checksums = make(run.dataset, run.options).checksums
            items["Data"] |= {f"{Path(file).name} md5 {md5}" for file, md5 in checksums.items()}
    if experiment.compute is not None:
        items["Code"].add(commit() or __version__)
        items["torch"].add(version("torch"))
    return {name: sorted(texts) for name, texts in items.items() if texts}
