"""Searches: what is chosen, that nothing disturbs it, what tables say of it, what users get wrong."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from oodbench.errors import UserError
from oodbench.report.cli import app as report
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from oodbench.results.run_spec import RunSpec, State
from oodbench.seeds import derive
from oodbench.selection import choose
from oodbench.sweep.cli import app
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from oodbench.sweep.search import Searches
from oodbench.sweep.tpe import suggest
from tests.helpers.paths import ROOT
from tests.helpers.sweeps import TINY, outcome, tiny, tiny_file

SEARCH = {"method": "tpe", "runs": 40}
CHANGES: dict[str, Any] = {"algorithms": ["IRM"], "search": SEARCH}
PLAN = tiny(**CHANGES)
(STUDY,) = PLAN.studies


def launch(folder: Path, *more: str, **changes: Any) -> Result:
    sweep = tiny_file(folder, **(CHANGES | changes))
    given = ["launch", str(sweep), "--out", str(folder / "out"), "--launcher", "debug", "--yes"]
    return CliRunner().invoke(app, [*given, *more])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("undisturbed")
    launched = launch(folder)
    assert launched.exit_code == 0 and "40 done of 40 runs" in launched.output, launched.output
    return Results(folder / "out")


def by_draw(results: Results) -> list[list[RunSpec]]:
    specs = [RunSpec.from_json(s) for s in results.plan()["runs"].values()]
    draws = sorted({s.draw for s in specs})
    return [sorted((s for s in specs if s.draw == k), key=lambda s: s.trial) for k in draws]


def score(results: Results, run_id: str) -> float:
    """The best step's mean squared error on unseen examples of the training environments."""
    steps = []
    for record in results.run(run_id).records():
        values = {(e["environment"], e["split"], e["metric"]): e for e in record["evaluations"]}
        steps.append(fmean(values[e, "out", "mse"]["value"] for e in ("0.2", "2")))
    return min(steps)


@pytest.mark.slow
def test_every_draw_follows_from_the_results_that_it_may_see(undisturbed: Results) -> None:
    draws = by_draw(undisturbed)
    assert len(draws) == 20 and all(len(runs) == 2 for runs in draws)
    random = tiny(algorithms=["IRM"], hparam_draws=13).runs
    assert {s.id for runs in draws[:13] for s in runs} == set(random)
    values = [STUDY.values(runs[0]) for runs in draws]
    scores = [fmean(score(undisturbed, s.id) for s in runs) for runs in draws]
    for k in range(13, 20):
        seen = list(zip(values[: k - 3], scores[: k - 3], strict=True))
        seed = derive("search", 0, "LinearSEM", ("5",), "IRM", k)
        assert values[k] == suggest(STUDY.space, seen, values[k - 3 : k], seed)
        assert all(STUDY.values(s) == values[k] for s in draws[k])


@pytest.mark.slow
def test_it_finds_better_values_than_random_draws(tmp_path: Path) -> None:
    short = {"trials": 1, "steps": 30, "evaluate_every": 30}
    found = {}
    for name, how in (
        ("tpe", {"search": SEARCH}),
        ("random", {"search": None, "hparam_draws": 40}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        assert launch(folder, **short, **how).exit_code == 0
        results = Results(folder / "out")
        found[name] = [math.log(score(results, runs[0].id)) for runs in by_draw(results)[13:]]
    assert fmean(found["tpe"]) < fmean(found["random"])
    assert min(found["tpe"]) < min(found["random"])


def process(sweep: Path, out: Path, launcher: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "oodbench.sweep", "launch", str(sweep), "--out", str(out)]
    command += ["--launcher", launcher, "--workers", "1", "--yes"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_killed_in_the_middle_then_launched_twice_at_once(
    tmp_path: Path, undisturbed: Results
) -> None:
    sweep, out = tiny_file(tmp_path, **CHANGES), tmp_path / "out"
    results = Results(out)
    first = process(sweep, out, "local")
    until = time.monotonic() + 600
    while len(results.chosen()) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=600)
    assert 3 <= len(results.chosen()) < 14
    assert {state for state, _ in outcome(results).values()} > {"done"}
    both = [process(sweep, out, launcher) for launcher in ("local", "debug")]
    for again in both:
        _, errors = again.communicate(timeout=600)
        assert again.returncode == 0, errors
    assert outcome(results) == outcome(undisturbed)
    (journal,) = out.glob("searches/*.jsonl")
    assert len(journal.read_text().splitlines()) == 7


@pytest.mark.slow
def test_a_torn_journal_is_mended(tmp_path: Path, undisturbed: Results) -> None:
    shutil.copytree(undisturbed.path, tmp_path / "out")
    (path,) = (tmp_path / "out").glob("searches/*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert len(Results(tmp_path / "out").chosen()) == 12
    Searches(Results(tmp_path / "out"), PLAN.studies).advance()
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_more_runs_go_on_where_fewer_ended(tmp_path: Path, undisturbed: Results) -> None:
    assert launch(tmp_path, search=SEARCH | {"runs": 30}).exit_code == 0
    results = Results(tmp_path / "out")
    assert len(outcome(results)) == 30
    refused = launch(tmp_path, search=SEARCH | {"seed": 1})
    assert refused.exit_code == 2 and "with search {" in refused.output
    refused = launch(tmp_path, trials=3)
    assert refused.exit_code == 2 and "with search {" in refused.output
    assert launch(tmp_path).exit_code == 0
    assert outcome(results) == outcome(undisturbed)


Change = Callable[[dict[str, Any]], bool]


def altered(folder: Path, results: Results, which: Change) -> list[tuple[RunSpec, ...]]:
    """What a search chooses next to the same random draws, some of whose records are others."""
    copy = Results(folder)
    for run_id in results.plan()["runs"]:
        shutil.copytree(results.run(run_id).path, copy.run(run_id).path)
        lines = []
        for number, record in enumerate(results.run(run_id).records()):
            for e in filter(which, record["evaluations"]):
                e["value"] = float(derive(run_id, number) % 1000)
            lines.append(json.dumps(record) + "\n")
        (copy.run(run_id).path / "metrics.jsonl").write_text("".join(lines))
        ended = copy.run(run_id).path / "done.json"  # without the hash of what was recorded
        end = json.loads(ended.read_text())
        ended.write_text(
            json.dumps({k: v for k, v in end.items() if k not in ("records", "sha256")})
        )
    copy.write_plan("tiny", {}, {s.id: s for s in STUDY.specs})
    Searches(copy, PLAN.studies).advance()
    return copy.journal(STUDY.id).draws()


@pytest.mark.slow
def test_only_the_evidence_of_its_rule_counts(tmp_path: Path, undisturbed: Results) -> None:
    same = altered(tmp_path / "same", undisturbed, lambda e: False)
    assert same[:4] == undisturbed.journal(STUDY.id).draws()[:4]
    hidden = altered(
        tmp_path / "hidden",
        undisturbed,
        lambda e: e["environment"] == "5" or e["split"] == "in" or e["metric"] != "mse",
    )
    assert hidden == same
    seen = altered(tmp_path / "seen", undisturbed, lambda e: e["split"] == "out")
    assert seen != same


@pytest.mark.slow
def test_failed_and_diverged_runs_do_not_stop_it(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"algorithms": ["Raising", "Exploding"], "steps": 80, "trials": 1}
    changes["search"] = SEARCH | {"runs": 15}
    launched = launch(tmp_path, "--plugin", "tests.helpers.odd_methods", **changes)
    assert launched.exit_code == 1
    states = [state for state, _ in outcome(Results(tmp_path / "out")).values()]
    assert (states.count(State.FAILED), states.count(State.DIVERGED)) == (15, 15)


@pytest.mark.slow
def test_tables_and_status_say_how_it_was_searched(tmp_path: Path, undisturbed: Results) -> None:
    def table(path: Path) -> str:
        text = CliRunner().invoke(report, ["table", str(path), "--format", "markdown"]).output
        return " ".join(text.split())

    assert "hparam draws: 20 (TPE by train_val, 40 runs a cell)" in table(undisturbed.path)
    assert len(choose(load_frames(undisturbed))) == 2
    out = tmp_path / "out"
    shutil.copytree(undisturbed.path, out)
    (journal,) = out.glob("searches/*.jsonl")
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:3]))
    assert "hparam draws: 16 of 20 (TPE by train_val, 40 runs a cell)" in table(out)
    assert choose(load_frames(Results(out))).empty  # an unfinished search has no numbers yet
    shown = CliRunner().invoke(app, ["status", str(out)]).output
    assert "The search has chosen 32 of 40 runs so far." in shown
    assert "The search" not in CliRunner().invoke(app, ["status", str(undisturbed.path)]).output
    assert CliRunner().invoke(app, ["clean", str(undisturbed.path), "--yes"]).exit_code == 0
    assert len(list(undisturbed.path.glob("runs/*/done.json"))) == 40


def test_plan_tells_the_whole_number(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(tiny_file(tmp_path, **CHANGES))])
    assert "40 runs in sweep 'tiny'" in result.output and "20 by TPE" in result.output


def test_values_of_the_file_are_not_searched() -> None:
    network = {"name": "MLP", "hparams": {"width": 8}}
    plan = tiny(**CHANGES | {"network": network})
    names = set(plan.studies[0].space)
    assert {"lr", "penalty_weight"} <= names and "network.width" not in names
    assert "network.width" in tiny(**CHANGES | {"network": "MLP"}).studies[0].space
    fixed = {"name": "IRM", "hparams": {"lr": 0.1}}
    assert set(tiny(**CHANGES | {"algorithms": [fixed]}).studies[0].space) == set(STUDY.space) - {
        "lr"
    }


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, "train_val"),
        ({"validation_environments": ["2"]}, "train_val"),
        ({"validation_environments": ["2"], "holdout": 0}, "val_env"),
    ],
)
def test_the_default_objective_is_what_it_was_before_tables_preferred_val_env(
    changes: dict[str, Any], rule: str
) -> None:
    (study,) = tiny(**CHANGES | changes).studies
    assert study.search.objective == rule


def test_a_validation_environment_may_be_the_objective() -> None:
    search = SEARCH | {"objective": "val_env"}
    assert tiny(**CHANGES | {"search": search, "validation_environments": ["2"]}).studies


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search": {"method": "tpe"}}, "search.runs is missing"),
        ({"search": SEARCH | {"method": "grid"}}, "search.method must be tpe, not 'grid'"),
        ({"search": SEARCH | {"rums": 3}}, "unknown key 'rums' in search; did you mean runs"),
        ({"search": SEARCH | {"runs": 1}}, "search: 1 runs are fewer than the 2 trials of a draw"),
        ({"search": SEARCH | {"objective": "orcale"}}, "'orcale'; did you mean oracle"),
        ({"search": SEARCH | {"objective": "val_env"}}, "val_env needs `validation_environments:`"),
        ({"search": SEARCH | {"objective": "leave_one_out"}}, "cannot serve leave_one_out"),
        ({"test_environments": "pairs"}, "cannot serve leave_one_out and its pairs"),
        ({"holdout": 0}, "train_val needs a holdout above 0"),
        ({"hparam_draws": 3}, "has both hparam_draws and a search"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_plan(validate(TINY | CHANGES | changes, "tiny"))
    assert "\n" not in str(caught.value)


def test_a_list_for_the_draws_is_no_value_of_a_search() -> None:
    rates = [0.1] * 13
    with pytest.raises(UserError, match="a search takes one value of 'lr' or none, not the list"):
        tiny(**CHANGES | {"algorithms": [{"name": "IRM", "hparams": {"lr": rates}}]})


def test_nothing_to_search_is_named() -> None:
    lr = {name: STUDY.specs[0].hparams[name] for name in STUDY.space}
    with pytest.raises(UserError, match=r"IRM on LinearSEM.* has no hyperparameter left to search"):
        tiny(**CHANGES | {"algorithms": [{"name": "IRM", "hparams": lr}]})
