import math
from pathlib import Path
from typing import Any

import pytest

from oodbench.errors import UserError
from oodbench.report.html import render
from oodbench.report.html.contents import contents, costs
from oodbench.report.leaderboard import leaderboard
from oodbench.report.numbers import number
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from oodbench.results.run_spec import State
from oodbench.selection import choose
from tests.helpers.made import Made, flat
from tests.helpers.sweeps import tiny


def board(tree: dict[str, Any], rule: str) -> list[dict[str, Any]]:
    columns = tree["rules"][rule]["board"]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.fixture(scope="module")
def tree(made: Made) -> dict[str, Any]:
    return contents([made.results.path])


@pytest.mark.parametrize("rule", ["train_val", "oracle"])
def test_its_numbers_are_those_of_the_table(made: Made, tree: dict[str, Any], rule: str) -> None:
    wanted = leaderboard(load_frames(made.results), rule).frame.to_dict(orient="records")
    rows = board(tree, rule)
    assert len(rows) == len(wanted) == 2 * 3 * 3
    for row, cell in zip(rows, wanted, strict=True):
        assert tree["datasets"][row["dataset"]]["name"] == cell["dataset"]
        assert tree["labels"][row["label"]] == cell["label"]
        assert row["text"] == number(cell["mean"], cell["stderr"], cell["metric"])
        assert (row["n"], row["planned"]) == (cell["n"], cell["planned"])


@pytest.mark.parametrize("rule", ["train_val", "oracle"])
def test_every_number_leads_to_the_chosen_runs(made: Made, tree: dict[str, Any], rule: str) -> None:
    chosen = set(choose(load_frames(made.results), rule)["id"])
    seen = set()
    for row in board(tree, rule):
        if row["overall"]:
            continue
        assert len(row["runs"]) == len(row["values"]) == row["n"]
        assert row["mean"] == pytest.approx(sum(row["values"]) / row["n"], abs=1e-4)
        for run in row["runs"]:
            assert tree["labels"][tree["runs"]["label"][run]] == tree["labels"][row["label"]]
            assert tree["tests"][tree["runs"]["tests"][run]] == [row["environment"]]
            seen.add(tree["runs"]["id"][run])
    assert seen == chosen
    points = tree["rules"][rule]["points"]
    marked = {
        tree["runs"]["id"][r] for r, c in zip(points["run"], points["chosen"], strict=True) if c
    }
    assert marked == chosen


def test_points_are_in_and_out_of_distribution_at_the_step_of_the_rule(tmp_path: Path) -> None:
    sweep = Made(tmp_path)

    def curve(environment: str, split: str, step: int) -> float:
        if environment == "a":
            return 0.3 if split == "in" else 0.9
        best = {10: 0.5, 20: 0.8, 30: 0.6}[step]
        return best + (0.05 if environment == "b" else -0.05) if split == "out" else 0.99

    sweep.add("D", "ERM", ("a",), 0, curve)
    points = contents([sweep.results.path])["rules"]["train_val"]["points"]
    assert points == {
        "run": [0], "step": [20], "chosen": [1], "score": [0.8], "inside": [0.8], "test": [0.3],
    }  # fmt: skip


def test_curves_are_means_with_errors_over_the_chosen_runs(tmp_path: Path) -> None:
    sweep = Made(tmp_path)
    for trial, value in enumerate((0.2, 0.4)):
        sweep.add("D", "ERM", ("a",), trial, flat(value), draw=0)
        sweep.add("D", "ERM", ("a",), trial, flat(0.1), draw=1)
    tree = contents([sweep.results.path])
    found = tree["rules"]["train_val"]["curves"]
    assert len(found) == 6  # three environments, two splits
    for curve in found:
        assert tree["steps"][curve["steps"]] == [10, 20, 30] and curve["runs"] == 2
        assert curve["mean"] == [0.3] * 3 and curve["error"] == [0.1] * 3
        name, role = tree["environments"][curve["environment"]], tree["roles"][curve["role"]]
        assert role == ("test" if name == "a" else "training")


def test_a_value_that_is_not_finite_spoils_its_mean(tmp_path: Path) -> None:
    sweep = Made(tmp_path)
    for trial in (0, 1):
        sweep.add("D", "ERM", ("a",), trial, flat(math.nan if trial else 0.5), state="diverged")
    rule = contents([sweep.results.path])["rules"]["train_val"]
    assert all(curve["mean"] == [None] * 3 for curve in rule["curves"])
    assert rule["board"]["text"] == ["nan", "nan"]


def test_long_curves_are_thinned_and_keep_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Made(tmp_path)
    sweep.add("D", "ERM", ("a",), 0, flat(0.5), steps=range(1, 101))
    monkeypatch.setattr("oodbench.report.traces.CURVE_VALUES", 60)
    tree = contents([sweep.results.path])
    (steps,) = tree["steps"]
    assert steps == list(range(10, 101, 10))


def test_differences_are_paired_and_counted(made: Made) -> None:
    rule = contents([made.results.path])["rules"]["train_val"]
    blocks = {block["dataset"]: block["rows"] for block in rule["differences"]}
    assert set(blocks) == {0, 1, None}
    irm, vrex = blocks[0]
    assert irm["gain"] == pytest.approx(0.1) and irm["low"] == pytest.approx(0.1)
    assert (irm["wins"], irm["pairs"], irm["planned"]) == (6, 6, 6)
    assert vrex["pairs"] == 4
    assert blocks[None][0]["gain"] == pytest.approx(0.09) and blocks[None][0]["clusters"] == 2
    ranks = rule["ranks"]
    assert ranks["labels"] == [1, 0] and ranks["mean"] == [1, 2] and ranks["incomplete"] == [2]


def test_cost_is_a_ratio_on_the_same_machine(made: Made) -> None:
    cost = contents([made.results.path])["cost"]
    rows = list(zip(*(cost[k] for k in ("dataset", "label", "ratio", "memory")), strict=True))
    assert rows[:3] == [(0, 0, 1.0, 100.0), (0, 1, 2.0, 101.0), (0, 2, 3.0, 102.0)]
    assert cost["hours"][0] == pytest.approx(12 * 3 / 3600, rel=1e-2)
    assert set(cost["waiting"]) == {0.125}
    runs = {
        "dataset": [0] * 3, "label": [0, 1, 1], "provenance": [0, 0, 1], "step": [10] * 3,
        "seconds": [1.0, 2.0, 50.0], "waited": [None, 1.0, 2.0], "memory": [None] * 3,
    }  # fmt: skip
    found = costs(runs, 0)
    assert found["ratio"] == [1.0, 2.0] and found["memory"] == [None, None]
    assert found["waiting"] == [None, pytest.approx(3 / 52, rel=1e-2)]
    assert costs(runs, None)["ratio"] == [None, None]


def test_reasons_and_states(made: Made) -> None:
    tree = contents([made.results.path])
    found = {
        (tree["states"][tree["runs"]["state"][i]], text) for i, text in tree["reasons"].items()
    }
    assert found == {
        ("failed", "ValueError: <b>no</b>"),
        ("diverged", "the loss was not finite at step 30"),
        (
            "lost",
            "no process trains it any more; launching the sweep again continues it "
            "(`status` calls it paused where no error is known)",
        ),
    }
    assert len(tree["reasons"]) == 2 + 2 + 4


def test_another_metric_is_shown_and_nothing_else_is_chosen(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for label in ("ERM", "IRM"):
        for trial in range(3):
            run = made.add("D", label, ("a",), trial, flat(0.5 + trial / 10))
            directory = made.results.run(run)
            records = directory.records()
            directory.forget()
            directory.forget_records()
            for record in records:
                record["evaluations"] += [
                    e | {"metric": "mse", "value": 3 + trial} for e in record["evaluations"]
                ]
                directory.append(record)
            directory.finish(State.DONE, 30, 1.0)
    usual, other = contents([tmp_path]), contents([tmp_path], metric="mse")
    assert (other["datasets"][0]["metric"], other["datasets"][0]["higher"]) == ("mse", False)
    assert {row["metric"] for row in board(other, "train_val")} == {"mse"}
    assert set(other["rules"]["train_val"]["points"]["test"]) == {3.0, 4.0, 5.0}
    for key in ("run", "step", "score"):
        assert (
            other["rules"]["train_val"]["points"][key] == usual["rules"]["train_val"]["points"][key]
        )
    with pytest.raises(UserError, match="did you mean mse"):
        contents([tmp_path], metric="msee")


def test_a_sweep_without_erm_has_no_baseline(tmp_path: Path) -> None:
    sweep = Made(tmp_path)
    sweep.add("D", "IRM", ("a",), 0, flat(0.5))
    tree = contents([sweep.results.path])
    assert tree["baseline"] is None and tree["rules"]["train_val"]["differences"] == []
    assert "at least two" in tree["rules"]["train_val"]["ranks"]["error"]


@pytest.mark.parametrize(
    "state",
    [
        "done",
        "planned",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("diverged", "failed", "running")),
    ],
)
def test_one_run_in_any_state(tmp_path: Path, state: str) -> None:
    sweep = Made(tmp_path)
    sweep.add("D", "ERM", ("a",), 0, flat(0.5), state=state, error="e")
    tree = contents([sweep.results.path])
    assert render(tree)
    rule = tree["rules"]["train_val"]
    ended = state in ("done", "diverged")
    assert rule["board"]["text"] == (["50.0"] * 2 if ended else [""] * 2)  # one trial: no error
    assert rule["board"]["n"] == [int(ended)] * 2 and len(rule["points"]["run"]) == int(ended)


def test_torn_and_foreign_files_are_survived(tmp_path: Path) -> None:
    sweep = Made(tmp_path)
    for trial in range(4):
        sweep.add("D", "ERM", ("a",), trial, flat(0.5))
    runs = [sweep.results.run(run_id).path for run_id in sweep.runs]
    with (runs[0] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "evalua')
    (runs[1] / "done.json").write_text('{"status": "do')
    (runs[2] / "run.json").write_text("")
    (tmp_path / "runs" / "stranger").mkdir()
    (tmp_path / "runs" / "file").write_text("?")
    tree = contents([sweep.results.path])
    assert render(tree)
    assert [tree["states"][s] for s in tree["runs"]["state"]] == ["broken"] * 3 + ["done"]
    assert len(tree["reasons"]) == 3 and tree["runs"]["step"][3] == 30


def test_a_run_shows_its_average_and_precision(tmp_path: Path) -> None:
    options = {"precision": "bfloat16", "algorithms": [{"name": "ERM", "average": "swa"}, "ERM"]}
    plan = tiny(trials=1, **options)
    results = Results(tmp_path)
    results.write_plan("tiny", {}, plan.runs)
    averaged, plain = contents([tmp_path])["hparams"]
    assert averaged["average"] == "swa (start 0.75)" and averaged["precision"] == "bfloat16"
    assert plain["precision"] == "bfloat16" and "average" not in plain
    assert "channels_last" not in plain


def test_methods_that_see_test_inputs_stand_apart(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for test in ("a", "b"):
        for label in ("ERM", "IRM", "MTL"):
            made.add("D", label, (test,), 0, flat(0.7), transductive=label == "MTL")
    tree = contents([made.results.path])
    apart = tree["labels"].index("MTL")
    assert (tree["apart"], tree["grey"]) == ([apart], [])
    ranks = tree["rules"]["train_val"]["ranks"]
    assert apart not in ranks["labels"] and ranks["incomplete"] == []
    assert apart in {row["label"] for row in board(tree, "train_val")}
