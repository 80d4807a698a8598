from pathlib import Path

import pytest

from oodbench.errors import UserError
from oodbench.results.directory import Results
from oodbench.results.domainbed import import_sweep
from oodbench.results.frames import load_frames
from oodbench.selection import choose
from tests.helpers.domainbed import STEPS, write


def test_a_folder_becomes_a_results_directory(tmp_path: Path) -> None:
    write(tmp_path / "in", [1], {s: (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8) for s in STEPS})
    assert import_sweep(tmp_path / "in", tmp_path / "out") == 1
    frames = load_frames(Results(tmp_path / "out"))
    run = frames.runs.iloc[0]
    assert (run["dataset"], run["label"], run["draw"], run["trial"]) == ("VLCS", "ERM", 0, 0)
    assert run["test_environments"] == ("L",) and run["training_environments"] == ("C", "S", "V")
    assert (run["steps"], run["holdout"], run["state"]) == (601, 0.2, "done")
    assert run["hparams"] == {"lr": 0.1} and run["training_seconds"] == pytest.approx(300.5)
    last = frames.metrics[frames.metrics["step"] == 600]
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
    file.write_text(text[:-40])
    import_sweep(tmp_path / "in", tmp_path / "torn")
    assert load_frames(Results(tmp_path / "torn")).metrics["step"].max() == 300
    with pytest.raises(UserError, match="is not empty"):
        import_sweep(tmp_path / "in", tmp_path / "torn")
    file.write_text('{"step": 3}\n' + text)
    with pytest.raises(UserError, match=r"results.jsonl: line 1 is no record of DomainBed"):
        import_sweep(tmp_path / "in", tmp_path / "foreign")
    file.write_text(text)
    (tmp_path / "in" / "again").mkdir()
    (tmp_path / "in" / "again" / "results.jsonl").write_text(text)
    with pytest.raises(UserError, match="hold the same run"):
        import_sweep(tmp_path / "in", tmp_path / "double")
    assert not (tmp_path / "double").exists()
