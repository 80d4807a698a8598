"""From records to the chosen (run, step) of every cell, by rules that see only what they may.

A cell is one trial of one row of a table with one test set; its candidates are its runs (one a
hparam draw) at every recorded step. A rule is nothing but the records by which a run may be judged,
its evidence: all others are dropped before anything is computed. Draws that tie are averaged in
tables, and the first is the chosen one. How the rules of DomainBed differ (arXiv:2007.01434,
section 3 and its code): the last draw wins a tie, and its oracle sees a run's last step only.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from oodbench.blame import described
from oodbench.errors import UserError, plugin_hint, unknown, wrong_result
from oodbench.metrics import known_direction, sees_attributes
from oodbench.registry import Registry
from oodbench.results.run_spec import COMPLETE, RunSpec
from oodbench.results.tables import CELL, KINDS, Tables, plugins_of, records_at

Integers = npt.NDArray[np.int64]


def _check_sentences(rule: type["Rule"]) -> None:
    """Raise UserError for a rule without the sentences that tables and errors print."""
    sentences = {"summary": "the sentence on it below a table", "needs": "what it needs"}
    for name, meaning in sentences.items():
        if not isinstance(getattr(rule, name, None), str):
            raise UserError(f"the selection rule {rule.__name__} has no `{name}`: {meaning}")


selection_rules: Registry[type["Rule"]] = Registry(
    "selection rule", "oodbench.selection_rules", "oodbench.selection", _check_sentences
)
register = selection_rules.add
USUAL = "train_val"
"""The rule of a sweep where neither the user, the sweep nor another rule's `is_usual` decides."""


class Rule(ABC):
    """A selection rule: the records by which a run is judged, and what may be said and done with it.

    A rule is one class, registered by `@register("NAME")` in this module, in a module that an entry
    point of the group `oodbench.selection_rules` names, or in a plug-in. Tables, pages, kept
    weights and boards ask the class; none of them knows a rule by its name.
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
        """Return the records that decide: rows of `id` (the run that is judged), `source` (the run whose
        records count; missing if it is not in the sweep), `environment` and `split`.

        `runs` has a row for each run, with the columns `id`, the fields of `RunSpec` and
        `training_environments`. Where `judges_alone` is False, it is always the whole sweep, with the
        other columns of `Tables.runs`, too; else it may be a single run that has not ended.
        """

    @classmethod
    def is_usual(cls, runs: pd.DataFrame) -> bool:
        """Return whether tables of these runs use it where neither the user nor the sweep names a rule."""
        return False

    def evidence_of(
        self, spec: RunSpec, training_environments: Sequence[str]
    ) -> list[tuple[str, str]]:
        """Return the environments and splits by which the rule judges a run; none where it cannot."""
        evidence = self._evidence_alone([spec], training_environments)
        return list(zip(evidence["environment"], evidence["split"], strict=True))

    def judged(self, specs: Sequence[RunSpec]) -> set[str]:
        """Return the ids of the runs that the rule can score alone."""
        return set(self._evidence_alone(specs, ("any",))["id"]) if specs else set()

    def _evidence_alone(
        self, specs: Sequence[RunSpec], training_environments: Sequence[str]
    ) -> pd.DataFrame:
        """Return the evidence by which runs are judged before they have records."""
        try:
            return evidence_by(self, _frame(specs, [training_environments] * len(specs)))
        except (AttributeError, KeyError) as error:
            raise UserError(
                f"selection rule {self.name}: {described(error)}; a run judged alone has only `id`, "
                "the fields of its spec and `training_environments`; a rule that needs more sets "
                "`judges_alone = False`"
            ) from error


EVIDENCE = ("id", "source", "environment", "split")
"""The columns of evidence."""


def evidence_by(rule: Rule, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the evidence of a rule; raises UserError if it lacks a column of EVIDENCE."""
    evidence: object = rule.evidence(runs)
    columns = evidence.columns if isinstance(evidence, pd.DataFrame) else ()
    if not isinstance(evidence, pd.DataFrame) or not {*EVIDENCE} <= {*columns}:
        wanted = f"a table with the columns {', '.join(EVIDENCE)}"
        given = evidence if evidence is None else f"one with {', '.join(map(str, columns))}"
        raise wrong_result("evidence", f"the selection rule {rule.name}", wanted, given)
    return evidence


def records_on(runs: pd.DataFrame, environments: str, *splits: str) -> pd.DataFrame:
    """Return the records on `splits` of the environments that the column `environments` lists."""
    table = runs[["id", "holdout", environments]].explode(environments)
    table = table.rename(columns={environments: "environment"}).dropna(subset=["environment"])
    table = table.assign(source=table["id"]).merge(pd.DataFrame({"split": splits}), how="cross")
    return table.query("split == 'in' or holdout > 0")


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
        """Return the `out` splits of the training environments."""
        return records_on(runs, "training_environments", "out")


@register("val_env")
class ValEnv(Rule):
    """The validation environments decide."""

    summary = "mean over the validation environments (all their examples), which no run trained on"
    needs = "`validation_environments:` (names, or a number of them drawn per trial)"
    frozen = True

    @classmethod
    def is_usual(cls, runs: pd.DataFrame) -> bool:
        """Return whether every run holds validation environments out."""
        return bool(len(runs) and runs["validation_environments"].map(bool).all())

    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return all examples of the validation environments."""
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
        """Return, for test set {T}: v's `in` split in the run {T, v}, for each training environment v."""
        sizes = runs["test_environments"].map(len)
        singles = runs[sizes == 1]
        singles = singles.assign(test=singles["test_environments"].str[0])
        singles = singles.explode("training_environments")
        singles = singles.rename(columns={"training_environments": "environment"})
        pairs = runs[sizes == 2].rename(columns={"id": "source"})
        ends = pairs["test_environments"]
        both = [pairs.assign(test=ends.str[i], environment=ends.str[1 - i]) for i in (0, 1)]
        same = ["dataset_label", "label", "draw", "trial", "test", "environment"]
        singles = singles.dropna(subset=["environment"])
        judges = pd.concat(both)[["source", *same]]
        return singles[["id", *same]].merge(judges, on=same, how="left").assign(split="in")


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
        """Return the `out` splits of the test environments."""
        return records_on(runs, "test_environments", "out")


def _frame(
    specs: Sequence[RunSpec], training_environments: Sequence[Sequence[str]]
) -> pd.DataFrame:
    """Return the columns of `Tables.runs` that are known of runs before they have started."""
    rows = [vars(spec) | {"id": spec.id, "dataset_label": spec.dataset_name} for spec in specs]
    return pd.DataFrame(rows).assign(training_environments=pd.Series([*training_environments]))


def require_evidence(
    name: str, specs: Sequence[RunSpec], training_environments: Sequence[Sequence[str]]
) -> None:
    """Raise UserError if the rule of a name will be able to judge none of these runs.

    A rule that asks for more than is known before they start is not checked here.
    """
    rule = find_rule(name)
    with suppress(AttributeError, KeyError):
        evidence = evidence_by(rule, _frame(specs, training_environments))
        if evidence["source"].isna().all():
            raise _unserved(rule)


def _unserved(rule: Rule) -> UserError:
    return UserError(f"selection {rule.name} needs {rule.needs}, and this sweep has none")


def rule_names() -> list[str]:
    """List the rules: first those that judge a run alone, last those that see the test set."""

    def place(name: str) -> tuple[bool, bool, str]:
        rule = selection_rules.get(name)
        return rule.sees_test, not rule.judges_alone, name

    return sorted(selection_rules, key=place)


def find_rule(name: str, place: str = "", plugins: Collection[str] = ()) -> Rule:
    """Return the rule of that name, or `RULE:METRIC` for one that judges by another recorded metric.

    Raises UserError with the nearest names, and the `plugins` of the sweep, if there is no such rule;
    `place` is where it was named.
    """
    base, colon, metric = name.partition(":")
    rule = selection_rules.find(base)
    if rule is None or (colon and not metric):
        raise unknown(selection_rules.noun, name, rule_names(), place, plugin_hint(plugins))
    return rule(base, metric or None)


def sees_test(name: str) -> bool:
    """Return whether a rule, which may end in `:METRIC`, is known to see the test environments."""
    base = name.partition(":")[0]
    return base in selection_rules and selection_rules.get(base).sees_test


def usual(frames: Tables) -> str:
    """Return the rule that tables use by default.

    It is the one that the sweep names (its key `selection`); else the one that is usual for such runs,
    as `val_env` where every run holds validation environments out; else `train_val`.
    """
    runs = frames.runs
    named = set(runs["selection"].dropna()) if "selection" in runs else set()
    if len(named) == 1:
        return str(named.pop())
    return next((x for x in rule_names() if selection_rules.get(x).is_usual(runs)), USUAL)


@dataclass(frozen=True)
class Judged:
    """The runs of a sweep as one rule judges them: what every table of them is made from."""

    frames: Tables
    rule: str
    runs: pd.DataFrame
    """The runs, with the kinds of rows as `judged` has them."""
    _cells: pd.DataFrame
    """The runs with `cell` and `complete`."""
    _ordered: pd.DataFrame
    """`run` (a row of the runs), `step` and `score` of every step that can be judged, the best first."""

    @cached_property
    def chosen(self) -> pd.DataFrame:
        """The chosen run and step of every complete cell: the first of its `tied`."""
        return self.tied.drop_duplicates(CELL, ignore_index=True)

    @cached_property
    def tied(self) -> pd.DataFrame:
        """Every run that has the best score of its complete cell, at its own first step with that score.

        Columns: CELL, `id`, `draw`, `step`, `score`. Tables show the mean over a cell's runs.
        """
        complete = self._ordered[self._cells["complete"].to_numpy()[self._ordered["run"]]]
        best = complete.drop_duplicates("run")
        cell = self._cells["cell"].iloc[best["run"]].set_axis(best.index)
        is_best = best["score"] == best.groupby(cell)["score"].transform("first")
        tied = best[is_best | ~cell.duplicated()]  # a NaN is equal to nothing
        tied = _described(self._cells, tied, [*CELL, "id", "draw"])
        return tied.sort_values(CELL, kind="stable", ignore_index=True)

    @cached_property
    def candidates(self) -> pd.DataFrame:
        """Every step of every run that can be judged, the best first.

        Columns: CELL, `id`, `draw`, `step`, `score`, `complete`. The best score of the rule's metric, else
        of the dataset's main one, wins; ties go to the lowest draw, then to the earliest step; NaN is the
        worst score. A run can be judged when it and all runs that judge it have ended; its cell is
        complete, and only then chosen from, when all of its runs can be.
        """
        table = _described(self._cells, self._ordered, [*CELL, "id", "draw", "complete"])
        return table[[*CELL, "id", "draw", "step", "score", "complete"]]

    def test_values(
        self, chosen: pd.DataFrame, metric: Mapping[str, str] | None = None
    ) -> pd.DataFrame:
        """Return the numbers of the benchmark: what chosen or tied runs reach on their test environments.

        Such a number is the value of a metric (by dataset; each dataset's main one by default) on the
        `in` split of a test environment, recorded by the run `id` at the `step` of a row of `chosen`.
        Returns the columns of `chosen` with `environment`, `metric` and `value`, a row for every test
        environment of each of its rows; `value` is NaN where nothing was recorded.
        """
        runs = self.runs.set_index("id")
        metrics = runs["metric"] if metric is None else runs["dataset_label"].map(metric)
        tests = chosen["id"].map(runs["test_environments"])
        wanted = chosen.assign(environment=tests, metric=chosen["id"].map(metrics))
        wanted = wanted.explode("environment").dropna(subset=["environment"])
        records = records_at(self.frames, chosen[["id", "step"]].drop_duplicates())
        key = ["id", "step", "environment", "metric"]
        values = records.loc[records["split"] == "in", [*key, "value"]]
        return wanted.astype({"metric": object}).merge(values, on=key, how="left")


def judged(frames: Tables, rule: str | None = None) -> Judged:
    """Return the runs as a rule judges them, the `usual` one if none is given.

    Transductive and reference rows that no other rows stand beside are ranked like methods. Raises
    UserError for an unknown rule, and if the sweep cannot serve it.
    """
    name, runs = rule or usual(frames), frames.runs
    others = runs.loc[~runs[list(KINDS)].any(axis=1), "dataset_label"]
    beside = runs["dataset_label"].isin(others)
    runs = runs.assign(**{kind: runs[kind] & beside for kind in KINDS if kind != "ceiling"})
    return Judged(frames, name, runs, *_ordered(frames, name, runs.copy()))


def judged_by_all(frames: Tables, names: Iterable[str]) -> dict[str, Judged]:
    """Return the runs as each of these rules judges them, without the rules that the sweep cannot serve."""
    found = {}
    for name in names:
        with suppress(UserError):
            found[name] = judged(frames, name)
    return found


def choose(frames: Tables, rule: str | None = None) -> pd.DataFrame:
    """Return `Judged.chosen` by a rule; raises as `judged`."""
    return judged(frames, rule).chosen


def served(frames: Tables) -> list[str]:
    """The names of the rules that can choose among these runs, the one that tables use among them."""
    return list(judged_by_all(frames, dict.fromkeys([*rule_names(), usual(frames)])))


def _described(runs: pd.DataFrame, ordered: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return these columns of the runs, with `step` and `score`."""
    table = runs[columns].iloc[ordered["run"].to_numpy()].reset_index(drop=True)
    return table.assign(step=ordered["step"].to_numpy(), score=ordered["score"].to_numpy())


def _ordered(frames: Tables, name: str, runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return these runs with `cell` and `complete`; and `run` (its row), `step`, `score`, best first."""
    judge = find_rule(name, plugins=plugins_of(frames))
    if judge.metric is not None:
        runs = _judged_by(judge.metric, frames, runs)
    evidence = evidence_by(judge, runs).merge(runs[["id", "metric"]], on="id")
    if runs["metric"].notna().any() and evidence["source"].isna().all():
        raise _unserved(judge)
    ended = set(runs.loc[runs["state"].isin(COMPLETE), "id"])
    if frames.scores is not None:  # frozen runs have been judged, by the rules of their board
        judged = frames.scores["id"][frames.scores["rule"] == name]
        ended -= set(runs.loc[runs["frozen"].eq(True), "id"]) - set(judged)
    waiting = set(evidence.loc[~evidence["source"].isin(ended), "id"])
    ready = runs["id"].isin((ended & set(evidence["id"])) - waiting)
    runs["cell"] = runs.groupby(CELL).ngroup()
    runs["complete"] = ready.groupby(runs["cell"]).transform("all")
    table = _scores(frames.records, evidence, runs)
    if frames.scores is not None:
        table = _with_frozen(table, frames.scores, runs, name)
    table = table[(ready & ~runs["helper"]).to_numpy()[table["run"]]]
    sign = np.where(runs["higher_is_better"].to_numpy() == False, 1.0, -1.0)  # noqa: E712 (missing)
    cost = sign[table["run"]] * table["score"].to_numpy()
    draw = runs["draw"].to_numpy()[table["run"]]
    place = np.argsort(np.argsort(runs["id"].to_numpy()))[table["run"]]
    order = np.lexsort((place, table["step"], draw, cost))  # NaN comes last
    return runs, table.iloc[order]


def _judged_by(metric: str, frames: Tables, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs judged by another `metric`.

    Raises UserError for a dataset that did not record it, and as `known_direction` does.
    """
    recorded = frames.records.loc[frames.records["metric"] == metric, "id"].unique()
    metrics = runs["metric"].where(runs["metric"].isna(), metric)
    started = runs[runs["id"].isin(frames.records["id"].unique())]
    for dataset, of_dataset in started.groupby("dataset_label", sort=False):
        if not of_dataset["id"].isin(recorded).any():
            raise UserError(f"selection by {metric}: the runs of {dataset} have not recorded it")
    is_main = runs["metric"] == metric
    if is_main[runs["metric"].notna()].all():
        return runs
    higher = runs["higher_is_better"].where(is_main, known_direction(metric, plugins_of(frames)))
    return runs.assign(metric=metrics, higher_is_better=higher)


def _scores(metrics: pd.DataFrame, evidence: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return `run` (the row in `runs`), `step`, `score`, a row for every recorded step.

    The score is the mean over environments of the mean over an environment's examples; NaN where a
    value is NaN or a part of the evidence is not there.
    """
    rows = pd.Index(runs["id"])
    judged = evidence.assign(
        run=rows.get_indexer(pd.Index(evidence["id"])),
        environment=pd.factorize(evidence["environment"])[0],
    )
    seen = _seen(metrics, evidence).merge(
        judged[["run", "environment"]], "inner", right_index=True, left_on="evidence"
    )
    cell, cells = pd.factorize(_pair(seen["run"], seen["step"]))
    part, parts = pd.factorize(_pair(seen["environment"], cell))
    count = seen["count"].to_numpy(float)
    value = seen["value"].to_numpy() * (count / np.bincount(part, count, len(parts))[part])
    order = np.argsort(value)  # equal values then have equal sums, in any order of the rows
    total = np.bincount(cell[order], value[order], len(cells))
    whole = np.bincount(cell, minlength=len(cells))
    size = judged.groupby("run").agg(rows=("split", "size"), across=("environment", "nunique"))
    size = size.loc[cells >> 32]
    score = np.where(whole == size["rows"], total / size["across"], np.nan)
    known, table = pd.Series(score, pd.Index(cells)), _steps(metrics, rows)
    return table.assign(score=known.reindex(_pair(table["run"], table["step"])).to_numpy())


def _with_frozen(
    table: pd.DataFrame, scores: pd.DataFrame, runs: pd.DataFrame, rule: str
) -> pd.DataFrame:
    """Return the table of `_scores` with the steps and scores that a board froze for its runs."""
    frozen = scores[scores["rule"] == rule]
    run = pd.Index(runs["id"]).get_indexer(pd.Index(frozen["id"]))
    known = pd.DataFrame({"run": run, "step": frozen["step"], "score": frozen["score"]})
    live = ~runs["frozen"].eq(True).to_numpy()[table["run"]]
    return pd.DataFrame(pd.concat([table[live], known[run >= 0]], ignore_index=True))


def _pair(high: npt.ArrayLike, low: npt.ArrayLike) -> Integers:
    """Pack two numbers below 2**31 into one."""
    return (np.asarray(high, dtype=np.int64) << 32) + np.asarray(low, dtype=np.int64)


def _seen(metrics: pd.DataFrame, evidence: pd.DataFrame) -> pd.DataFrame:
    """Return `step`, `value`, `count` of the records of evidence, and `evidence`, their row in it.

    A record that judges several runs occurs several times.
    """
    names = ("environment", "split", "metric")
    wanted = [metrics[n].cat.categories.get_indexer(pd.Index(evidence[n])) for n in names]
    source = metrics["id"].cat.categories.get_indexer(pd.Index(evidence["source"]))
    there = np.logical_and.reduce([code >= 0 for code in (*wanted, source)])
    sizes = [len(metrics[n].cat.categories) + 1 for n in names]  # the code of a missing name is -1
    kind = np.ravel_multi_index([code * there for code in wanted], sizes)
    recorded = np.zeros(len(metrics), dtype=np.int32)
    for name, size in zip(names, sizes, strict=True):
        recorded = recorded * size + metrics[name].cat.codes.to_numpy() % size
    useful = np.zeros(math.prod(sizes), dtype=bool)
    useful[kind[there]] = True
    kept = np.flatnonzero(useful[recorded])
    records = metrics.iloc[kept][["step", "value", "count"]]
    records["key"] = _pair(metrics["id"].cat.codes.to_numpy()[kept], recorded[kept])
    pieces = pd.DataFrame({"key": _pair(source, kind), "evidence": evidence.index})
    return records.merge(pieces[there], on="key")


def _steps(metrics: pd.DataFrame, rows: "pd.Index[str]") -> pd.DataFrame:
    """Return `run` and `step` of every record, once."""
    code, step = metrics["id"].cat.codes.to_numpy(), metrics["step"].to_numpy()
    new = np.ones(len(code), dtype=bool)
    new[1:] = (code[1:] != code[:-1]) | (step[1:] != step[:-1])
    run = rows.get_indexer(metrics["id"].cat.categories)[code[new]]
    return pd.DataFrame({"run": run, "step": step[new]}).drop_duplicates(ignore_index=True)
