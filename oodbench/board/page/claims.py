"""Claims of papers about kinds of methods, and what a board's numbers say of each."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pandas as pd

from oodbench.board.page.contents import Contents
from oodbench.board.page.tables import sign
from oodbench.datasets import datasets as registered
from oodbench.errors import UserError
from oodbench.report.formats import Block
from oodbench.report.gap_tables import BASELINE, Gaps
from oodbench.report.numbers import counted

HOLDS, IN_PART, OPEN, NOT = "holds", "holds in part", "undecided", "does not hold"


@dataclass(frozen=True)
class Claim:
    """Rows that should gain over the baseline on some datasets."""

    says: str
    source: str
    rows: tuple[str, ...]
    """Methods by their names, or rows by their labels; `average`: every row with a weight average."""
    datasets: tuple[str, ...] = ()
    """Registered names, each followed by the `OPTION=VALUE` that the dataset must have."""
    shift_kind: str = ""
    """Instead of names: the datasets with this kind of shift."""


MASKS = ("ANDMask", "ExampleANDMask", "TemporalANDMask", "SANDMask", "XORMask")
PENALTIES = ("IRM", "VREx", "MMREx", "Fishr", "IGA", "IB_IRM", "LinearIRM", "LinearVREx")
WEIGHTS = ("GroupDRO over groups", "ERM + RWG", "ERM + SUBG", "DFR", "CRT", "JTT", "AFR")
MIXES = ("Mixup", "OrgMixup", "LISA", "CutMix", "SagNet")
CLAIMS = (
    Claim("sign agreement finds spirals", "arXiv:2009.00329", MASKS, ("Spirals",)),
    Claim(
        "sign agreement passes unit test 3", "arXiv:2102.10867", MASKS, ("LinearUnitTests example=3",)
    ),
    Claim("penalties on risks solve SEMs", "arXiv:1907.02893", PENALTIES, ("LinearSEM",)),
    Claim("penalties ignore colour", "arXiv:2003.00688", PENALTIES, ("ColoredDigits",)),
    Claim("groups' weights ignore backgrounds", "arXiv:1911.08731", WEIGHTS, ("DigitsOnBackgrounds",)),
    Claim("augmentation helps with style", "arXiv:2006.10726", MIXES, shift_kind="style"),
    Claim("weight averages help with style", "arXiv:2102.08604", ("average",), shift_kind="style"),
)  # fmt: skip


def about(gaps: Gaps) -> str:
    """The note that says how to read the table."""
    return (
        f"Each claim on each dataset that it is about, by {gaps.rule}. *Gain*: rows that gain over "
        f"{BASELINE} after Holm's correction over all rows and datasets of the board. *Uncorrected*: "
        "further rows whose own 95 % interval is above 0. *Lose*: rows whose interval is below 0. A claim "
        f"{HOLDS} where at least half of its rows gain and none loses, and {IN_PART} where some gain "
        f"otherwise; it is {OPEN} where intervals alone are above 0, and {NOT} where none is. Numbers are "
        "shares of the gap."
    )


def claims(contents: Contents, gaps: Gaps) -> Block:
    """A table of the evidence for each claim, with a row for each dataset that it is about."""
    rows = []
    runs = contents.frames.runs
    for claim in CLAIMS:
        labels = _labels(claim, runs)
        for dataset in map(str, gaps.trials.index.unique("dataset")):
            tested = [x for d, x in gaps.signs if d == dataset and x in labels]
            if tested and _is_about(claim, runs, dataset):
                says = f"{claim.says} ({claim.source})"
                rows.append([says, dataset, str(len(tested)), *_evidence(gaps, dataset, tested)])
    header = ["claim", "dataset", "rows", "gain", "uncorrected", "lose", "best", "verdict"]
    return Block("What papers claim", header, rows, len(rows), keys=2)


def sentence(block: Block) -> str:
    """A sentence with the claims in the table of `claims` by their verdicts."""
    by_verdict: dict[str, list[str]] = {x: [] for x in (HOLDS, IN_PART, OPEN, NOT)}
    for row in block.rows:
        by_verdict[row[-1]].append(f"{row[0].partition(' (')[0]} ({row[1]})")
    parts = [f"{verdict}: {', '.join(names) or 'none'}" for verdict, names in by_verdict.items()]
    return f"Of {counted(len(block.rows), 'claim')} on a dataset, {'; '.join(parts)}."


def _evidence(gaps: Gaps, dataset: str, labels: Sequence[str]) -> list[str]:
    """The cells of a claim's row: which rows gain, gain uncorrected, lose and are best; the verdict."""
    known = gaps.shares.loc[dataset] if dataset in gaps.shares.index else pd.Series(dtype=float)
    shares = known.reindex(list(labels)).dropna()

    def named(chosen: Sequence[str]) -> str:
        ordered = sorted(chosen, key=lambda x: -shares.get(x, 0.0))
        return ", ".join(f"{x} {shares[x]:z.2f}" if x in shares else x for x in ordered) or "none"

    signs = {x: sign(gaps.differences[dataset, x]) for x in labels}
    gain = [x for x in labels if gaps.signs[dataset, x] == 1]
    uncorrected = [x for x in labels if signs[x] == 1 and x not in gain]
    lose = [x for x in labels if signs[x] == -1]
    verdict = OPEN if uncorrected else NOT
    if gain:
        verdict = HOLDS if 2 * len(gain) >= len(labels) and not lose else IN_PART
    best = named([str(shares.idxmax())]) if len(shares) else "-"
    return [named(gain), named(uncorrected), named(lose), best, verdict]


def _labels(claim: Claim, runs: pd.DataFrame) -> set[str]:
    """The labels of the rows that a claim is about."""
    table = runs.drop_duplicates("label")
    plain = table["average"].isna() if "average" in table else pd.Series(True, table.index)
    of_method = table["algorithm"].isin(claim.rows) & plain & (table["label"] == table["algorithm"])
    wanted = of_method | table["label"].isin(claim.rows)
    if "average" in claim.rows:
        wanted |= ~plain
    return set(table.loc[wanted, "label"])


def _is_about(claim: Claim, runs: pd.DataFrame, dataset: str) -> bool:
    """Whether a claim is about a dataset, given by its label."""
    run = runs[runs["dataset_label"] == dataset].iloc[0]
    for entry in claim.datasets:
        name, *options = entry.split(" ")
        if name == run["dataset"] and all(
            str(run["options"].get(option)) == value
            for option, value in (text.split("=") for text in options)
        ):
            return True
    with suppress(UserError):  # a dataset of a plug-in that is not loaded
        return registered.get(run["dataset"]).metadata.shift_kind == (claim.shift_kind or None)
    return False
