"""Selection rules: the records by which a run may be judged, and the score that they give it.

`oodbench.selection.judge` applies a rule to the records.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from oodbench.errors import UserError, blaming, described, plugin_hint, unknown, wrong_result
from oodbench.metrics import sees_attributes
from oodbench.metrics.builtin import right_of
from oodbench.registry import Registry
from oodbench.results.predictions import predictions_of_runs
from oodbench.results.run_spec import COMPLETE, RunSpec
from oodbench.results.tables import CELL, Tables, with_records

Counts = npt.NDArray[np.integer | np.floating]
Numbers = npt.NDArray[np.float64]


def _check_sentences(rule: type["Rule"]) -> None:
    sentences = {"summary": "the sentence on it below a table", "needs": "what it needs"}
    for name, meaning in sentences.items():
        if not isinstance(getattr(rule, name, None), str):
            raise UserError(f"the selection rule {rule.__name__} has no `{name}`: {meaning}")


selection_rules = Registry[type["Rule"]](
    "selection rule", "oodbench.selection.Rule", "oodbench.selection_rules", _check_sentences
)
register = selection_rules.add
USUAL = "train_val"
"""The rule if neither the user nor the sweep names one and no other rule `is_usual`."""


class Rule(ABC):
    """A selection rule: the records by which a run is judged, and the score that they give it.

    A rule is one class that sets the sentences `summary` and `needs`, and defines `evidence`. It is
    registered by `@register("NAME")` here, in a module that an entry point of the group
    `oodbench.selection_rules` names, or in a plug-in.
    """

    summary: ClassVar[str]
    """One sentence, which stands below every table that selects by the rule."""
    needs: ClassVar[str]
    """What a sweep must have for the rule, as the end of an error."""
    sees_test: ClassVar[bool] = False
    """Whether the rule sees the test environments: it is not compared with others, and ranks no board."""
    judges_alone: ClassVar[bool] = True
    """Whether a run's spec and records are enough to judge it; only such a rule can keep weights."""
    frozen: ClassVar[bool] = False
    """Whether boards freeze the rule's choices."""
    reads_predictions: ClassVar[bool] = False
    """Whether the rule reads kept predictions, which takes long: it judges only if a user names it."""
    rows: ClassVar[Collection[str]] = ()
    """The labels of the rows that the rule requires."""

    def __init__(self, name: str, metric: str | None = None) -> None:
        """A rule that judges by `metric`, or by each dataset's main metric."""
        self.name = name
        self.metric = metric

    @property
    def full_name(self) -> str:
        """RULE, or RULE:METRIC if the rule's metric is not the dataset's own."""
        return f"{self.name}:{self.metric}" if self.metric else self.name

    @property
    def sees_attributes(self) -> bool:
        """Whether the rule's metric reads the examples' attributes."""
        return self.metric is not None and sees_attributes(self.metric)

    @property
    def description(self) -> str:
        """The `summary`, after the rule's metric if that is not the dataset's own."""
        sight = "; it sees the attributes of these examples" if self.sees_attributes else ""
        return f"{self.metric}, {self.summary}{sight}" if self.metric else self.summary

    @abstractmethod
    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The records that decide, one per row: `id` (the run that is judged), `source` (the run that
        has the record; missing if the sweep lacks that run), `environment` and `split`.

        `runs` has one run per row, with the columns `id` (another in each row, as a run may stand in
        several rows of a table), the fields of `RunSpec` and `training_environments`. If `judges_alone`
        is False, it is the whole sweep with all columns of `Tables.runs`; otherwise it may be a single
        run that has not ended.
        """

    def score(self, values: Numbers, weights: Numbers, higher_is_better: bool) -> Numbers:
        """The score at each recorded step, (..., steps); NaN is the worst.

        `values` (..., steps, sets) are the metric on each row of the evidence, NaN if not recorded.
        `weights`, of the same shape, are each row's share of its environment's examples. The default
        is the mean over environments, with the same bits in any order of rows. A score may depend on
        earlier steps, but not on later ones, because weights are kept during training.
        """
        ordered = np.sort(values * weights)
        return np.asarray(ordered.cumsum(-1)[..., -1] / weights.sum(-1).round())

    def records(self, tables: Tables) -> pd.DataFrame:
        """The records that contain the evidence: those of the runs, and what a rule adds."""
        records: pd.DataFrame = tables.records
        return records

    @classmethod
    def is_usual(cls, runs: pd.DataFrame) -> bool:
        """Whether the rule is the default for these runs."""
        return False

    def evidence_of(
        self, spec: RunSpec, training_environments: Sequence[str]
    ) -> list[tuple[str, str]]:
        """The (environment, split) pairs by which the rule judges a run; empty if it cannot."""
        evidence = self._evidence_alone([spec], training_environments)
        return list(zip(evidence["environment"], evidence["split"], strict=True))

    def judged(self, specs: Sequence[RunSpec]) -> set[str]:
        """The ids of the runs that the rule can score alone."""
        return set(self._evidence_alone(specs, ("any",))["id"]) if specs else set()

    def _evidence_alone(
        self, specs: Sequence[RunSpec], training_environments: Sequence[str]
    ) -> pd.DataFrame:
        try:
            return _evidence_by(self, _frame(specs, [training_environments] * len(specs)))
        except (AttributeError, KeyError) as error:
            raise UserError(
                f"selection rule {self.name}: {described(error)}; a run judged alone has only `id`, "
                "the fields of its spec and `training_environments`; a rule that needs more sets "
                "`judges_alone = False`"
            ) from error


EVIDENCE = ("id", "source", "environment", "split")
"""The columns of evidence."""


def evidence_by(rule: Rule, runs: pd.DataFrame) -> pd.DataFrame:
    """A rule's evidence.

    Raises UserError if the rule fails, if it lacks a column of EVIDENCE, or if it reads a test environment
    without `sees_test`.
    """
    with blaming(f"selection rule {rule.name}"):
        return _evidence_by(rule, runs)


def _evidence_by(rule: Rule, runs: pd.DataFrame) -> pd.DataFrame:
    evidence: object = rule.evidence(runs)
    who, wanted = f"the selection rule {rule.name}", f"a table with {', '.join(EVIDENCE)}"
    if not isinstance(evidence, pd.DataFrame):
        raise wrong_result("evidence", who, wanted, evidence)
    if missing := [name for name in EVIDENCE if name not in evidence]:
        raise UserError(f"`evidence` of {who} must return {wanted}: it lacks {', '.join(missing)}")
    if not rule.sees_test:
        tests = runs[["id", "test_environments"]].explode("test_environments")
        tests = tests.rename(columns={"test_environments": "environment"})
        seen = evidence[["id", "environment"]].astype(object).merge(tests.astype(object))
        if len(seen):
            raise UserError(
                f"selection rule {rule.name} judges by the test environment "
                f"'{seen['environment'][0]}': write `sees_test = True` into its class"
            )
    return evidence


def score_by(rule: Rule, values: Numbers, weights: Numbers, higher_is_better: bool) -> Numbers:
    """The scores by a rule; raises UserError if it fails, or their shape is not (..., steps)."""
    with blaming(f"selection rule {rule.name}"):
        scores = np.asarray(rule.score(values, weights, higher_is_better))
    if scores.shape != values.shape[:-1]:
        wanted = f"an array of the shape {values.shape[:-1]}"
        raise wrong_result("score", f"the selection rule {rule.name}", wanted, scores)
    return scores


def shares(counts: Counts, environments: npt.NDArray[np.integer]) -> Numbers:
    """Each count's share of the sum over its environment, which is numbered from 0; both (n,)."""
    return np.asarray(counts / np.bincount(environments, counts)[environments])


def records_on(runs: pd.DataFrame, environments: str, *splits: str) -> pd.DataFrame:
    """Evidence from the `splits` of the environments in the column `environments`, such as
    `training_environments`.
    """
    table = runs[["id", "holdout", environments]].explode(environments)
    table = table.rename(columns={environments: "environment"}).dropna(subset=["environment"])
    table = table.assign(source=table["id"]).merge(pd.DataFrame({"split": splits}), how="cross")
    return table[(table["split"] == "in") | (table["holdout"] > 0)]


def _frame(
    specs: Sequence[RunSpec], training_environments: Sequence[Sequence[str]]
) -> pd.DataFrame:
    rows = [vars(spec) | {"id": spec.id, "dataset_label": spec.dataset_name} for spec in specs]
    return pd.DataFrame(rows).assign(training_environments=pd.Series([*training_environments]))


def require_evidence(
    rule: Rule, specs: Sequence[RunSpec], training_environments: Sequence[Sequence[str]]
) -> None:
    """Raise UserError if a rule cannot judge any of these runs.

    Rules that read more than a plan contains are not checked.
    """
    if not {*rule.rows} <= {spec.label for spec in specs}:
        raise unserved(rule)
    with suppress(AttributeError, KeyError):
        evidence = _evidence_by(rule, _frame(specs, training_environments))
        if evidence["source"].isna().all():
            raise unserved(rule)


def unserved(rule: Rule) -> UserError:
    """The error if a rule cannot judge any of a sweep's runs."""
    return UserError(f"selection {rule.name} needs {rule.needs}, and this sweep has none")


def rule_names() -> list[str]:
    """The rules that read no predictions: rules that judge runs alone first, test-domain rules last."""
    rules = {n: rule for n, rule in selection_rules.items() if not rule.reads_predictions}
    return sorted(rules, key=lambda n: (rules[n].sees_test, not rules[n].judges_alone, n))


def find_rule(name: str, place: str = "", plugins: Collection[str] = ()) -> Rule:
    """The rule called `name`, which is RULE or RULE:METRIC.

    Raises UserError for an unknown rule, with the `place` of the name and the sweep's `plugins`.
    """
    base, colon, metric = str(name).partition(":")
    rule = selection_rules.find(base)
    if rule is None or (colon and not metric):
        raise unknown(selection_rules.noun, name, [*selection_rules], place, plugin_hint(plugins))
    return rule(base, metric or None)


def sees_test(name: str) -> bool:
    """Whether a rule (RULE or RULE:METRIC) is registered and sees the test environments."""
    base = name.partition(":")[0]
    return base in selection_rules and selection_rules.get(base).sees_test


def usual(tables: Tables) -> str:
    """The default rule: the sweep's `selection`, else the first that `is_usual`, else `train_val`."""
    runs = tables.runs
    named = set(runs["selection"].dropna()) if "selection" in runs else set()
    if len(named) == 1:
        return str(named.pop())
    for name in rule_names():
        with blaming(f"selection rule {name}"):
            if selection_rules.get(name).is_usual(runs):
                return name
    return USUAL


INFERRED = ("inferred 0", "inferred 1")


@register(USUAL)
class TrainVal(Rule):
    """Selects on held-out examples of the training environments."""

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
    """Selects on the validation environments."""

    summary = "mean over the validation environments (all their examples), which no run trained on"
    needs = "`validation_environments:` (names, or a number of them drawn per trial)"
    frozen = True

    @classmethod
    def is_usual(cls, runs: pd.DataFrame) -> bool:
        """Whether every run has validation environments."""
        return bool(len(runs) and runs["validation_environments"].map(bool).all())

    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        """All examples of the validation environments."""
        return records_on(runs, "validation_environments", "in", "out")


@register("leave_one_out")
class LeaveOneOut(Rule):
    """Selects by runs that hold out one more environment."""

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
        """For the test set {T}: the `in` split of v in the run that holds out {T, v}, for each v."""
        same = ["dataset_label", "label", "draw", "trial", "test", "environment"]
        runs = runs[["id", *same[:4], "test_environments", "training_environments"]]
        sizes = runs["test_environments"].map(len)
        pairs = runs[sizes == 2].rename(columns={"id": "source"})
        ends = pairs["test_environments"]
        both = [pairs.assign(test=ends.str[i], environment=ends.str[1 - i]) for i in (0, 1)]
        judges = pd.concat(both)[["source", *same]]
        singles = runs[sizes == 1]
        singles = singles.assign(test=singles["test_environments"].str[0])
        singles = singles[singles["test"].isin(judges["test"])].explode("training_environments")
        singles = singles.rename(columns={"training_environments": "environment"})
        singles = singles.dropna(subset=["environment"])
        return singles[["id", *same]].merge(judges, on=same, how="left").assign(split="in")


@register("worst_inferred")
class WorstInferred(Rule):
    """Selects by the worse of two environments inferred from ERM's last predictions (arXiv:2410.05345).

    They are the mistakes of ERM's lowest draw, and the rest; an empty one is replaced by all examples. For
    two classes, this partition maximizes the penalty of EIIL (arXiv:2010.07249).
    """

    summary = (
        "the worse of ERM's mistakes and the rest, on the out splits of the training environments"
    )
    needs = "accuracies, a row ERM, a holdout above 0, and `launch --keep-predictions`"
    judges_alone = False
    reads_predictions = True
    rows = ("ERM",)

    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Both inferred environments for every ended run; `erm` is the run that infers them."""
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
        """The runs' records, and their accuracies on both inferred environments."""
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
        return with_records(tables.records, found)


@register("oracle")
class Oracle(Rule):
    """Selects on the test environments."""

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
