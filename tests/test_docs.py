"""Links and commands of README.md and docs/."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import oodbench
from tests.helpers.paths import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), f"{target} in {page}"
        assert not anchor or anchor in anchors(found), f"{target} in {page}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in PAGES:
        inner = page.is_relative_to(ROOT / "docs" / "papers") and page.name != "README.md"
        if page.is_relative_to(ROOT / "docs") and page != ROOT / "docs" / "README.md" and not inner:
            assert (
                f"]({page.relative_to(ROOT / 'docs')})" in index or page.parent.name == "own_data"
            )


def named_paths() -> list[str]:
    """Files of the project that pages, sources and sweeps name."""
    files = [
        *PAGES,
        *(p for r in ("oodbench", "algorithms", "datasets") for p in (ROOT / r).rglob("*.py")),
    ]
    texts = [file.read_text() for file in [*files, *(ROOT / "sweeps").rglob("*.yaml")]]
    return sorted(
        {n for text in texts for n in re.findall(r"\bdocs/[\w/-]+\.(?:md|py|yaml)\b", text)}
    )


@pytest.mark.parametrize("path", named_paths())
def test_every_page_that_is_named_is_there(path: str) -> None:
    assert (ROOT / path).is_file()


def blocks(page: str, language: str) -> list[str]:
    """The code of a page of docs/ in one language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a sweep with the guides' methods and dataset was launched."""
    folder = tmp_path_factory.mktemp("guides")
    (folder / "my_method.py").write_text("\n".join(blocks("guide/add_algorithm.md", "python")))
    (folder / "my_data.py").write_text("\n".join(blocks("guide/add_dataset.md", "python")))
    rows = ["ERM", "RiskSpread", "MedianGradient"]
    sweep = {
        "name": "mine",
        "datasets": ["Rotations"],
        "algorithms": rows,
        "trials": 1,
        "steps": 20,
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(sweep))
    plugins = ["--plugin", "my_method", "--plugin", "my_data"]
    launch = ["-m", "oodbench.sweep", "launch", "mine.yaml", "--yes", "--workers", "1", *plugins]
    for command in (launch, ["-m", "oodbench.data", "check", "Rotations", "--plugin", "my_data"]):
        done = python(folder, *command)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.slow
def test_the_guides_methods_and_dataset_run(trained: Path) -> None:
    records = oodbench.load(trained / "results" / "mine")
    assert set(records["algorithm"]) == {"ERM", "RiskSpread", "MedianGradient"}
    assert set(records["state"]) == {"done"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RiskSpread", "MedianGradient"])
def test_the_guides_methods_keep_the_rules(trained: Path, name: str) -> None:
    check = f"import my_method; from oodbench.conformance import check_algorithm as c; c({name!r})"
    done = python(trained, "-c", check)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_results_directory_is_as_its_guide_says(trained: Path) -> None:
    runs = trained / "results" / "mine" / "runs"
    (shown,) = map(json.loads, blocks("guide/results_format.md", "json"))
    for run in runs.iterdir():
        record = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
        assert record.keys() == shown.keys()
        assert record["cost"].keys() == shown["cost"].keys()
        assert record["evaluations"][0].keys() == shown["evaluations"][0].keys()
    files = {p.name for root in (runs.parent, *runs.iterdir()) for p in root.iterdir()}
    text = (ROOT / "docs" / "guide" / "results_format.md").read_text()
    assert [name for name in files - {"runs"} if name not in text] == []
