"""Links and commands of README.md, AGENTS.md and docs/."""

import importlib
import re
import shlex
import tomllib
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from oodbench.datasets import datasets, make
from oodbench.errors import UserError
from oodbench.sweep.file import Sweep, validate
from oodbench.version import __version__
from tests.helpers.paths import ROOT, blocks

PAGES = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    ROOT / "CHANGELOG.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts),
    *sorted((ROOT / ".github").rglob("*.md")),
]
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s]+)\)")
"""A link that is not an address."""


@cache
def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def test_every_relative_link_leads_somewhere() -> None:
    links = [(page, target) for page in PAGES for target in LINK.findall(page.read_text())]
    for page, target in links:
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), f"{target} in {page}"
        assert not anchor or anchor in anchors(found), f"{target} in {page}"


def test_the_citation_has_the_version_and_what_the_format_asks_for() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["title"] and citation["message"] and citation["authors"][0]["name"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["license"] == project["license"]
    assert citation["repository-code"] == project["urls"]["Source"]
    assert citation["keywords"] == project["keywords"]


def test_a_release_is_archived_after_it_is_published() -> None:
    path = ROOT / ".github" / "workflows" / "release.yml"
    text = path.read_text().replace("${GITHUB_REF_NAME#v}", __version__)
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["archive"]["needs"] == "publish" and jobs["publish"]["needs"] == "try"
    assert rf'grep -Fx "version: \"{__version__}\"" CITATION.cff' in text
    (notes,) = re.findall(r'--notes-file "(.*?)"', text)
    assert (ROOT / notes).is_file()


def test_the_datasets_of_the_guides_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_classes", dict(datasets.items()))
    for page in ("guide/add_dataset.md", "tutorials/add_a_dataset.md"):
        exec(blocks(f"docs/{page}")[0], {"__name__": "guides"})
    found = make("Clouds", {"size": 50, "environments": 4}).load(0)
    assert [len(e.y) for e in found.values()] == [50] * 4
    with pytest.raises(UserError, match=r"'sizes' .*; did you mean size"):
        make("Clouds", {"sizes": 50})
    assert [len(e.y) for e in make("TurningLine", {}).load(0).values()] == [400] * 4


def shown_commands() -> list[str]:
    """The lines of the pages that start with one of our commands, without what a shell makes of them."""
    texts = [page.read_text().replace("\\\n", "") for page in PAGES]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    found = (re.match(r"python -m oodbench\.[^#>`&|]*", line) for line in lines)
    return sorted({match[0].strip() for match in found if match})


@cache
def options_of(module: str, verbs: tuple[str, ...]) -> set[str]:
    app = importlib.import_module(module).app
    shown = CliRunner().invoke(app, [*verbs, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    return set(re.findall(r"--[a-z-]+", shown.output))


def test_every_command_that_is_shown_is_there() -> None:
    """Its verb, and the options that follow; files and names are those of whoever types it."""
    for line in shown_commands():
        _, _, module, *arguments = shlex.split(line)
        with suppress(ModuleNotFoundError):
            module = importlib.import_module(f"{module}.__main__").__name__
        app = importlib.import_module(module).app
        groups = {group.name for group in app.registered_groups}
        verbs = arguments[: 1 + (arguments[:1] != [] and arguments[0] in groups)]
        alone = len(app.registered_commands) == 1 and not app.registered_callback
        options = options_of(module, () if alone and not groups else tuple(verbs))
        assert {argument for argument in arguments if argument.startswith("-")} <= options, line


def test_the_guide_has_every_key_of_a_sweep() -> None:
    (text,) = blocks("docs/guide/sweep.md", "yaml")
    assert set(Sweep.model_fields) - set(yaml.safe_load(text)) == {"protocol"}
    validate(yaml.safe_load(text), "docs/guide/sweep.md")


def test_what_the_architecture_names_is_there() -> None:
    """Each answer's module or folder, and the functions and classes in brackets behind it."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    text = page.partition("## Where is it decided?")[2].partition("\n## ")[0]
    for path, names in re.findall(r"`(oodbench/[\w/.]+)`(?: \(([^)]*)\))?", text):
        assert (ROOT / path).exists(), path
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^(def|class) {name}\b", (ROOT / path).read_text(), re.M), name
