import itertools
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oodbench.errors import UserError
from oodbench.report.tables.leaderboard import Leaderboard, is_mean
from oodbench.report.why import why
from oodbench.results.directory import Directory
from oodbench.results.predictions import write_examples, write_predictions
from oodbench.results.read import read_results
from oodbench.results.run_spec import RunSpec
from oodbench.results.tables import Tables, tidy
from oodbench.selection import Rule, TrainVal, records_on, rule_names, selection_rules, usual
from oodbench.selection.judge import choose, judge, judge_by_all, unchosen_predictions
from tests.helpers.algorithms.plugins import rules_of_the_guide
from tests.helpers.results.made import Made, flat, spec, texts, write_run

ENVIRONMENTS = ("A", "B", "T")
Values = dict[tuple[str, str], float]


@dataclass
class Trained:
    """A run with its records: step to {(environment, split): value}."""

    records: dict[int, Values] = field(default_factory=dict)
    test: tuple[str, ...] = ("T",)
    validation: tuple[str, ...] = ()
    draw: int = 0
    trial: int = 0
    label: str = "ERM"
    dataset: str = "D"
    metric: str = "accuracy"
    state: str = "done"
    holdout: float = 0.2

    @property
    def spec(self) -> RunSpec:
        about: dict[str, Any] = {"draw": self.draw, "trial": self.trial, "holdout": self.holdout}
        about |= {"validation_environments": self.validation}
        return spec(self.dataset, self.label, self.test, **about)


def load(path: Path, runs: list[Trained]) -> Tables:
    """Write a results directory as sweeps do, and read it."""
    results = Directory(path)
    results.write_plan("test", {}, [run.spec for run in runs])
    for run in runs:
        if run.state == "planned":
            continue
        training = [e for e in ENVIRONMENTS if e not in (*run.test, *run.validation)]
        records = []
        for step, values in run.records.items():
            evaluations = [
                {"environment": e, "split": s, "metric": m, "value": v * sign, "count": n}
                for (e, s), v in values.items()
                for m, sign in ((run.metric, 1), ("loss", -1))
                for n in (8 if s == "in" else 2,)
            ]
            records.append({"step": step, "evaluations": evaluations})
        about: dict[str, Any] = {"metric": run.metric, "state": run.state}
        about |= {"provenance": {"code": "another program, which keeps its own steps"}}
        write_run(results, run.spec, training, records, **about)
    return read_results(results)


def picks(frames: Tables, rule: str) -> list[tuple[int, int]]:
    """(draw, step) of every chosen cell."""
    chosen = choose(frames, rule)
    return list(zip(chosen["draw"], chosen["step"], strict=True))


def test_a_rule_may_judge_by_another_recorded_metric(tmp_path: Path) -> None:
    """The value of `loss` is minus that of the main metric, and less of both is better."""
    runs = [Trained({10: out(0.2, 0.4), 20: out(0.6, 0.6)}, metric="mse")]
    frames = load(tmp_path, runs)
    assert picks(frames, "train_val") == [(0, 10)]
    assert picks(frames, "train_val:loss") == [(0, 20)]
    assert choose(frames, "train_val:loss")["score"].tolist() == [-0.6]
    with pytest.raises(UserError, match="by worst_group_accuracy: the runs of D have not"):
        choose(frames, "train_val:worst_group_accuracy")
    for name in ("train_vl:loss", "train_val:", "trainval"):
        with pytest.raises(UserError, match=f"unknown selection rule '{name}'.* train_val"):
            choose(frames, name)


def test_the_guides_rules_score_by_the_worst_environment_and_last_steps(tmp_path: Path) -> None:
    values = ((0.9, 0.0), (0.5, 0.4), (0.1, 0.8), (0.6, 0.3), (0, 0))
    records = {5 * i: out(*pair) for i, pair in enumerate(values)}
    runs = [Trained(records), Trained({0: out(0.4, 0.41)}, draw=1)]
    with rules_of_the_guide():
        frames = load(tmp_path / "accuracy", runs)
        assert picks(frames, "worst_val") == [(0, 5)]
        assert picks(frames, "worst_val:loss") == [(0, 5)]  # minus the accuracy
        # means .45, .45, .45, .45, 0: the last is averaged with two others
        assert picks(frames, "smooth_val") == [(0, 0)]
        candidates = judge(frames, "smooth_val").candidates
        of_run = candidates[candidates["draw"] == 0].sort_values("step")["score"]
        assert of_run.tolist() == pytest.approx([0.45, 0.45, 0.45, 0.45, 0.3])
        errors = load(tmp_path / "mse", [Trained(records, metric="mse")])
        assert picks(errors, "worst_val") == [(0, 20)]


def test_a_score_has_the_shape_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = load(tmp_path, [Trained({0: out(0.5, 0.5), 5: out(0.6, 0.6)})])
    monkeypatch.setattr(TrainVal, "score", lambda self, values, weights, higher: values)
    with pytest.raises(UserError, match="`score` of the selection rule train_val must return"):
        choose(frames, "train_val")


@pytest.mark.parametrize(
    ("evidence", "ends"),
    [(None, "not None"), (pd.DataFrame(columns=["id", "split"]), "it lacks source, environment")],
)
def test_evidence_that_is_no_table_or_lacks_columns_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: object, ends: str
) -> None:
    frames = load(tmp_path, [Trained({0: out(0.5, 0.5)})])
    monkeypatch.setattr(TrainVal, "evidence", lambda self, runs: evidence)
    with pytest.raises(UserError, match=f"^`evidence` of .* a table with id, source.*{ends}$"):
        choose(frames, "train_val")


class Named(Rule):
    """Judges by what is given to its name, `ENVIRONMENTS SPLIT`."""

    summary, needs = "as it is called", "nothing"

    def evidence(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Of one column and one split."""
        return records_on(runs, *self.name.split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("training_environments outt", "the runs of D have no record of .* split 'outt' of 'A'"),
        ("test_environments in", "judges by the test environment 'T': write `sees_test = True`"),
        ("training_envs out", r"KeyError: .*test_judge\.py:\d+, in evidence"),
    ],
)
def test_a_mistaken_rule_is_named_and_other_rules_judge(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = load(tmp_path, [Trained({0: out(0.5, 0.5), 5: out(0.6, 0.6)})])
    monkeypatch.setattr(selection_rules, "_classes", dict(selection_rules.items()))
    selection_rules.add(name)(Named)
    with pytest.raises(UserError, match=f"^selection rule {name}:? .*{words}"):
        choose(frames, name)
    assert [*judge_by_all(frames, rule_names())] == ["train_val", "oracle"]


def test_a_dataset_without_any_record_of_the_evidence_is_named(tmp_path: Path) -> None:
    inside = {0: {("A", "in"): 0.5}}
    runs = [Trained({0: out(0.5, 0.5)}), Trained(inside, dataset="E")]
    with pytest.raises(UserError, match="rule train_val: the runs of E have no record"):
        choose(load(tmp_path, runs), "train_val")


def out(a: float, b: float, t: float = 0.5) -> Values:
    return {("A", "out"): a, ("B", "out"): b, ("T", "out"): t}


def full(seed: int) -> Values:
    rng = np.random.default_rng(seed)
    return {(e, s): float(rng.random()) for e in ENVIRONMENTS for s in ("in", "out")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Every environment alone and in pairs, with random values."""
    sets: list[tuple[str, ...]] = [("T",), ("A",), ("B",), ("T", "A"), ("B", "T"), ("A", "B")]
    runs = []
    for trial in range(2):
        for draw in range(3):
            for number, test in enumerate(sets):
                seed = 1000 * trial + 100 * draw + 10 * number
                records = {step: full(seed + i) for i, step in enumerate((0, 5, 10))}
                runs.append(Trained(records, test, draw=draw, trial=trial))
    return load(tmp_path_factory.mktemp("whole"), runs)


def test_train_val_takes_the_best_mean_over_the_training_environments(tmp_path: Path) -> None:
    runs = [
        Trained({0: out(0.9, 0.1, 1.0), 5: out(0.6, 0.6)}, draw=0),  # means .5, .6
        Trained({0: out(0.7, 0.8), 5: out(1.0, 0.45, 1.0)}, draw=1),  # .75, .725
    ]
    frames = load(tmp_path, runs)
    assert picks(frames, "train_val") == [(1, 0)]
    chosen = choose(frames).iloc[0]
    assert chosen["score"] == pytest.approx(0.75)
    assert chosen["id"] == runs[1].spec.id
    assert (chosen["dataset_label"], chosen["label"], chosen["trial"]) == ("D", "ERM", 0)
    assert chosen["test_environments"] == ("T",)


def test_oracle_takes_the_best_out_split_of_the_test_environments(tmp_path: Path) -> None:
    runs = [
        Trained({0: out(0.9, 0.9, 0.1), 5: out(0.1, 0.1, 0.8)}),
        Trained({0: out(0.9, 0.9, 0.7) | {("T", "in"): 1.0}}, draw=1),
    ]
    assert picks(load(tmp_path / "one", runs), "oracle") == [(0, 5)]
    several = [Trained({0: out(0, 0.9, 0.1), 5: out(0, 0.6, 0.6)}, ("T", "B"))]
    assert picks(load(tmp_path / "several", several), "oracle") == [(0, 5)]


def test_val_env_weighs_the_splits_of_an_environment_by_their_examples(tmp_path: Path) -> None:
    def record(inside: float, outside: float) -> Values:
        return {("B", "in"): inside, ("B", "out"): outside, ("A", "out"): 1 - inside}

    # 8 and 2 examples: .8 * .6 + .2 * .1 = .5 and .8 * .4 + .2 * .7 = .46; unweighted .35 and .55
    runs = [Trained({0: record(0.6, 0.1), 5: record(0.4, 0.7)}, validation=("B",))]
    frames = load(tmp_path, runs)
    assert picks(frames, "val_env") == [(0, 0)]
    assert choose(frames, "val_env")["score"].tolist() == pytest.approx([0.5])
    inside = {0: {("B", "in"): 0.4}, 5: {("B", "in"): 0.6}}
    runs = [Trained(inside, validation=("B",), holdout=0.0)]
    assert picks(load(tmp_path / "whole", runs), "val_env") == [(0, 5)]


def leave_one_out_runs() -> list[Trained]:
    def pair(a: tuple[float, float], b: tuple[float, float], draw: int) -> list[Trained]:
        lure = {("T", "in"): draw == 0, ("A", "out"): draw == 0, ("B", "out"): draw == 0}
        no_a = [Trained({0: {("A", "in"): a[0], ("B", "in"): 1 - draw} | lure,
                         5: {("A", "in"): a[1], ("B", "in"): 1 - draw} | lure}, ("A", "T"))]  # fmt: skip
        no_b = [Trained({0: {("B", "in"): b[0], ("A", "in"): 1 - draw} | lure,
                         5: {("B", "in"): b[1], ("A", "in"): 1 - draw} | lure}, ("T", "B"))]  # fmt: skip
        alone = [Trained({0: out(1 - draw, 1 - draw, 1 - draw), 5: out(1 - draw, 1 - draw)})]
        for run in (*no_a, *no_b, *alone):
            run.draw = draw
        return [*no_a, *no_b, *alone]

    # mean over A and B: draw 0 .5, .55; draw 1 .4, .6
    return [*pair((0.5, 0.7), (0.5, 0.4), 0), *pair((0.1, 0.6), (0.7, 0.6), 1)]


def test_leave_one_out_scores_each_environment_by_the_run_that_left_it_out(tmp_path: Path) -> None:
    runs = leave_one_out_runs()
    frames = load(tmp_path, runs)
    chosen = choose(frames, "leave_one_out")
    assert picks(frames, "leave_one_out") == [(1, 5)]
    assert chosen["score"].tolist() == pytest.approx([0.6])
    assert chosen["test_environments"].tolist() == [("T",)]
    assert picks(frames, "train_val") == [(0, 0)]  # the pairs make no cell of their own
    del runs[3].records[5]  # a step that a pair has not recorded is not chosen
    runs[3].state = "diverged"
    assert picks(load(tmp_path / "short", runs), "leave_one_out") == [(0, 5)]


def test_leave_one_out_waits_for_the_pairs_and_needs_every_one(tmp_path: Path) -> None:
    runs = leave_one_out_runs()
    some = [run for run in runs if run.test != ("T", "B")]
    assert picks(load(tmp_path / "some", some), "leave_one_out") == []
    runs[1].state = "lost"
    frames = load(tmp_path / "all", runs)
    assert picks(frames, "leave_one_out") == []
    assert picks(frames, "train_val") == [(0, 0)]
    runs[1].state, runs[2].state = "done", "lost"  # the run that is judged itself
    assert picks(load(tmp_path / "own", runs), "leave_one_out") == []


def logits_of(right: list[bool], classes: list[int]) -> np.ndarray[Any, Any]:
    """Logits (N, 1) of the second of two classes, right or wrong."""
    pairs = zip(classes, right, strict=True)
    return np.array([[1.0 if bool(c) == is_right else -1.0] for c, is_right in pairs])


def kept(path: Path, guesses: dict[tuple[str, int, int], str], **changes: Any) -> Tables:
    """Runs that predict two examples of A and three of B; one of A and two of B are held out.

    `guesses` are, by label, draw and step, whether each held-out example is right, y or n.
    """
    records: dict[tuple[str, int], dict[int, Values]] = {}
    for label, draw, step in guesses:
        records.setdefault((label, draw), {})[step] = out(0.5, 0.5)
    runs = [Trained(r, label=label, draw=d, **changes) for (label, d), r in records.items()]
    frames = load(path, runs)
    held_out = {"A": np.array([False, True]), "B": np.array([False, True, True])}
    classes = {"A": [0, 1], "B": [1, 0, 1]}
    for run in runs:
        directory = Directory(path).run(run.spec.id)
        examples = {e: (np.array(classes[e]), held_out[e]) for e in classes}
        write_examples(directory, "binary", examples)
        for step in run.records:
            a, b, c = (x == "y" for x in guesses[run.label, run.draw, step])
            right = {"A": [True, a], "B": [True, b, c]}
            logits = {e: logits_of(right[e], classes[e]) for e in classes}
            write_predictions(directory, step, logits)
    return frames


def test_worst_inferred_scores_the_worse_of_erms_mistakes_and_the_rest(tmp_path: Path) -> None:
    """ERM ends wrong on the last two examples; its first step and other draws infer nothing."""
    frames = kept(
        tmp_path / "wrong",
        {
            ("ERM", 0, 0): "nyy", ("ERM", 0, 5): "ynn", ("ERM", 1, 5): "yyn",
            ("IRM", 0, 0): "nyy", ("IRM", 0, 5): "yyn", ("IRM", 1, 5): "ynn",
        },
    )  # fmt: skip
    chosen = choose(frames, "worst_inferred").set_index("label")
    assert chosen["draw"].to_dict() == {"ERM": 1, "IRM": 0}
    assert chosen["step"].to_dict() == {"ERM": 5, "IRM": 5}
    assert chosen["score"].to_dict() == {"ERM": 0.5, "IRM": 0.5}
    candidates = judge(frames, "worst_inferred").candidates
    scores = candidates.set_index(["label", "draw", "step"])["score"].to_dict()
    assert scores == {
        ("ERM", 0, 0): 0, ("ERM", 0, 5): 0, ("ERM", 1, 5): 0.5,
        ("IRM", 0, 0): 0, ("IRM", 0, 5): 0.5, ("IRM", 1, 5): 0,
    }  # fmt: skip
    # without mistakes of ERM it is the accuracy
    frames = kept(tmp_path / "right", {("ERM", 0, 5): "yyy", ("IRM", 0, 5): "yyn"})
    chosen = choose(frames, "worst_inferred").set_index("label")
    assert chosen["score"].to_dict() == pytest.approx({"ERM": 1.0, "IRM": 2 / 3})


def test_worst_inferred_waits_for_erm_and_needs_its_predictions(tmp_path: Path) -> None:
    needs = "selection worst_inferred needs accuracies, a row ERM, .*, and this sweep has none"
    for folder, guesses, changes in (
        ("no erm", {("IRM", 0, 5): "yyy"}, {}),
        ("lost", {("ERM", 0, 5): "yyn", ("IRM", 0, 5): "yyy"}, {"state": "lost"}),
        ("no holdout", {("ERM", 0, 5): "yyn"}, {"holdout": 0.0}),
        ("no accuracy", {("ERM", 0, 5): "yyn"}, {"metric": "mse"}),
    ):
        with pytest.raises(UserError, match=needs):
            choose(kept(tmp_path / folder, guesses, **changes), "worst_inferred")
    frames = load(tmp_path / "none", [Trained({5: out(0.5, 0.5)})])
    with pytest.raises(UserError, match=r"no predictions of step 5: `sweep launch --keep-pred"):
        choose(frames, "worst_inferred")
    assert "worst_inferred" not in judge_by_all(frames, rule_names())
    assert choose(frames, "train_val")["step"].tolist() == [5]


def test_predictions_that_no_rule_chooses_are_those_of_no_row(tmp_path: Path) -> None:
    made = Made(tmp_path)
    best = made.add("D", "ERM", ("a",), 0, flat(0.9))
    other = made.add("D", "ERM", ("a",), 0, flat(0.5), draw=1)
    alone = replace(made.runs[other], label="alone")
    made.results.write_plan("made", {}, [*made.runs.values(), alone])
    files = {}
    for run_id, stem in itertools.product((best, other), ("10", "20", "examples")):
        files[run_id, stem] = tmp_path / "kept" / run_id / "predictions" / f"{stem}.npz"
        files[run_id, stem].parent.mkdir(parents=True, exist_ok=True)
        files[run_id, stem].touch()
    unchosen = [files[run_id, "20"] for run_id in (best, other)]
    assert sorted(unchosen_predictions(made.results)) == sorted(unchosen)
    settings = made.results.plan()["settings"]
    made.results.store("made", {**settings, "selection": "theirs"}, made.results.rows())
    with pytest.raises(UserError, match="unknown selection rule 'theirs'"):
        unchosen_predictions(made.results)  # it may have chosen any of them
    made.results.store("made", settings, made.results.rows())
    made.add("D", "ERM", ("a",), 1, flat(0.5), state="lost")
    assert unchosen_predictions(made.results) == []


def test_ties_also_of_nan_go_to_the_lowest_draw_then_to_the_earliest_step(tmp_path: Path) -> None:
    records = {5: out(0.6, 0.4), 10: out(0.5, 0.5)}
    runs = [Trained(records, draw=draw) for draw in (2, 1)]
    assert picks(load(tmp_path / "step", runs), "train_val") == [(1, 5)]
    runs = [Trained({10: out(0.6, 0.4)}), Trained({5: out(0.6, 0.4)}, draw=1)]
    assert picks(load(tmp_path / "draw", runs), "train_val") == [(0, 10)]
    runs = [Trained({s: out(math.nan, 0.9) for s in (0, 5)}, draw=draw) for draw in (1, 0)]
    assert picks(load(tmp_path / "nan", runs), "train_val") == [(0, 0)]
    values = (0.815, 0.67, 0.002)  # their sum differs in its last bit from that in reverse
    for number, orders in enumerate([(values, values[::-1]), (values[::-1], values)]):
        runs = [Trained({0: out(*v)}, test=("X",), draw=d) for d, v in enumerate(orders)]
        assert picks(load(tmp_path / str(number), runs), "train_val") == [(0, 0)]


@pytest.mark.parametrize("metric", ["accuracy", "mse"])
def test_nan_or_missing_evidence_is_the_worst_score(tmp_path: Path, metric: str) -> None:
    runs = [
        Trained({0: out(math.nan, 1e6), 5: out(math.inf, 0)}, metric=metric),
        Trained({5: out(0.1, 0.2)}, draw=1, metric=metric),
    ]
    assert picks(load(tmp_path, runs), "train_val") == [(1, 5)]
    lacking = [Trained({0: {("A", "out"): 1.0}, 5: out(0.1, 0.1)})]
    assert picks(load(tmp_path / "lacking", lacking), "train_val") == [(0, 5)]


def test_a_diverged_run_counts_with_the_records_it_has(tmp_path: Path) -> None:
    runs = [
        Trained({0: out(0.9, 0.9)}, state="diverged"),
        Trained({0: out(0.5, 0.5), 5: out(0.6, 0.6)}, draw=1),
        Trained({}, draw=2, state="diverged"),
    ]
    assert picks(load(tmp_path, runs), "train_val") == [(0, 0)]


def test_draws_that_tie_are_averaged_and_the_first_is_chosen(tmp_path: Path) -> None:
    nan = {("A", "out"): math.nan, ("B", "out"): 0.9, ("T", "in"): 0.1}

    def reaching(test: float, score: float = 0.9) -> dict[int, Values]:
        return {0: out(0.1, 0.1) | {("T", "in"): 0.0}, 5: out(score, score) | {("T", "in"): test}}

    runs = [
        *(Trained(reaching(t), draw=i) for i, t in enumerate((0.2, 0.6))),
        Trained(reaching(0.9, score=0.8), draw=2),
        *(Trained(reaching(0.3), draw=i, label="IRM") for i in range(3)),
        *(Trained({0: nan}, draw=i, label="VREx", state="diverged") for i in range(2)),
    ]
    one = judge(load(tmp_path, runs), "train_val")
    assert one.tied[["label", "draw", "step"]].to_numpy().tolist() == [
        ["ERM", 0, 5], ["ERM", 1, 5], ["IRM", 0, 5], ["IRM", 1, 5], ["IRM", 2, 5], ["VREx", 0, 0]
    ]  # fmt: skip
    assert one.chosen["draw"].tolist() == [0, 0, 0]
    board = Leaderboard(one)
    means = board.frame[is_mean(board.frame)].set_index("label")["mean"]
    assert means.to_dict() == {"ERM": pytest.approx(0.4), "IRM": 0.3, "VREx": 0.1}
    assert "In 2 of 3 cells draws tie in validation" in " ".join(texts(board.notes))


def allowed(frames: Tables, rule: str) -> pd.Series:
    """Whether the rule may see a row, by the words of its definition."""
    runs = frames.runs.set_index("id")
    seen = []
    for row in frames.records.itertuples():
        run = runs.loc[row.id]
        pair = len(run["test_environments"]) == 2
        seen.append(
            {
                "train_val": row.environment in run["training_environments"] and row.split == "out",
                "val_env": row.environment in run["validation_environments"],
                "leave_one_out": pair
                and row.environment in run["test_environments"]
                and row.split == "in",
                "oracle": row.environment in run["test_environments"] and row.split == "out",
            }[rule]
            and row.metric == "accuracy"
        )
    return pd.Series(seen, index=frames.records.index)


@pytest.mark.parametrize("rule", rule_names())
@pytest.mark.parametrize("poison", [math.nan, 1e9, -1e9])
def test_a_rule_sees_nothing_but_its_splits(
    whole: Tables, tmp_path: Path, rule: str, poison: float
) -> None:
    frames = whole
    if rule == "val_env":
        runs = [
            Trained({s: full(10 * draw + s) for s in (0, 5)}, validation=("B",), draw=draw)
            for draw in range(3)
        ]
        frames = load(tmp_path, runs)
    before = choose(frames, rule)
    assert len(before)
    seen = allowed(frames, rule)
    assert 0 < seen.sum() < len(seen) / 2
    hidden = frames.records.assign(value=frames.records["value"].where(seen, poison))
    pd.testing.assert_frame_equal(choose(Tables(frames.runs, hidden), rule), before)
    values = frames.records["value"]
    shown = frames.records.assign(value=values.where(~seen, -values))
    assert not choose(Tables(frames.runs, shown), rule).equals(before)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["train_val", "leave_one_out", "oracle"]))
def test_the_order_of_rows_changes_nothing(whole: Tables, seed: int, rule: str) -> None:
    metrics = whole.records.assign(value=whole.records["value"].round(1))  # many ties
    runs = whole.runs.sample(frac=1, random_state=seed)
    other = choose(Tables(runs, metrics.sample(frac=1, random_state=seed)), rule)
    pd.testing.assert_frame_equal(other, choose(Tables(whole.runs, metrics), rule))


@pytest.mark.parametrize(
    ("rule", "holdout", "need"),
    [
        ("val_env", 0.2, "`validation_environments:`"),
        ("leave_one_out", 0.2, "`test_environments: pairs`"),
        ("train_val", 0.0, "holdout above 0"),
        ("oracle", 0.0, "holdout above 0"),
    ],
)
def test_a_rule_says_what_it_lacks(tmp_path: Path, rule: str, holdout: float, need: str) -> None:
    frames = load(tmp_path, [Trained({0: out(1, 1)}, holdout=holdout)])
    with pytest.raises(UserError, match=need):
        choose(frames, rule)


@pytest.mark.parametrize("holdout", [0.0, 0.2])
@pytest.mark.parametrize(("validation", "rule"), [(("B",), "val_env"), ((), "train_val")])
def test_the_usual_rule_is_val_env_where_every_run_holds_validation_environments_out(
    tmp_path: Path, holdout: float, validation: tuple[str, ...], rule: str
) -> None:
    run = Trained({0: out(1, 1)}, holdout=holdout, validation=validation)
    frames = load(tmp_path, [run, replace(run, trial=1)])
    assert usual(frames) == rule
    assert usual(load(tmp_path / "mixed", [run, Trained({0: out(1, 1)}, trial=1)])) == "train_val"
    frames.runs["selection"] = "oracle"  # which the sweep names
    assert usual(frames) == "oracle"


@pytest.mark.parametrize("rule", rule_names())
def test_a_sweep_that_has_not_started_has_no_choice(tmp_path: Path, rule: str) -> None:
    assert choose(load(tmp_path, [Trained(state="planned")]), rule).empty


@pytest.mark.parametrize("sets", [[("A", "B"), ("A", "T")], [("A",), ("T",), ("T", "A")]])
def test_a_pair_is_a_cell_unless_its_environment_is_in_a_pair_with_every_other(
    tmp_path: Path, sets: list[tuple[str, ...]]
) -> None:
    runs = [Trained({0: full(0)}, test) for test in sets]
    assert choose(load(tmp_path, runs))["test_environments"].tolist() == sets


def test_lines_that_a_running_run_has_twice_count_once(tmp_path: Path) -> None:
    made = Made(tmp_path / "out")
    made.environments = ("a", "b")  # one training environment
    running = made.add("D", "ERM", ("a",), 0, flat(0.5), state="running")
    made.add("D", "IRM", ("a",), 0, flat(0.75))
    lines = made.results.run(running).path / "metrics.jsonl"
    before = judge(read_results(made.results), "train_val").candidates
    lines.write_bytes(lines.read_bytes() * 2)
    pd.testing.assert_frame_equal(judge(read_results(made.results), "train_val").candidates, before)


def test_a_run_in_two_rows_is_chosen_in_each_among_the_runs_of_that_row(tmp_path: Path) -> None:
    made = Made(tmp_path)
    worse = made.add("D", "ERM", ("a",), 0, flat(0.5))
    best = made.add("D", "ERM", ("a",), 0, flat(0.9), draw=1)
    alone = replace(made.runs[worse], label="alone")
    made.results.write_plan("made", {}, [*made.runs.values(), alone])
    tables = read_results(made.results)
    assert len(tables.runs) == 3 and set(tables.runs["id"]) == {worse, best}
    assert not tables.records.duplicated(["id", "step", "environment", "split", "metric"]).any()
    chosen = choose(tables).set_index("label")
    assert chosen["id"].to_dict() == {"ERM": best, "alone": worse}
    assert why(tables, label="ERM").runs["chosen"].tolist() == [True, False]
    assert why(tables, label="alone").runs["chosen"].tolist() == [True]
    assert len(tidy(tables)) == len(tables.records) * 3 // 2
