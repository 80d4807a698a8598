"""What README.md shows works as it stands there."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

from oodbench.board.rerun import BOARD, DATASET, ROWS, TRIALS
from oodbench.report.cells import scores
from oodbench.report.comparison import gains, left_by_holm
from oodbench.report.gaps import BASELINE, HALVES, gaps_of
from oodbench.report.numbers import with_error
from oodbench.report.sources import frames_of
from oodbench.report.tables.leaderboard import leaderboard
from oodbench.results.tables import Tables, subset
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from tests.helpers.algorithms.plugins import plugins_in
from tests.helpers.commands import python, type_in
from tests.helpers.paths import ROOT, blocks
from tests.helpers.results.sweeps import SPIRALS

pytestmark = pytest.mark.slow

PLACES = ("Leiden", "Rotterdam", "Utrecht")
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def frames() -> Tables:
    return frames_of([BOARD])


@pytest.mark.usefixtures("here")
def test_it_is_short_and_its_sweep_can_be_planned() -> None:
    assert len(README.splitlines()) <= 120
    rows = ("nodes,target,environment", *(f"{n},{n % 2},{e}" for n in range(9) for e in PLACES))
    Path("patients.csv").write_text("\n".join(rows) + "\n")
    (sweep,) = (validate(yaml.safe_load(text), "README.md") for text in blocks("README.md", "yaml"))
    assert len(make_plan(sweep).runs) == 3 * 3


def test_its_leaderboard_is_the_boards(frames: Tables) -> None:
    (shown,) = blocks("README.md", "text")
    trained = frames.runs.query(f"trial < {TRIALS} and dataset_label == '{DATASET}'")
    board = leaderboard(subset(frames, trained))
    found = board.frame.query("environment == 'mean'").set_index("label")
    cells = [str(with_error(*row)) for row in found[["mean", "stderr", "metric"]].to_numpy()]
    known = dict(zip(found.index, cells, strict=True))
    table = shown.partition("─\n")[2]
    rows = {re.split(r"\s{2,}", line)[0]: line for line in table.splitlines() if line.strip()}
    trained = {label for label, line in rows.items() if line.endswith("here")}
    assert trained == set(ROWS)
    assert {"constant", "ceiling"} < set(rows) <= set(known)
    for label, line in rows.items():
        assert re.findall(r"[\d.]+ ± [\d.]+", line) == [known[label]], label
    assert next(iter(rows)) == found[found["kind"] == "method"]["mean"].idxmin()


@pytest.mark.nightly
def test_its_leaderboard_is_what_quickstart_prints(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "oodbench.board", "quickstart", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    (shown,) = blocks("README.md", "text")
    printed = [line.split() for line in done.stdout.splitlines()]
    assert [line for line in shown.splitlines() if line.split() not in printed] == []
    # the bare launch, typed next in the same folder, has a directory of its own
    done = python(tmp_path, "-m", "oodbench.sweep", "launch")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert names == {"board-quickstart", "quickstart"}


def test_what_it_says_of_the_board_is_so(frames: Tables) -> None:
    numbers = "zero one two three four five six seven eight nine ten eleven twelve".split()
    runs = frames.runs
    of_rows = runs[~runs["ceiling"].eq(True)].groupby("label")["dataset_label"].nunique()
    datasets = runs["dataset_label"].nunique()
    text = r"(\d+) tuned rows; (\d+) of them cover all (\w+) datasets.*\s([\d,]+) runs are frozen"
    told = re.search(text, README)
    counts = (str(len(of_rows)), str(sum(of_rows == datasets)), numbers[datasets], f"{len(runs):,}")
    assert told and told.groups() == counts


def test_what_it_says_of_holms_correction_is_so(frames: Tables) -> None:
    board = leaderboard(frames)
    gaps, found = gaps_of(board.chosen, board.cells), {}
    assert gaps
    for half in HALVES:
        by_dataset = gains(scores(board.cells), BASELINE)
        tests = [d for name in gaps.subsets[half] for d in by_dataset[name].values()]
        found[half] = re.findall(r"\d+", left_by_holm(tests))
    (count, up, down), (other, gained, lost) = found["natural"], found["constructed"]
    assert (
        f"{up} gains and {down} losses remain of {count} comparisons with ERM on natural shifts; "
        f"{gained} gains and {lost} losses remain of {other} on constructed shifts."
    ) in " ".join(README.split())


def test_its_picture_is_what_is_drawn_now(frames: Tables, tmp_path: Path) -> None:
    draw = runpy.run_path(str(ROOT / "docs/pictures/gap_closed.py"))["draw"]
    draw.__globals__["frames_of"] = lambda boards: frames  # which takes seconds to read again
    draw(tmp_path / "now.svg")
    pictures = tmp_path / "now.svg", ROOT / "docs/pictures/gap_closed.svg"
    now, shown = (path.read_text() for path in pictures)
    for part in (r"<text [^>]*>(.*?)</text>", r"<use "):  # places depend on matplotlib's version
        assert re.findall(part, now) == re.findall(part, shown) != []


@pytest.mark.usefixtures("here")
def test_its_sweep_in_python_makes_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    script, _ = blocks("README.md")
    assert len(script.splitlines()) <= 8
    written = "trials=8, hparam_draws=8, steps=600"
    assert written in script
    exec(script.replace(written, "trials=2, hparam_draws=2, steps=20"), {})
    table = capsys.readouterr().out.partition("of 16 runs in results/sem")[2]
    assert {*ROWS, "constant"} <= {*table.split()}


def test_its_algorithm_runs_as_a_plug_in(tmp_path: Path) -> None:
    _, method = blocks("README.md")
    (tmp_path / "my_method.py").write_text(method)
    sweep = {"name": "mine", "datasets": [SPIRALS], "algorithms": ["ERM", "MySD"], "trials": 2}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(sweep | {"steps": 40}))
    launch = ("launch", "mine.yaml", "--yes", "--plugin", "my_method", "--launcher", "debug")
    with plugins_in(tmp_path, "my_method"):
        assert "4 done of 4 runs" in type_in("sweep", *launch, code=0).output


@pytest.mark.nightly
def test_its_algorithm_keeps_the_requirements(tmp_path: Path) -> None:
    _, method = blocks("README.md")
    (tmp_path / "my_method.py").write_text(method)
    check = "import my_method; from oodbench.conformance import check_algorithm; check_algorithm('MySD')"
    checked = python(tmp_path, "-c", check)
    assert checked.returncode == 0, checked.stderr
