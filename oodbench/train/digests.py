"""Digests of a run's code and data, which are recorded with its spec."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oodbench.errors import UserError
from oodbench.hparams import neutral_values
from oodbench.identity import Digests, code_of
from oodbench.results.run_spec import RunSpec
from oodbench.results.stale import DATA, DataFiles

if TYPE_CHECKING:
    from oodbench.datasets import Dataset


def digests_of(spec: RunSpec, dataset: "Dataset | None", results: Path) -> Digests:
    """The digests of a run's code and, given its dataset, of data files without a published checksum.

    The results directory stores the list of files. A user's own adaptation counts as part of the method.
    """
    from oodbench.adaptations import adaptations
    from oodbench.algorithms import algorithms
    from oodbench.datasets import datasets
    from oodbench.networks.base import networks

    adaptation = [adaptations.get(spec.adapt["name"])] if spec.adapt else []
    codes = {
        "method": code_of(algorithms.get(spec.algorithm), *adaptation),
        "network": code_of(networks.get(spec.network)),
        "dataset": code_of(datasets.get(spec.dataset)),
    }
    digests: Any = {kind: code for kind, code in codes.items() if code}
    if dataset is not None and (files := _listed(dataset, results)):
        digests["files"] = files
    found: Digests = digests
    return found


@lru_cache(maxsize=2)
def _listed(dataset: "Dataset", results: Path) -> str | None:
    # once for all runs with the same data: a look at 24,000 files takes 0.4 s
    files = dataset.files_read
    return DataFiles(results).keep(files) if files else None


def digests_now(
    specs: Mapping[str, RunSpec], data_dir: Path | None, results: Path
) -> dict[str, Digests]:
    """The digests that runs would have if trained now, by id; without data that cannot be read."""
    made: dict[tuple[str, str], Dataset | None] = {}
    digests: dict[tuple[str, ...], Digests] = {}
    by_run = {}
    texts: dict[int, str] = {}  # specs share their options
    for run_id, spec in specs.items():
        if (options := id(spec.options)) not in texts:
            texts[options] = json.dumps(spec.options, sort_keys=True)
        data = spec.dataset, texts[options]
        if data not in made:
            made[data] = None
            with suppress(UserError):
                made[data] = dataset_of(located(spec, results, data_dir), data_dir)
        key = spec.algorithm, spec.network, str((spec.adapt or {}).get("name")), *data
        if key not in digests:
            digests[key] = digests_of(spec, made[data], results)
        by_run[run_id] = digests[key]
    return by_run


def located(spec: RunSpec, results: Path, data_dir: Path | None) -> RunSpec:
    """The spec, with the present path of a data frame's file if the results directory was moved.

    It is for reading the data alone: a run's id has the path relative to the launch's working directory.
    """
    file = Path(str(spec.options.get("file", "")))
    here = results.absolute() / DATA / file.name
    is_moved = file.parent.name == DATA and not ((data_dir or Path()) / file).is_file()
    if not is_moved or not here.is_file():
        return spec
    return replace(spec, options={**spec.options, "file": str(here)})


def dataset_of(spec: RunSpec, data_dir: Path | None) -> "Dataset":
    """The dataset of a run; raises UserError if it does not take the run's options any more."""
    from oodbench.datasets import datasets, make

    options = neutral_values(datasets.get(spec.dataset).Options) | spec.options
    return make(spec.dataset, options, data_dir)
