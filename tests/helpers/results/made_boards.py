"""Boards of made-up numbers, with the numbers in a plain table beside them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from oodbench.results.boards import HALVES_FILE, PROTOCOL_FILE, RECORDS_FILE, RUNS_FILE
from oodbench.results.parquet import RECORDS, RUNS, table_of, write_table
from oodbench.results.run_spec import LATER, SCORE

STEP = 7
Means = Mapping[str, Mapping[str, float | None]]


def made_board(board: Path, means: Means, draws: int, trials: int, **about: Any) -> pd.DataFrame:
    """Write a board whose rows have these means, by dataset and label; returns a row for each run.

    A row without a mean has the numbers of its dataset's first. A run is chosen at one step by every
    rule. `about`: `rules` and `constant` by dataset, `lower` (the datasets measured by mse), `ceilings`
    and `transductives` (labels), `halves`, `own_trials` (their number, by dataset, where it is another).
    """
    rows: list[dict[str, Any]] = []
    for place, (dataset, own) in enumerate(means.items()):
        up = dataset not in about.get("lower", ())
        first = next(iter(own.values())) or 0.0
        for i, (label, mean) in enumerate(own.items()):
            rng = np.random.default_rng([place, 0 if mean is None else i])
            for trial in range(about.get("own_trials", {}).get(dataset, trials)):
                for draw in range(draws):
                    run: dict[str, Any] = {"dataset": dataset, "label": label, "up": up}
                    run |= {"trial": trial, "draw": draw, "id": f"{dataset}-{label}-{trial}-{draw}"}
                    run["seconds"] = rng.uniform(1, 9)
                    run["t"] = (first if mean is None else mean) + 0.02 * rng.normal()
                    run |= {rule: rng.uniform() for rule in about["rules"][dataset]}
                    rows.append(run)
    board.mkdir(exist_ok=True)
    runs = [_run(run, about) for run in rows]
    write_table(table_of(pd.DataFrame(runs), RUNS), board / RUNS_FILE)
    records = [record for run in rows for record in _records(run, about)]
    values = pd.DataFrame(records, columns=RECORDS.names)
    write_table(table_of(values, RECORDS), board / RECORDS_FILE)
    protocol = {"datasets": [{"name": "Any", "label": dataset} for dataset in means]}
    (board / PROTOCOL_FILE).write_text(yaml.safe_dump(protocol | {"algorithms": []}))
    (board / HALVES_FILE).write_text(yaml.safe_dump(about.get("halves", {})))
    return pd.DataFrame(rows)


def _run(run: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    dataset, label, metric = run["dataset"], run["label"], "accuracy" if run["up"] else "mse"
    constant = about.get("constant", {}).get(dataset)
    made = {"commit": "0123456789abcdef", "torch": "2.9", "machine": "a machine"}
    kinds = {k: label in about.get(f"{k}s", ()) for k in ("ceiling", "transductive")}
    return {name: run[name] for name in ("id", "label", "draw", "trial")} | {
        **LATER,
        "records": len(_records(run, about)),
        "dataset": "Any",
        "dataset_label": dataset,
        "algorithm": label,
        "network": "MLP",
        **{name: {} for name in ("options", "hparams", "network_hparams")},
        **{"test_environments": ("t",), "validation_environments": ("v",)},
        **{"training_environments": ("a",), "holdout": 0.2, "state": "done"},
        **dict.fromkeys(("steps", "evaluate_every", "last_step"), STEP),
        **kinds | {"reference": False, "metric": metric, "higher_is_better": run["up"]},
        "training_seconds": run["seconds"],
        "constant": constant and {metric: {"t": {"in": constant}}},
        "context": {"shift": f"shift of {dataset}"},
        "provenance": made | {"vectorized": True},
    }


def _records(run: Mapping[str, Any], about: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    metric = "accuracy" if run["up"] else "mse"
    values: list[tuple[Any, ...]] = [("t", "in", metric, run["t"], 100)]
    values += [(None, SCORE, rule, run[rule], 1) for rule in about["rules"][run["dataset"]]]
    return [(run["id"], STEP, *value) for value in values]
