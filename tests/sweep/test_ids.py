"""Ids and protocols do not change; `python -m tests.sweep.test_ids DATA_DIR` writes what is new of them."""

import hashlib
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from oodbench.errors import UserError
from oodbench.registry import folder
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.file import find_sweep, name_of, named_sweeps, read_sweep
from oodbench.sweep.plan import Measured, make_plan, measured
from oodbench.sweep.resolve import Source
from tests.helpers.paths import ROOT

GOLDEN, GOLDEN_IDS = (ROOT / "tests" / "golden" / f"{name}.json" for name in ("protocols", "ids"))
PROTOCOL = "irm-colored-mnist-2019"
SIZES: dict[str, Measured] = {}
"""What was measured of a dataset's first trial, by its options."""


def measured_once(source: Source) -> Measured:
    """As `measured`, where sweeps on the same data load them once."""
    dataset = source.dataset
    key = f"{dataset.name} {dataset.options} {source.holdout} {source.trials[0]}"
    return SIZES.get(key) or SIZES.setdefault(key, measured(source))


def protocols() -> list[str]:
    """The sweeps that are protocols: they name themselves."""
    return [name for name, file in named_sweeps().items() if read_sweep(file).protocol == name]


def _values(spec: RunSpec) -> dict[str, Any]:
    """All that a run's numbers depend on, but for what came later and is as it was before."""
    values = asdict(spec)
    for f in fields(spec):
        if not f.compare or (f.metadata.get("later") and values[f.name] == f.default):
            del values[f.name]
    return values


def resolved(name: str, data_dir: Path) -> dict[str, Any]:
    """A hash of the runs of a protocol's first trial, and the first one of every row in full."""
    runs = make_plan(read_sweep(find_sweep(name), ["trials=1"]), data_dir).runs
    rows: dict[tuple[str, str], RunSpec] = {}
    for spec in runs.values():
        rows.setdefault((spec.dataset, spec.label), spec)
    return {
        "runs": len(runs),
        "sha256": hashlib.sha256("".join(sorted(runs)).encode()).hexdigest(),
        "rows": [json.loads(json.dumps(_values(spec))) for spec in rows.values()],
    }


@pytest.mark.slow
def test_no_protocol_has_changed(mnist_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oodbench.sweep.plan.measured", measured_once)
    golden = json.loads(GOLDEN.read_text())
    assert sorted(golden) == sorted(protocols()), "a new one goes into the golden file"
    for name, frozen in golden.items():
        found = resolved(name, mnist_dir)
        assert found == frozen, f"{name} has changed: give the new one a new name"


def test_protocols_and_nothing_else_have_their_folder() -> None:
    assert sorted(protocols()) == sorted(f.stem for f in (folder("sweeps") / "protocols").iterdir())


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nprotocol: {PROTOCOL}\n{text}")
    return path


def test_a_sweep_adds_methods_and_trials_to_a_protocol(tmp_path: Path) -> None:
    text = "algorithms: [IRM, {name: VREx, hparams: {lr: 1e-3}}]\ntrials: 2\n"
    mine, theirs = read_sweep(file(tmp_path, text)), read_sweep(find_sweep(PROTOCOL))
    assert (mine.name, mine.trials) == ("mine", range(2))
    assert (mine.steps, mine.holdout, mine.network) == (theirs.steps, 0.0, theirs.network)
    assert mine.algorithms[0] == theirs.algorithms[1]
    assert [getattr(row, "name", row) for row in mine.algorithms] == ["IRM", "VREx"]


def test_a_file_without_a_name_has_that_of_its_protocol(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(f"protocol: {PROTOCOL}\ntrials: 1\n")
    assert name_of(path) == read_sweep(path).name == PROTOCOL
    path.write_text(f"protocol: {path}\n")  # itself
    with pytest.raises(UserError, match=r"short\.yaml has 3 problems:\n- name is missing"):
        read_sweep(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: 501\n", "fixes 'steps'"),
        ("hparam_draws: 3\n", "fixes 'hparam_draws'"),
        ("evaluate_every: 10\n", "fixes 'evaluate_every'"),
        ("algorithms: [{name: ERM, hparams: {lr: 0.1}}]\n", "fixes the row 'ERM'"),
        ("algorithms: all\n", "list yours by their names"),
        ("algorithms: [{kind: penalty}]\n", "list yours by their names"),
        ("algorithms: [{name: ERM, average: swo}]\n", r"\.yaml: unknown average 'swo'"),
    ],
)
def test_what_would_move_a_number_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_sweep(file(tmp_path, text))
    with pytest.raises(UserError, match=message):
        key, _, value = text.strip().partition(": ")
        read_sweep(find_sweep(PROTOCOL), [f"{key}={value}"])


def test_a_mistake_beside_other_trials_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="datasets must be a list of names"):
        read_sweep(file(tmp_path, "datasets: 5\ntrials: 2\n"))


ELSEWHERE = {
    "coinrun",
    "coinrun-small",
    "control-rewards",
    "financial-indicators",
    "label-noise",
    "memorization",
    "pretrained-digits",
    "wilds",
}
"""Sweeps on data or weights that have to be made or downloaded first."""
LARGE = {"ilc-spirals-environments", "irm-example-exact", "linear-sem-exact", "shift-dial"}
"""Sweeps that take seconds to plan, on datasets that others have in smaller sizes."""
EACH = 8


def ids(sweep: str, data_dir: Path) -> list[str]:
    """Some of the ids of a sweep's first trial, evenly spread over its runs in their order."""
    (path,) = folder("sweeps").rglob(f"{sweep}.yaml")
    runs = list(make_plan(read_sweep(path, ["trials=1"]), data_dir).runs)
    return runs[:: max(1, len(runs) // EACH)][:EACH]


def names() -> list[str]:
    known = {p.stem for p in folder("sweeps").rglob("*.yaml")}
    return sorted(known - ELSEWHERE - {"domainbed-mnist", *protocols()})


@pytest.mark.slow
@pytest.mark.parametrize(
    "large", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["small", "large"]
)
def test_ids_do_not_move(large: bool, mnist_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field or hyperparameter that is added enters an id only where it is not neutral."""
    monkeypatch.setattr("oodbench.sweep.plan.measured", measured_once)
    golden = json.loads(GOLDEN_IDS.read_text())
    assert sum(map(len, golden.values())) >= 150
    asked = {name: wanted for name, wanted in golden.items() if (name in LARGE) == large}
    moved = {name for name, wanted in asked.items() if ids(name, mnist_dir) != wanted}
    assert not moved, "their results would be trained again"


if __name__ == "__main__":
    table = {name: resolved(name, Path(sys.argv[1])) for name in protocols()}
    GOLDEN.write_text(json.dumps(table, indent=1) + "\n")
    found = {name: ids(name, Path(sys.argv[1])) for name in names()}
    rows = (f" {json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
    GOLDEN_IDS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
