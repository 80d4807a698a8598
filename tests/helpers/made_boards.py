"""Boards of made-up numbers, with the numbers in a plain table beside them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml

from oodbench.results.boards import dataset_file
from oodbench.results.parts import COUNT, RUN, SCORE, VALUE, About, Part, write_parts

STEP = 7
Means = Mapping[str, Mapping[str, float | None]]


def made_board(board: Path, means: Means, draws: int, trials: int, **about: Any) -> pd.DataFrame:
    """Write a board whose rows have these means, by dataset and label; returns a row for each run.

    A row without a mean has the numbers of its dataset's first. A run is chosen at one step by every
    rule. `about`: `rules` and `constant` by dataset, `lower` (the datasets measured by mse), `grouped`
    (those with a worst group), `sets` (test sets of several environments by dataset), `ceilings`,
    `transductives` and `alone` (labels), `names` (of registered datasets by dataset),
    `own_trials` (their number, by dataset, where it is another).
    """
    rows: list[dict[str, Any]] = []
    for place, (dataset, own) in enumerate(means.items()):
        up = dataset not in about.get("lower", ())
        first = next(iter(own.values())) or 0.0
        parts = []
        for i, (label, mean) in enumerate(own.items()):
            rng = np.random.default_rng([place, 0 if mean is None else i])
            runs = []
            for trial in range(about.get("own_trials", {}).get(dataset, trials)):
                for draw in range(draws):
                    run: dict[str, Any] = {"dataset": dataset, "label": label, "up": up}
                    run |= {"trial": trial, "draw": draw, "id": f"{dataset}-{label}-{trial}-{draw}"}
                    run["seconds"] = float(np.float32(rng.uniform(1, 9)))
                    for environment in about.get("sets", {}).get(dataset, ("t",)):
                        run[environment] = (first if mean is None else mean) + 0.02 * rng.normal()
                    if dataset in about.get("grouped", ()):
                        run["worst"] = run["t"] - rng.uniform(0, 0.3)
                    run |= {rule: rng.uniform() for rule in about["rules"][dataset]}
                    runs.append(run)
            parts.append(_part(pd.DataFrame(runs), about))
            rows += runs
        write_parts(parts, dataset_file(board, dataset))
    protocol = {"datasets": [{"name": "Any", "label": dataset} for dataset in means]}
    (board / "protocol.yaml").write_text(yaml.safe_dump(protocol | {"algorithms": []}))
    return pd.DataFrame(rows)


def _part(runs: pd.DataFrame, about: dict[str, Any]) -> Part:
    dataset, label, up = runs.loc[0, ["dataset", "label", "up"]]
    metric = "accuracy" if up else "mse"
    tests = list(about.get("sets", {}).get(dataset, ("t",)))
    columns: dict[str, Any] = {name: runs[name] for name in ("id", "draw", "trial", "seconds")}
    columns |= {"last_step": STEP, "step": STEP, "diverged": False}
    columns |= {"vectorized": label not in about.get("alone", ())}
    columns |= {"hparams": "{}", "network_hparams": "{}", "test_environments": tests}
    columns |= {"validation_environments": ["v"], "training_environments": ["a"]}
    lists = {k: v if isinstance(v, pd.Series) else [v] * len(runs) for k, v in columns.items()}
    table = pa.table({f.name: pa.array(lists[f.name], f.type) for f in RUN})
    for rule in about["rules"][dataset]:
        table = table.append_column(f"{SCORE}{rule}", pa.array(runs[rule]))
    for test in tests:
        count = pa.array([100] * len(runs), pa.int32())
        table = table.append_column(f"{COUNT}{test}", count)
        table = table.append_column(f"{VALUE}{metric}/{test}", pa.array(runs[test]))
    if "worst" in runs:
        table = table.append_column(f"{VALUE}worst_group_accuracy/t", pa.array(runs["worst"]))
    constant = about.get("constant", {}).get(dataset)
    constants: list[Any] = [
        {
            "test_environments": tests,
            "trial": trial,
            "values": {metric: {test: {"in": constant} for test in tests}},
        }
        for trial in runs["trial"].unique().tolist()
        if constant is not None
    ]
    spec: dict[str, Any] = {
        "dataset": about.get("names", {}).get(dataset, "Any"),
        "options": {},
        "algorithm": label,
        "label": label,
        "network": "MLP",
    }
    spec |= {"steps": STEP, "evaluate_every": STEP, "holdout": 0.2, "dataset_label": dataset}
    spec |= {name: label in about.get(f"{name}s", ()) for name in ("ceiling", "transductive")}
    context: Any = {"dataset_label": dataset, "training_environments": [], "metric": metric}
    return Part(
        About(
            spec=spec,
            context=context | {"higher_is_better": bool(up), "shift": f"shift of {dataset}"},
            constants=constants,
            selection=None,
            provenance={"commit": "0123456789abcdef", "torch": "2.9", "machine": "a machine"},
        ),
        table,
    )
