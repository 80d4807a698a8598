"""Sentences beside a table: how it was selected, and which runs count."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from oodbench.notes import AnyNote, Note
from oodbench.report.statistics import LEAST
from oodbench.results.provenance import code
from oodbench.results.run_spec import COMPLETE, State
from oodbench.results.tables import CELL
from oodbench.terminal import counted

PLACES = ["label", "dataset_label", "test_environments", "trial"]
"""The columns of a run by which a remark names it."""
NAMED = 3
"""A remark names at most this many runs of a state."""


def notes(
    runs: pd.DataFrame, rule: str, description: str, higher: Mapping[str, bool], whole: bool = True
) -> tuple[AnyNote, ...]:
    """The sentences of a caption: the selection rule, what the values are, and their directions.

    `whole` says whether every row has all of the trials.
    """
    trials, draws = f"{'n of ' * (not whole)}{number_of_trials(runs)}", _draws(runs)
    has_error = runs.groupby("dataset_label")["trial"].nunique().max() >= LEAST
    error = "mean ± standard error over trials (ddof=1); " if has_error else ""
    few = "" if has_error else ", too few for an error"
    directions = [f"{m}: {'higher' if up else 'lower'} is better" for m, up in higher.items()]
    down = ", ".join(m for m, up in higher.items() if not up)
    return (
        Note(f"Selection {rule}: {description}.", f"Selection {rule}: {_clause(description)}."),
        Note(
            f"Values: in split of the test environments; {error}"
            f"trials: {trials}{few}, hparam draws: {draws}.",
            ("Mean ± standard error over " if has_error else "")
            + f"{trials} trial{'s' * (trials != '1')}{few}; draws: {draws.replace(' (random)', '')}.",
        ),
        *_tuned_once(runs),
        *(
            [Note(f"{'; '.join(directions)}.", down and f"Lower is better: {down}.")]
            * bool(directions)
        ),
    )


def _tuned_once(runs: pd.DataFrame) -> list[Note]:
    """Note that ± leaves out the search, where an earlier sweep has chosen the hyperparameters."""
    known = runs["hparams_from"].dropna().unique() if "hparams_from" in runs else ()
    return [
        Note(
            f"Hyperparameters were {text}: ± leaves out the variance of that choice.",
            "Hyperparameters were chosen once: ± leaves out the variance of that choice.",
        )
        for text in known
    ]


def _clause(text: str) -> str:
    return re.split(r"; | \(|, (?:each|which) ", text)[0]


def remarks(runs: pd.DataFrame) -> tuple[AnyNote, ...]:
    """Notes that a paper leaves out: how the runs ended, and the code that trained them."""
    states = runs["state"].value_counts()
    ended = [*COMPLETE, State.FAILED]
    if State.BROKEN in states:
        ended.append(State.BROKEN)
    counts = [f"{states.get(s, 0)} {s}" for s in ended]
    missing = len(runs) - sum(states.get(s, 0) for s in ended)
    codes = {code(made) for made, _ in _provenances(runs)}
    there = [text for text in (*counts, f"{missing} missing") if not text.startswith("0 ")]
    incomplete = "" if there == counts[:1] else "; n such as 4/5 is incomplete and not ranked"
    return (
        Note(
            f"Runs: {', '.join(counts)}, {missing} missing, of {len(runs)}. "
            "n: trials whose runs all ended; a row with n such as 4/5 is incomplete and not ranked.",
            f"Runs: {', '.join(there)}{incomplete}.",
        ),
        *_of_data(runs),
        *_audited(runs),
        *_named(runs),
        *_repeated(runs),
        Note(
            f"Code: {'; '.join(sorted(codes)) or 'none yet'}.",
            f"Code: {min(codes, default='none yet')}{' and others' * (len(codes) > 1)}.",
        ),
        *_mixed(runs),
    )


def _of_data(runs: pd.DataFrame) -> list[Note]:
    if "data_notes" not in runs:
        return []
    known = runs[["dataset_label", "data_notes"]].dropna().itertuples(index=False, name=None)
    said = list(dict.fromkeys(f"{label}: {text}" for label, texts in known for text in texts))
    more = f", and {len(said) - 1} more of the data" if len(said) > 1 else ""
    return [Note(f"{'; '.join(said)}.", f"{said[0]}{more}.")] if said else []


def findings_of(runs: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """What audits found in the data of runs, by the dataset's label."""
    if "findings" not in runs:
        return {}
    pairs = runs[["dataset_label", "findings"]].dropna().itertuples(index=False, name=None)
    return {label: found for label, found in pairs if found}


def _audited(runs: pd.DataFrame) -> list[Note]:
    found = findings_of(runs)
    if not found:
        return []
    said = "; ".join(f"{label}: {f['sentence']}" for label, each in found.items() for f in each)
    kinds = dict.fromkeys(f["kind"] for each in found.values() for f in each)
    return [Note(f"Found in the data: {said}.", f"Found in the data: {', '.join(kinds)}.")]


def _named(runs: pd.DataFrame) -> list[AnyNote]:
    sentences = list[AnyNote]()
    for state, meaning in (
        (State.DIVERGED, "counted with what they recorded"),
        (State.BROKEN, "counted nowhere"),
    ):
        ended = runs.loc[runs["state"] == state, [*PLACES, "draw", "error"]]
        names = [
            f"{label} on {dataset} (test {'+'.join(tests)}, trial {trial}, draw {draw})"
            + (f", as {error}" if error else "")
            for label, dataset, tests, trial, draw, error in ended[:NAMED].itertuples(
                index=False, name=None
            )
        ]
        more = [f"{len(ended) - NAMED} more"] if len(ended) > NAMED else []
        if names:
            between = "; " if state is State.BROKEN else ", "
            text = f"{state.capitalize()}, {meaning}: {between.join([*names, *more])}."
            brief = f"{counted(len(ended), 'run')} {state}, {meaning}."
            sentences.append(text if state is State.BROKEN else Note(text, brief))
    return sentences


def _repeated(runs: pd.DataFrame) -> list[Note]:
    twice = runs[runs.duplicated([*CELL, "draw"], keep=False)]
    names = twice[["label", "dataset_label"]].drop_duplicates().itertuples(index=False, name=None)
    rows = [f"{label} on {dataset}" for label, dataset in names]
    if not rows:
        return []
    text = (
        f"Several settings under one name: {', '.join(rows)}. The rule chooses among all of them, which "
        "other rows cannot; a new label or results directory keeps them apart."
    )
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return [Note(text, f"Several settings under one name: {rows[0]}{more}.")]


def _provenances(runs: pd.DataFrame) -> list[tuple[Mapping[str, Any], int]]:
    known = [made for made in runs["provenance"] if made]
    counts = Counter(map(id, known))
    return [(made, counts[key]) for key, made in {id(made): made for made in known}.items()]


def _mixed(runs: pd.DataFrame) -> list[Note]:
    made = _provenances(runs.loc[runs["state"].isin(COMPLETE), ["provenance"]])
    words = {"True": "yes", "False": "no"}
    differences = {}
    for name in ("threads", "torch", "device", "vectorized"):
        counts: Counter[str] = Counter()
        for provenance, count in made:
            if name in provenance:
                value = str(provenance[name]).partition(":")[0]
                counts[words.get(value, value)] += count
        if len(counts) > 1:
            texts = (f"{v} ({counted(n, 'run')})" for v, n in sorted(counts.items()))
            differences[name] = ", ".join(texts)
    if not differences:
        return []
    start, items = "Trained differently, equal up to round-off", differences.items()
    text = f"{start}: {'; '.join(f'{name}: {values}' for name, values in items)}."
    return [Note(text, f"{start}: {', '.join(differences)}.")]


def number_of_trials(runs: pd.DataFrame) -> str:
    """The number of trials of the datasets, such as `10`, or `10 to 40` where datasets differ."""
    counts = runs.groupby("dataset_label")["trial"].nunique()
    return " to ".join(map(str, dict.fromkeys((counts.min(), counts.max()))))


def _draws(runs: pd.DataFrame) -> str:
    texts = {}
    for label, group in runs.groupby("label", sort=False):
        settings = group.groupby(CELL).size().max()  # several runs may share a draw
        count = max(group["draw"].nunique(), settings)
        texts[label] = "1" if count == 1 else f"{count} (random)"
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{label} {text}" for label, text in texts.items())
