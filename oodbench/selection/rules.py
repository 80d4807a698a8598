"""The selection rules that are there without a plug-in."""

from typing import Any

import numpy as np
import pandas as pd

from oodbench.metrics.from_predictions import right_of
from oodbench.results.predictions import predictions_of_runs
from oodbench.results.run_spec import COMPLETE
from oodbench.results.tables import CELL, Tables, stacked
from oodbench.selection import USUAL, Numbers, Rule, records_on, register

INFERRED = ("inferred 0", "inferred 1")


@register(USUAL)
class TrainVal(Rule):
    """The training environments' held-out examples decide."""

    summary = (
        "mean over the out splits of the training environments; where a shortcut also holds on "
        "unseen examples of these, it prefers the shortcut, and only held-out environments can "
        "tell (val_env)"
    )
    needs = "a holdout above 0, so that the training environments have an out split"
    frozen = True

    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The `out` splits of the training environments."""
        return records_on(runs, "training_environments", "out")


@register("val_env")
class ValEnv(Rule):
    """The validation environments decide."""

    summary = "mean over the validation environments (all their examples), which no run trained on"
    needs = "`validation_environments:` (names, or a number of them drawn per trial)"
    frozen = True

    @classmethod
    def is_usual(cls, runs: pd.DataFrame) -> bool:
        """Whether every run holds validation environments out."""
        return bool(len(runs) and runs["validation_environments"].map(bool).all())

    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        """All examples of the validation environments."""
        return records_on(runs, "validation_environments", "in", "out")


@register("leave_one_out")
class LeaveOneOut(Rule):
    """Runs that also leave out one of the training environments decide."""

    summary = (
        "mean over the training environments, each scored by the run of the same draw, trial "
        "and step that also leaves it out (no value where the sweep lacks such a run)"
    )
    needs = (
        "each test environment alone and in a pair with every other environment "
        "(`test_environments: pairs`)"
    )
    judges_alone = False

    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        """For test set {T}: v's `in` split in the run {T, v}, for each training environment v."""
        sizes = runs["test_environments"].map(len)
        pairs = runs[sizes == 2].rename(columns={"id": "source"})
        ends = pairs["test_environments"]
        both = [pairs.assign(test=ends.str[i], environment=ends.str[1 - i]) for i in (0, 1)]
        same = ["dataset_label", "label", "draw", "trial", "test", "environment"]
        judges = pd.concat(both)[["source", *same]]
        singles = runs[sizes == 1]
        singles = singles.assign(test=singles["test_environments"].str[0])
        singles = singles[singles["test"].isin(judges["test"])].explode("training_environments")
        singles = singles.rename(columns={"training_environments": "environment"})
        singles = singles.dropna(subset=["environment"])
        return singles[["id", *same]].merge(judges, on=same, how="left").assign(split="in")


@register("worst_inferred")
class WorstInferred(Rule):
    """The worse of two environments decides, which ERM's last predictions infer (arXiv:2410.05345).

    One has the mistakes of ERM's lowest draw, and the other the rest; an empty one has all examples. Of
    two classes these are the environments with the largest penalty of EIIL (arXiv:2010.07249).
    """

    summary = (
        "the worse of ERM's mistakes and the rest, on the out splits of the training environments"
    )
    needs = "accuracies, a row ERM, a holdout above 0, and `launch --keep-predictions`"
    judges_alone = False
    reads_predictions = True
    rows = ("ERM",)

    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Both inferred environments, of ended runs; `erm` is the run that infers."""
        ended = runs["state"].isin(COMPLETE) & ~runs["frozen"].eq(True) & (runs["holdout"] > 0)
        runs = runs.assign(source=runs["id"], split="out")[ended & (runs["metric"] == "accuracy")]
        same = [name for name in CELL if name != "label"]
        erm = runs[(runs["label"] == "ERM") & (runs["algorithm"] == "ERM")].sort_values("draw")
        erm = erm.drop_duplicates(same).rename(columns={"id": "erm"})[["erm", *same]]
        table = runs[["id", "source", "split", "training_environments", *same]].merge(erm, on=same)
        return table.merge(pd.DataFrame({"environment": INFERRED}), how="cross")

    def score(self, values: Numbers, weights: Numbers, higher_is_better: bool) -> Numbers:
        """The lower of both accuracies."""
        return np.asarray(values.min(-1))

    def records(self, tables: Tables) -> pd.DataFrame:
        """The runs' records, and their accuracies in both environments."""
        read, found = predictions_of_runs(tables.runs), list[tuple[object, ...]]()
        judged: Any = self.evidence(tables.runs).drop_duplicates("id")
        steps = tables.records.groupby("id", observed=True)["step"].unique()
        for run in judged.itertuples():
            of_erm = read(run.erm, steps[run.erm].max())
            at = [(e, of_erm[e].out) for e in run.training_environments]
            fits = np.concatenate([right_of(of_erm[e])[out] for e, out in at])
            for step in steps[run.id]:
                p = read(run.id, step)
                right = np.concatenate([right_of(p[e])[out] for e, out in at])
                for name, member in zip(INFERRED, (fits, ~fits), strict=True):
                    of = right[member] if member.any() else right
                    found.append((run.id, step, name, "out", "accuracy", of.mean(), len(of)))
        names = dict.fromkeys(("id", "environment", "split", "metric"), "category")
        table = pd.DataFrame(found, columns=list(Tables.RECORD_COLUMNS)).astype(names)
        return stacked([tables.records, table])


@register("oracle")
class Oracle(Rule):
    """The test environments decide."""

    summary = (
        "mean over the out splits of the test environments, which no other rule sees: not "
        "comparable with them"
    )
    needs = "a holdout above 0, so that the test environments have an out split"
    sees_test = True
    frozen = True

    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The `out` splits of the test environments."""
        return records_on(runs, "test_environments", "out")
