import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oodbench.errors import UserError
from oodbench.report.tables.domainbed import tables
from oodbench.results.directory import Directory
from oodbench.results.domainbed import import_sweep
from oodbench.results.read import read_results
from oodbench.selection.judge import choose
from tests.helpers.results.domainbed import STEPS, Accuracies, write


def test_a_folder_becomes_a_results_directory(tmp_path: Path) -> None:
    write(tmp_path / "in", [1], {s: (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8) for s in STEPS})
    assert import_sweep(tmp_path / "in", tmp_path / "out")[0] == 1
    frames = read_results(Directory(tmp_path / "out"))
    run = frames.runs.iloc[0]
    assert (run["dataset"], run["label"], run["draw"], run["trial"]) == ("VLCS", "ERM", 0, 0)
    assert run["test_environments"] == ("L",) and run["training_environments"] == ("C", "S", "V")
    assert (run["steps"], run["holdout"], run["state"]) == (601, 0.2, "done")
    assert run["hparams"] == {"lr": 0.1} and run["training_seconds"] == pytest.approx(300.5)
    last = frames.records[frames.records["step"] == 600]
    assert list(zip(last["environment"], last["split"], last["value"], strict=True))[:3] == [
        ("C", "in", 0.1),
        ("C", "out", 0.2),
        ("L", "in", 0.3),
    ]
    assert choose(frames)["step"].tolist() == [0]  # ties go to the earliest step


def test_torn_foreign_double_and_missing_records(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no results of DomainBed"):
        import_sweep(tmp_path, tmp_path / "out")
    path = write(tmp_path / "in", [0], {s: (0.5,) * 4 for s in STEPS})
    file, text = path / "results.jsonl", (path / "results.jsonl").read_text()
    file.write_text(text[:-40].replace("\n", "\n\n"))
    import_sweep(tmp_path, tmp_path / "torn")  # a folder further up
    assert read_results(Directory(tmp_path / "torn")).records["step"].max() == 300
    with pytest.raises(UserError, match="is not empty"):
        import_sweep(tmp_path / "in", tmp_path / "torn")
    file.write_text('{"step": 3}\n' + text)
    with pytest.raises(UserError, match=r"no results of .*results\.jsonl, line 1 .*args: "):
        import_sweep(tmp_path / "in", tmp_path / "foreign")
    assert not (tmp_path / "foreign").exists()


ACCURACIES: Accuracies = {s: (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8) for s in STEPS}


def changed(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change every record of a run beside one that is as it should be."""
    write(folder, [1], ACCURACIES)
    file = write(folder, [0], ACCURACIES) / "results.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        change(record)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r["args"].update(trial_seed=None), "trial_seed"),
        (lambda r: r["args"].update(test_envs=[4]), r"test_envs \[4\] of 4 environments"),
        (lambda r: r["args"].update(test_envs=[0, 0]), r"test_envs \[0, 0\] of 4"),
        (lambda r: r["args"].update(holdout_fraction=2), "holdout_fraction"),
        (lambda r: r["args"].pop("dataset"), "dataset"),
        (lambda r: r.update(env0_in_acc=[0.1, 0.2]), r"an accuracy is \[0.1, 0.2\]"),
        (lambda r: r.update(env0_in_acc="0.1"), "an accuracy is 0.1"),
        (lambda r: r.update(env0_in_acc=97.5), "an accuracy is 97.5, and they are shares of 1"),
        (lambda r: r.update(env0_in_acc=-1.0), "an accuracy is -1.0"),
        (lambda r: [r.pop(f"env1_{s}_acc") for s in ("in", "out")], "environments 0, 2, 3"),
        (lambda r: r["step"] and r.update(env9_in_acc=0.1), "different environments"),
        (lambda r: r["hparams"].update(lr=float("nan")), "cannot be a run"),
    ],
)
def test_a_run_that_cannot_be_read_is_named_and_left_out(
    change: Callable[[dict[str, Any]], Any], reason: str, tmp_path: Path
) -> None:
    changed(tmp_path / "in", change)
    runs, (left_out,) = import_sweep(tmp_path / "in", tmp_path / "out")
    assert runs == 1 and re.search(rf"ERM-VLCS-\[0\]-0-0/results.jsonl.*{reason}", left_out)
    assert read_results(Directory(tmp_path / "out")).runs["test_environments"].tolist() == [("L",)]


def test_a_file_holds_several_runs(tmp_path: Path) -> None:
    """train.py appends: arguments that change, and steps that begin again, begin another run."""
    file = write(tmp_path / "in", [0], ACCURACIES) / "results.jsonl"
    texts = [file.read_text()]
    for number, (trial, test) in enumerate([(0, 1), (1, 1), (1, 2)]):
        made = write(tmp_path / str(number), [test], ACCURACIES, trial) / "results.jsonl"
        texts.append(made.read_text())
    again = texts[0].splitlines(keepends=True)[0]
    other = texts[2].replace('"lr": 0.1', '"lr": 0.2')
    file.write_text("".join([*texts, other, again]))
    count, (twice,) = import_sweep(tmp_path / "in", tmp_path / "out")
    assert count == 5 and twice == f"{file}, line 16 holds the run of {file} again"
    runs = read_results(Directory(tmp_path / "out")).runs
    assert sorted(runs["test_environments"]) == [("C",), ("L",), ("L",), ("L",), ("S",)]
    assert sorted(h["lr"] for h in runs["hparams"]) == [0.1] * 4 + [0.2]


def test_jobs_that_append_in_turns_are_several_runs(tmp_path: Path) -> None:
    file = write(tmp_path / "in", [0], ACCURACIES) / "results.jsonl"
    other = write(tmp_path / "other", [0], ACCURACIES, 1) / "results.jsonl"
    lines = [each.read_text().splitlines(keepends=True) for each in (file, other, file)]
    file.write_text("".join(line for turn in zip(*lines, strict=True) for line in turn))
    count, (twice,) = import_sweep(tmp_path / "in", tmp_path / "out")
    assert count == 2 and twice == f"{file}, line 3 holds the run of {file} again"
    records = read_results(Directory(tmp_path / "out")).records
    assert records["step"].value_counts().nunique() == 1 and records["step"].max() == 600


def test_of_equal_runs_in_two_folders_the_longer_one_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "in", [0], ACCURACIES)
    lines = (path / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "in" / "A").mkdir()
    (tmp_path / "in" / "A" / "results.jsonl").write_text(lines[0])
    count, (twice,) = import_sweep(tmp_path / "in", tmp_path / "out")
    assert count == 1 and "A/results.jsonl holds the run of" in twice
    assert read_results(Directory(tmp_path / "out")).records["step"].max() == 600


def test_folders_that_hold_other_than_results_say_so(tmp_path: Path) -> None:
    file = write(tmp_path / "in", [0], ACCURACIES) / "results.jsonl"
    with pytest.raises(UserError, match=r"there is no folder \S+results.jsonl of DomainBed's runs"):
        import_sweep(file, tmp_path / "out")
    with pytest.raises(UserError, match=r"holds no sweep .*; `report import-domainbed` makes"):
        Directory(tmp_path / "in").plan()
    import_sweep(tmp_path / "in", tmp_path / "results" / "one")
    with pytest.raises(UserError, match=r"holds no sweep .*; name one of \S+results/one$"):
        Directory(tmp_path / "results").plan()


def test_settings_that_share_seeds_are_not_what_collect_results_prints(tmp_path: Path) -> None:
    for number, lr in enumerate((0.1, 0.2)):
        file = write(tmp_path / str(number), [0], ACCURACIES) / "results.jsonl"
        (tmp_path / "in" / f"run{number}").mkdir(parents=True)
        target = tmp_path / "in" / f"run{number}" / "results.jsonl"
        target.write_text(file.read_text().replace('"lr": 0.1', f'"lr": {lr}'))
    write(tmp_path / "in", [1], ACCURACIES)
    other = write(tmp_path / "in", [2], ACCURACIES) / "results.jsonl"
    other.write_text(other.read_text().replace('"ERM"', '"IRM"'))
    import_sweep(tmp_path / "in", tmp_path / "out")
    notes = " ".join(map(str, tables(read_results(Directory(tmp_path / "out"))).notes))
    assert "Several settings under one name share their seeds: ERM on VLCS." in notes
    assert "Averages on VLCS are over different test environments: ERM: C, L; IRM: S." in notes
