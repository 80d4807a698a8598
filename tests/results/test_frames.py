from pathlib import Path

from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from tests.results.test_directory import CONTEXT
from tests.results.test_run_spec import SPEC, changed


def test_frames_hold_every_evaluation(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.write_plan("s", {}, {SPEC.id: SPEC, changed(trial=2).id: changed(trial=2)})
    run = results.run(SPEC.id)
    run.path.mkdir(parents=True)
    run.start(SPEC, CONTEXT | {"training_environments": ["a", "b"]}, {"torch": "x"})
    evaluation = {"environment": "t", "split": "in", "metric": "accuracy", "value": 0.5, "count": 4}
    run.append({"step": 5, "evaluations": [evaluation]})
    run.append({"step": 10, "evaluations": [evaluation | {"value": None, "environment": None}]})
    frames = load_frames(results)
    assert list(frames.runs["state"]) == ["lost", "planned"]
    assert frames.runs["training_environments"][0] == ("a", "b")
    assert list(frames.metrics["step"]) == [5, 10]
    assert frames.metrics["value"].isna().tolist() == [False, True]
