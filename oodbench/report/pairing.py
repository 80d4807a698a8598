"""What the two runs of a compared pair have in common, from their specs. Imports no torch."""

import json

import pandas as pd

PLACE = ["dataset_label", "test_environments", "trial"]


def shared(chosen: pd.DataFrame, runs: pd.DataFrame, baseline: str) -> str:
    """A sentence on what the chosen runs share with those of the baseline that they are paired with.

    Data and splits depend on dataset and trial alone; a network's initial weights, on the network
    too; the order of batches, on their size. `chosen` has a run `id` for each cell, `runs` is that of
    `sweep_runs`. The sentence is empty where nothing is paired.
    """
    specs = runs.loc[~runs["ceiling"], ["id", "network", "network_hparams", "hparams"]]
    weights = [
        json.dumps([name, values], sort_keys=True)
        for name, values in zip(specs["network"], specs["network_hparams"], strict=True)
    ]
    batches = [
        str([h.get(key) for key in ("batch_size", "environments_per_step")])
        for h in specs["hparams"]
    ]
    specs = specs.assign(weights=weights, batches=batches)
    table = chosen[[*PLACE, "label", "id"]].merge(specs[["id", "weights", "batches"]], on="id")
    against = table[table["label"] == baseline]
    pairs = table[table["label"] != baseline].merge(against, on=PLACE, suffixes=("", "_baseline"))
    if pairs.empty:
        return ""
    names = {"weights": "the network's initial weights", "batches": "the order of batches"}
    same = {n: int((pairs[key] == pairs[f"{key}_baseline"]).sum()) for key, n in names.items()}
    always = [name for name, count in same.items() if count == len(pairs)]
    counted = [
        f"{name} in {same[name]} of {len(pairs)} pairs" for name in same if name not in always
    ]
    parts = ["data", "splits", *always]
    text = f"The runs of a pair share {', '.join(parts[:-1])} and {parts[-1]}"
    return f"{text}; {' and '.join(counted)}." if counted else f"{text}."
