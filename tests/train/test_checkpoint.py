"""Checkpoints and records that do not fit each other or their run: the run starts again."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import RunSpec, State
from oodbench.train.execute import execute
from oodbench.train.loop import begin
from oodbench.train.settings import TrainSettings
from tests.helpers.kills import checkpoint_every, kill_at
from tests.helpers.results.sweeps import first, records_of

pytestmark = pytest.mark.slow

SETTINGS = TrainSettings()


@pytest.fixture(autouse=True, scope="module")
def always_checkpoint() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        checkpoint_every(15, patch)
        yield


def spec(**changes: Any) -> RunSpec:
    return first(**{"algorithms": ["IRM"]} | changes)


def killed(run: RunSpec, path: Path, at: int = 90) -> RunDirectory:
    """A run that was killed at step 90, with records of steps 40 and 80."""
    directory = RunDirectory(path)
    kill_at(at, run, directory)
    return directory


def first_step_of(run: RunSpec, directory: RunDirectory, wanted: list[dict[str, Any]]) -> int:
    """Train a run to its end, to the wanted records; returns the step that it had after a while."""
    steps: list[int] = []
    assert execute(run, directory, SETTINGS, steps.append) == ("done", "")
    assert records_of(directory) == wanted
    assert len((directory.path / "metrics.jsonl").read_text().splitlines()) == 3
    return steps[0]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    directory = RunDirectory(tmp_path_factory.mktemp("undisturbed"))
    execute(spec(), directory, SETTINGS)
    return records_of(directory)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the same run, killed."""
    return killed(spec(), tmp_path_factory.mktemp("interrupted") / "a").path


@pytest.fixture
def directory(interrupted: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(interrupted, tmp_path / "a")))


def test_a_whole_checkpoint_with_its_records_is_taken_up(
    directory: RunDirectory, undisturbed: list[dict[str, Any]]
) -> None:
    assert first_step_of(spec(), directory, undisturbed) > 90


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda text: b"",
    "cut": lambda text: text[: len(text) // 3],
    "the first twice": lambda text: text[: text.index(b"\n") + 1] * 2,
    "zeros": lambda text: text[:-40] + b"\0" * 40,
    "another value": lambda text: text.replace(b":0.", b":7.", 1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_run_whose_records_are_not_all_there_starts_anew(
    directory: RunDirectory, undisturbed: list[dict[str, Any]], damage: Callable[[bytes], bytes]
) -> None:
    metrics = directory.path / "metrics.jsonl"
    metrics.write_bytes(damage(metrics.read_bytes()))
    with pytest.warns(UserWarning, match="the 2 records .* not all there; the run starts again"):
        assert first_step_of(spec(), directory, undisturbed) == 1


@pytest.mark.filterwarnings("ignore:.*the run starts again")
def test_power_cuts_lose_no_number_unseen(directory: RunDirectory) -> None:
    """The end of the records is lost, or NULs stand for it, while later files are on the disk."""
    run, metrics = spec(), directory.path / "metrics.jsonl"
    text, checkpoint = metrics.read_bytes(), directory.checkpoint.read_bytes()
    for lost in range(1, len(text) + 1, 101):
        for instead in (b"", bytes(lost)):
            directory.checkpoint.write_bytes(checkpoint)
            metrics.write_bytes(text[:-lost] + instead)
            assert begin(run, directory, SETTINGS).run.step == 0 and not directory.records()
    execute(run, directory, SETTINGS)
    text = metrics.read_bytes()
    whole_lines = {len(text) - place - 1 for place, byte in enumerate(text) if byte == ord("\n")}
    for lost in {*range(1, len(text) + 1, 17), *whole_lines} - {0}:
        for instead in (b"", bytes(lost)):
            metrics.write_bytes(text[:-lost] + instead)
            assert directory.state() is State.BROKEN


def test_a_checkpoint_of_a_step_that_does_not_fit_its_records_is_not_used(
    directory: RunDirectory, tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    early = killed(spec(), tmp_path / "b", 30)
    state = torch.load(directory.checkpoint, weights_only=True)
    state["run"] = torch.load(early.checkpoint, weights_only=True)["run"]
    torch.save(state, directory.checkpoint)
    with pytest.warns(UserWarning, match="up to its step 30 are not all there"):
        assert first_step_of(spec(), directory, undisturbed) == 1


def test_the_records_of_a_run_are_never_those_of_a_copied_directory(
    tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    killed(spec(trials=1, steps=240), tmp_path / "a")
    with pytest.warns(UserWarning, match="another run's"):
        assert first_step_of(spec(), RunDirectory(tmp_path / "a"), undisturbed) == 1


def with_run(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {**state, "run": {**state["run"], **values}}


def without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {**state, "run": {k: v for k, v in state["run"].items() if k != key}}


KEYS = ("step", "seconds", "sums", "counts", "algorithm", "optimizers", "rng", "device_rng")
FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda state: [state],
    "records of other keys": lambda state: {**state, "records": {"records": 2, "sha1": ""}},
    "other optimizers": with_run(optimizers={"second": {}}),
    "a step in words": with_run(step="ninety"),
    "a random state of another size": with_run(rng=torch.zeros(3, dtype=torch.uint8)),
    **{f"no {key}": without(key) for key in KEYS},
}
"""What a checkpoint may have become, by what is done to it."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (number % 3 > 0))
        for number, name in enumerate(sorted(FORMS))
    ],
)
def test_a_checkpoint_of_another_form_starts_the_run_anew(
    directory: RunDirectory, undisturbed: list[dict[str, Any]], name: str
) -> None:
    state = torch.load(directory.checkpoint, weights_only=True)
    torch.save(FORMS[name](state), directory.checkpoint)
    with pytest.warns(UserWarning, match="checkpoint.pt is not used: .*; the run starts again"):
        assert first_step_of(spec(), directory, undisturbed) == 1
