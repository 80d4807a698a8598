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

Integers = npt.NDArray[np.integer]
Numbers = npt.NDArray[np.float64]


def _check_sentences(rule: type["Rule"]) -> None:
    sentences = {"summary": "the sentence on it below a table", "needs": "what it needs"}
    for name, meaning in sentences.items():
        if not isinstance(getattr(rule, name, None), str):
            raise UserError(f"the selection rule {rule.__name__} has no `{name}`: {meaning}")


selection_rules: Registry[type["Rule"]] = Registry(
    "selection rule", "oodbench.selection.Rule", "oodbench.selection_rules", _check_sentences
)
register = selection_rules.add
USUAL = "train_val"
"""The rule of a sweep where neither the user, the sweep nor another rule's `is_usual` decides."""


class Rule(ABC):
    """A selection rule: the records by which a run is judged, and the score that they give it.

    A rule is one class that sets the sentences `summary` and `needs`, and defines `evidence`. It is
    registered by `@register("NAME")` here, in a module that an entry point of the group
    `oodbench.selection_rules` names, or in a plug-in.
    """

    summary: ClassVar[str]
    """The sentence on the rule below a table."""
    needs: ClassVar[str]
    """The requirement of the rule on a sweep."""
    sees_test: ClassVar[bool] = False
    """Whether it sees the test environments: no table compares it with others, no board ranks by it."""
    judges_alone: ClassVar[bool] = True
    """Whether a run's spec and records are enough to judge it; only then can weights be kept by it."""
    frozen: ClassVar[bool] = False
    """Whether boards freeze the rule's choices."""
    reads_predictions: ClassVar[bool] = False
    """Whether it reads kept predictions, which takes long: it judges only where it is named."""
    rows: ClassVar[Collection[str]] = ()
    """The labels of the rows that the rule cannot work without."""

    def __init__(self, name: str, metric: str | None = None) -> None:
        """Take `metric`, the metric whose score decides; None: each dataset's main one."""
        self.name = name
        self.metric = metric

    @property
    def sees_attributes(self) -> bool:
        """Whether it judges by a metric that asks for the examples' attributes."""
        return self.metric is not None and sees_attributes(self.metric)

    @property
    def description(self) -> str:
        """The sentence below a table; it begins with the metric that decides if the dataset has another."""
        sight = "; it sees the attributes of these examples" if self.sees_attributes else ""
        return f"{self.metric}, {self.summary}{sight}" if self.metric else self.summary

    @abstractmethod
    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The records that decide: rows of `id` (the run that is judged), `source` (the run whose
        records count; missing if it is not in the sweep), `environment` and `split`.

        `runs` has a row for each run, with the columns `id`, the fields of `RunSpec` and
        `training_environments`. Where `judges_alone` is False, it is always the whole sweep, with the
        other columns of `Tables.runs`, too; else it may be a single run that has not ended.
        """

    def score(self, values: Numbers, weights: Numbers, higher_is_better: bool) -> Numbers:
        """The score of runs at each of their recorded steps, (..., steps); NaN is the worst.

        `values` (..., steps, sets) are those of the metric on each row of the evidence, in its order, NaN
        where it is not recorded; `weights` are each row's share of its environment's examples. The default
        is the mean over environments, with the same bits in any order of the rows. A step's score may
        depend on earlier steps, never on later ones: weights are kept while a run is trained.
        """
        ordered = np.sort(values * weights)
        return np.asarray(ordered.cumsum(-1)[..., -1] / weights.sum(-1).round())

    def records(self, tables: Tables) -> pd.DataFrame:
        """The records in which the evidence is looked up; those of the runs, unless a rule adds some."""
        records: pd.DataFrame = tables.records
        return records

    @classmethod
    def is_usual(cls, runs: pd.DataFrame) -> bool:
        """Whether tables of these runs use it where neither the user nor the sweep names a rule."""
        return False

    def evidence_of(
        self, spec: RunSpec, training_environments: Sequence[str]
    ) -> list[tuple[str, str]]:
        """The environments and splits by which the rule judges a run; none where it cannot."""
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
    """The evidence of a rule.

    Raises UserError if the rule fails, if a column of EVIDENCE is missing, and for a test environment among
    the evidence of a rule that does not say that it sees them.
    """
    with blaming(f"selection rule {rule.name}"):
        return _evidence_by(rule, runs)


def _evidence_by(rule: Rule, runs: pd.DataFrame) -> pd.DataFrame:
    evidence: object = rule.evidence(runs)
    columns = evidence.columns if isinstance(evidence, pd.DataFrame) else ()
    if not isinstance(evidence, pd.DataFrame) or not {*EVIDENCE} <= {*columns}:
        wanted = f"a table with the columns {', '.join(EVIDENCE)}"
        given = evidence if evidence is None else f"one with {', '.join(map(str, columns))}"
        raise wrong_result("evidence", f"the selection rule {rule.name}", wanted, given)
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


def shares(counts: Integers, environments: Integers) -> Numbers:
    """Each count's share of the sum over its environment, which is numbered from 0; both (n,)."""
    return np.asarray(counts / np.bincount(environments, counts)[environments])


def records_on(runs: pd.DataFrame, environments: str, *splits: str) -> pd.DataFrame:
    """The records on `splits` of the environments that the column `environments` lists."""
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
    name: str, specs: Sequence[RunSpec], training_environments: Sequence[Sequence[str]]
) -> None:
    """Raise UserError if the named rule cannot judge any of these runs.

    A rule that asks for more than is known before they start is not checked here.
    """
    rule = find_rule(name)
    if not {*rule.rows} <= {spec.label for spec in specs}:
        raise unserved(rule)
    with suppress(AttributeError, KeyError):
        evidence = _evidence_by(rule, _frame(specs, training_environments))
        if evidence["source"].isna().all():
            raise unserved(rule)


def unserved(rule: Rule) -> UserError:
    """The error for a rule that can judge no run of a sweep."""
    return UserError(f"selection {rule.name} needs {rule.needs}, and this sweep has none")


def rule_names() -> list[str]:
    """The rules that records suffice for: those that judge runs alone first, that see tests last."""
    rules = {n: rule for n, rule in selection_rules.items() if not rule.reads_predictions}
    return sorted(rules, key=lambda n: (rules[n].sees_test, not rules[n].judges_alone, n))


def find_rule(name: str, place: str = "", plugins: Collection[str] = ()) -> Rule:
    """The rule of that name, or `RULE:METRIC` for one that judges by another recorded metric.

    Raises UserError with the nearest names, and the `plugins` of the sweep, if there is no such rule;
    `place` is where it was named.
    """
    base, colon, metric = name.partition(":")
    rule = selection_rules.find(base)
    if rule is None or (colon and not metric):
        raise unknown(selection_rules.noun, name, [*selection_rules], place, plugin_hint(plugins))
    return rule(base, metric or None)


def sees_test(name: str) -> bool:
    """Whether a rule, which may end in `:METRIC`, is known to see the test environments."""
    base = name.partition(":")[0]
    return base in selection_rules and selection_rules.get(base).sees_test


def usual(tables: Tables) -> str:
    """The rule that tables use by default.

    It is the one that the sweep names (its key `selection`); else the one that is usual for such runs,
    as `val_env` where every run holds validation environments out; else `train_val`.
    """
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
        return with_records(tables.records, found)


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
