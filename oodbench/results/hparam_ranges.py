"""Whether the rows of a board drew their hyperparameters alike. Imports no torch."""

import pandas as pd

BASELINE = "ERM"
"""The row whose hyperparameters are those that all methods share."""


def range_notes(*tables: pd.DataFrame) -> list[str]:
    """The rows with own hyperparameters of several ranges, and those with shared ones of their own.

    A draw of a trial takes a hyperparameter at one quantile on all datasets: an own one has several
    ranges where its values for a trial and draw differ between datasets. A shared one is a row's own
    where its value is not that of the baseline's run of the same dataset, trial and draw.
    """
    columns = ["dataset_label", "trial", "draw", "label", "hparams"]
    told = pd.concat([runs.loc[~runs["ceiling"].eq(True), columns] for runs in tables])
    plain = told[told["label"] == BASELINE]
    if plain.empty:
        return []
    shared = {tuple(key): hparams for *key, _, hparams in plain.itertuples(index=False, name=None)}
    several: dict[str, None] = {}
    others: dict[str, set[str]] = {}
    first: dict[tuple[object, ...], object] = {}
    for dataset, trial, draw, label, hparams in told.itertuples(index=False, name=None):
        base = shared.get((dataset, trial, draw), {})
        for name, value in hparams.items():
            if name in base:
                if base[name] != value:
                    others.setdefault(label, set()).add(name)
            elif first.setdefault((label, trial, draw, name), value) != value:
                several[label] = None
    notes = []
    if several:
        notes.append(
            f"{', '.join(several)}: own hyperparameters in ranges that follow the kind of data, not in one."
        )
    if others:
        names = ", ".join(sorted(set().union(*others.values())))
        notes.append(f"{', '.join(others)}: not {BASELINE}'s values of {names} in each draw.")
    return notes
