"""Links and commands of README.md and docs/."""

import re
from pathlib import Path

import pytest

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
