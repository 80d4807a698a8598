from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oodbench.report.tables.domainbed import tables
from oodbench.results.directory import Directory
from oodbench.results.domainbed import import_sweep
from oodbench.results.read import read_results
from oodbench.selection.judge import choose
from tests.helpers.results.domainbed import STEPS, Accuracies, sweep, write
from tests.helpers.results.made import Made, leaderboard, report


def by_hand(made: dict[Any, Accuracies], test: int, trial: int) -> list[float]:
    """The accuracies that DomainBed's three rules report, by the words of its code."""
    others = [e for e in range(3) if e != test]

    def best(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
        return max(pairs, key=lambda pair: pair[0])

    def domain(draw: int) -> tuple[float, float]:
        run = made[(test,), trial, draw]
        return best((sum(run[s][2 * e + 1] for e in others) / 2, run[s][2 * test]) for s in STEPS)

    def left_out(draw: int) -> tuple[float, float]:
        pairs = {e: made[tuple(sorted((test, e))), trial, draw] for e in others}
        run = made[(test,), trial, draw]
        return best((sum(pairs[e][s][2 * e] for e in others) / 2, run[s][2 * test]) for s in STEPS)

    def oracle(draw: int) -> tuple[float, float]:
        last = made[(test,), trial, draw][STEPS[-1]]
        return last[2 * test + 1], last[2 * test]

    return [best(map(rule, (0, 1)))[1] for rule in (domain, left_out, oracle)]


def test_the_three_tables_are_domainbeds(tmp_path: Path) -> None:
    made = sweep(tmp_path / "in")
    import_sweep(tmp_path / "in", tmp_path / "out")
    found = tables(read_results(Directory(tmp_path / "out")))
    blocks = {block.title: block for block in found.blocks}
    rules = [
        "training-domain validation set",
        "leave-one-domain-out cross-validation",
        "test-domain validation set (oracle)",
    ]
    for place, rule in enumerate(rules):
        cells = np.array([[by_hand(made, e, t)[place] for e in range(3)] for t in (0, 1)])
        errors = cells.std(axis=0) / np.sqrt(2)
        pairs = zip(100 * cells.mean(0), 100 * errors, strict=True)
        texts = [f"{mean:.1f} ± {error:.1f}" for mean, error in pairs]
        (row,) = blocks[f"Debug28: {rule}"].rows
        assert row == ["ERM", *texts, f"{100 * cells.mean(0).mean():.1f}"]
        means = cells.mean(axis=1)
        (row,) = blocks[f"Averages: {rule}"].rows
        assert row[1] == f"{100 * means.mean():.1f} ± {100 * means.std() / np.sqrt(2):.1f}"
    assert set(found.frame["rule"]) == set(rules) and len(found.frame) == 9
    table = leaderboard(read_results(Directory(tmp_path / "out")), "train_val").frame
    ours = table.loc[table["environment"] == table["test_environments"], "mean"]
    theirs = found.frame.loc[found.frame["rule"] == rules[0], "mean"]
    assert sorted(ours) == pytest.approx(sorted(theirs))


def cell(path: Path, title: str) -> list[str]:
    """The row of a table of a folder."""
    import_sweep(path / "in", path / "out")
    blocks = {b.title: b for b in tables(read_results(Directory(path / "out"))).blocks}
    return blocks[title].rows[0]


def test_ties_go_to_the_last_draw_and_the_first_step(tmp_path: Path) -> None:
    for draw in (0, 1):
        values: Accuracies = {s: (0.1 * draw + s / 10_000, 0.0, 0.5, 0.5, 0.5, 0.5) for s in STEPS}
        write(tmp_path / "in", [0], values, draw=draw, dataset="Debug28")
    row = cell(tmp_path, "Debug28: training-domain validation set")
    assert row == ["ERM", "10.0 ± 0.0", "X", "X", "X"]  # draw 1, step 0; one trial prints 0.0
    blocks = tables(read_results(Directory(tmp_path / "out"))).blocks
    oracle = next(b for b in blocks if b.title.endswith("(oracle)"))
    assert oracle.rows[0][1] == "16.0 ± 0.0"  # the last step
    assert next(b for b in blocks if "one-domain" in b.title).rows[0][1:] == ["X"] * 4


def test_a_run_that_has_not_ended_counts_for_them_alone(tmp_path: Path) -> None:
    write(tmp_path / "in", [0], {0: (0.4, 0.4, 0.5, 0.5)}, done=False, dataset="Mine")
    assert cell(tmp_path, "Mine: test-domain validation set (oracle)")[1] == "40.0 ± 0.0"
    frames = read_results(Directory(tmp_path / "out"))
    assert frames.runs["state"].tolist() == ["lost"] and choose(frames).empty


def test_a_nan_is_the_worst_draw(tmp_path: Path) -> None:
    for draw, value in ((0, 0.5), (1, float("nan"))):
        write(tmp_path / "in", [0], {0: (0.1 + draw, 0.5, 0.5, value)}, draw=draw, dataset="Mine")
    assert cell(tmp_path, "Mine: training-domain validation set")[1] == "10.0 ± 0.0"


def test_the_commands(tmp_path: Path) -> None:
    sweep(tmp_path / "in")
    made = report("import-domainbed", tmp_path / "in", "--out", tmp_path / "out")
    assert made[0] == 0 and "holds 24 runs of" in made[1]
    shown = report("table", tmp_path / "out", "--rule", "domainbed", "--format", "latex")
    assert shown[0] == 0 and "Debug28: test-domain validation set" in shown[1]


def test_a_validation_environment_is_no_training_domain(tmp_path: Path) -> None:
    made = Made(tmp_path)

    def curve(environment: str, split: str, step: int) -> float:
        return step / 50 if environment == "c" else 1 - step / 100

    made.add("D", "ERM", ("a",), 0, curve, validation=("c",))
    block = tables(read_results(made.results)).blocks[0]
    assert block.rows[0][1] == "90.0 ± 0.0"  # of the first step, by environment b alone
