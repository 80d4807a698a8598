"""Notes on a table: how its numbers were selected, and which runs count."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from oodbench.errors import counted, some
from oodbench.notes import AnyNote, Note
from oodbench.report.gaps import BASELINE
from oodbench.report.statistics import LEAST
from oodbench.results.provenance import code, made_by
from oodbench.results.run_spec import COMPLETE, State
from oodbench.results.tables import CELL
from oodbench.selection import Rule

NAMED = 3
"""A remark names at most this many runs of a state."""


def notes(
    runs: pd.DataFrame, rule: Rule, higher: Mapping[str, bool], whole: bool
) -> tuple[AnyNote, ...]:
    """The notes of a caption: the selection rule, what the values are, and which direction is better.

    `whole`: whether every row has all trials.
    """
    trials, draws = f"{'n of ' * (not whole)}{number_of_trials(runs)}", _draws(runs)
    error, few = "mean ± standard error over trials (ddof=1); ", ""
    if runs.groupby("dataset_label")["trial"].nunique().max() < LEAST:
        error, few = "", ", too few for an error"
    directions = [f"{m}: {'higher' if up else 'lower'} is better" for m, up in higher.items()]
    down = ", ".join(m for m, up in higher.items() if not up)
    selection = f"Selection {rule.full_name}"
    clause = re.split(r"; | \(|, (?:each|which) ", rule.description)[0]
    text = (
        f"Values: in split of the test environments; {error}trials: {trials}{few}, hparam draws: "
    )
    brief = "Mean ± standard error over " * bool(error)
    brief += f"{trials} trial{'s' * (trials != '1')}{few}; draws: "
    found: list[AnyNote] = [
        Note(f"{selection}: {rule.description}.", f"{selection}: {clause}."),
        Note(f"{text}{draws}.", f"{brief}{draws.replace(' (random)', '')}."),
    ]
    for once in runs["hparams_from"].dropna().unique():
        end = "± leaves out the variance of that choice."
        brief = f"Hyperparameters were chosen once: {end}"
        found.append(Note(f"Hyperparameters were {once}: {end}", brief))
    if directions:
        found.append(Note(f"{'; '.join(directions)}.", down and f"Lower is better: {down}."))
    return tuple(found)


def remarks(runs: pd.DataFrame) -> tuple[AnyNote, ...]:
    """The notes that a paper leaves out: how the runs ended, and the code that trained them."""
    states = runs["state"].value_counts()
    ended = [*COMPLETE, State.FAILED, *[State.BROKEN] * (State.BROKEN in states)]
    counts = [f"{states.get(s, 0)} {s}" for s in ended]
    counts.append(f"{len(runs) - sum(states.get(s, 0) for s in ended)} missing")
    there = [text for text in counts if not text.startswith("0 ")]
    incomplete = "" if there == counts[:1] else "; n such as 4/5 is incomplete and not ranked"
    made = {id(p): p for p in runs["provenance"] if p}.values()  # runs of a board share them
    codes = sorted({code(p) for p in made}) or ["none yet"]
    return (
        Note(
            f"Runs: {', '.join(counts)}, of {len(runs)}. "
            "n: trials whose runs all ended; a row with n such as 4/5 is incomplete and not ranked.",
            f"Runs: {', '.join(there)}{incomplete}.",
        ),
        *_of_data(runs),
        *_audited(runs),
        *_diverged_or_broken(runs),
        *_repeated(runs),
        Note(f"Code: {'; '.join(codes)}.", f"Code: {codes[0]}{' and others' * (len(codes) > 1)}."),
        *_mixed(runs),
    )


def _of_data(runs: pd.DataFrame) -> list[Note]:
    known = runs[["dataset_label", "data_notes"]].dropna().itertuples(index=False, name=None)
    said = list(dict.fromkeys(f"{label}: {text}" for label, texts in known for text in texts))
    more = f", and {len(said) - 1} more of the data" * (len(said) > 1)
    return [Note(f"{'; '.join(said)}.", f"{first}{more}.") for first in said[:1]]


def findings_of(runs: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """What audits found in the runs' data, by dataset label."""
    if "findings" not in runs:
        return {}
    pairs = runs[["dataset_label", "findings"]].dropna().itertuples(index=False, name=None)
    return {label: found for label, found in pairs if found}


def _audited(runs: pd.DataFrame) -> list[Note]:
    found = [(label, f) for label, each in findings_of(runs).items() for f in each]
    said = "; ".join(f"{label}: {f['sentence']}" for label, f in found)
    kinds = ", ".join(dict.fromkeys(f["kind"] for _, f in found))
    return [Note(f"Found in the data: {said}.", f"Found in the data: {kinds}.")] * bool(found)


def _diverged_or_broken(runs: pd.DataFrame) -> list[AnyNote]:
    sentences: list[AnyNote] = []
    if diverged := _names(runs, State.DIVERGED):
        number = counted(list(runs["state"]).count(State.DIVERGED), "run")
        how = "counted with what they recorded"
        text = f"Diverged, {how}: {', '.join(diverged)}."
        sentences.append(Note(text, f"{number} diverged, {how}."))
    if broken := _names(runs, State.BROKEN):
        sentences.append(f"Broken, counted nowhere: {'; '.join(broken)}.")
    return sentences


def _names(runs: pd.DataFrame, state: State) -> list[str]:
    columns = ["label", "dataset_label", "test_environments", "trial", "draw", "error"]
    ended = runs.loc[runs["state"] == state, columns].to_numpy()
    names = [
        f"{label} on {dataset} (test {'+'.join(tests)}, trial {trial}, draw {draw})"
        + f", as {error}" * bool(error)
        for label, dataset, tests, trial, draw, error in ended[:NAMED]
    ]
    return [*names, *[f"{len(ended) - NAMED} more"] * (len(ended) > NAMED)]


def _repeated(runs: pd.DataFrame) -> list[Note]:
    twice = runs[runs.duplicated([*CELL, "draw"], keep=False)]
    names = twice[["label", "dataset_label"]].drop_duplicates().to_numpy()
    rows = [f"{label} on {dataset}" for label, dataset in names]
    text = (
        f"Several settings under one name: {', '.join(rows)}. The rule chooses among all of them, which "
        "other rows cannot; a new label or results directory keeps them apart."
    )
    return [Note(text, f"Several settings under one name: {some(rows, 1)}.")] * bool(rows)


def _mixed(runs: pd.DataFrame) -> list[Note]:
    made = list(runs.loc[runs["state"].isin(COMPLETE), "provenance"])
    number = Counter(map(id, made))  # runs that were trained together share one
    distinct = {id(p): p for p in made}
    words, found = {"True": "yes", "False": "no"}, {}
    for name in ("threads", "torch", "device", "vectorized"):
        counts = Counter[str]()
        for key, p in distinct.items():
            if name in p:
                counts[str(p[name]).partition(":")[0]] += number[key]
        if len(counts) > 1:
            texts = (f"{words.get(v, v)} ({counted(n, 'run')})" for v, n in sorted(counts.items()))
            found[name] = f"{name}: {', '.join(texts)}"
    start = "Trained differently, equal up to round-off"
    text, brief = (f"{start}: {x}." for x in ("; ".join(found.values()), ", ".join(found)))
    return [Note(text, brief)] * bool(found)


def number_of_trials(runs: pd.DataFrame) -> str:
    """The datasets' number of trials, such as `10`, or `10 to 40` if they differ."""
    counts = runs.groupby("dataset_label")["trial"].nunique()
    return " to ".join(map(str, dict.fromkeys((counts.min(), counts.max()))))


def _draws(runs: pd.DataFrame) -> str:
    draws = runs.groupby("label", sort=False)["draw"].nunique()
    settings = dict(runs.groupby(CELL).size().groupby("label").max())  # several may share a draw
    counts = {label: max(n, settings[label]) for label, n in draws.items()}
    texts = {label: "1" if n == 1 else f"{n} (random)" for label, n in counts.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{label} {text}" for label, text in texts.items())


def range_notes(*tables: pd.DataFrame) -> list[Note]:
    """Notes on rows whose search ranges depend on the dataset or differ from the baseline's.

    A draw takes a hyperparameter at the same quantile on every dataset, so its values reveal the ranges. A
    range depends on the dataset if a draw has several values. It differs from the baseline's if a
    hyperparameter that both have differs in the same dataset and draw.
    """
    columns = ["dataset_label", "trial", "draw", "label", "hparams"]
    plain = pd.concat([runs.loc[~runs["ceiling"], columns] for runs in tables])
    plain = plain.drop_duplicates(["dataset_label", "draw", "label"])  # trials have the same draws
    baseline = plain[plain["label"] == BASELINE].itertuples(index=False, name=None)
    of_baseline = {tuple(cell): hparams for *cell, _, hparams in baseline}
    varying: dict[str, None] = {}
    others: dict[str, set[str]] = {}
    first: dict[tuple[object, ...], object] = {}
    for *cell, label, hparams in plain.itertuples(index=False, name=None) if of_baseline else ():
        base = of_baseline.get(tuple(cell), {})
        for name, value in hparams.items():
            if name in base:
                if base[name] != value:
                    others.setdefault(label, set()).add(name)
            elif first.setdefault((label, *cell[1:], name), value) != value:
                varying[label] = None
    notes: list[Note] = []
    if varying:
        text = f"The search ranges of {', '.join(varying)} depend on the kind of data."
        short = f"Among all rows, the search ranges of {len(varying)} depend on the kind of data."
        notes.append(Note(text, short))
    if others:
        names = ", ".join(sorted(set().union(*others.values())))
        text = f"Rows with other values of {names} than {BASELINE} in the same draw"
        notes.append(Note(f"{text}: {', '.join(others)}.", f"{text}: {len(others)}."))
    return notes


def trained_by(board: pd.DataFrame, here: pd.DataFrame | None = None) -> str:
    """The versions and machines that trained a board's runs, and those here if they differ."""
    frozen = made_by(board["provenance"])
    local = frozen if here is None else made_by(here["provenance"])
    if local in ("", frozen):
        return f"Trained by {frozen}."
    return f"The board was trained by {frozen}; the runs here by {local}."
