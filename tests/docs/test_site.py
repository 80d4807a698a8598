"""The site that `make docs` builds."""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.version import __version__
from tests.helpers.algorithms.ours import ours
from tests.helpers.commands import python
from tests.helpers.paths import ROOT

LOADED = re.compile(r'<(?:script|link|img)\b[^>]*\b(?:src|href)="(https?:[^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: a warning is an error. tests/tutorials runs its notebooks."""
    out = tmp_path_factory.mktemp("site")
    options = (
        "--fail-on-warning --keep-going --quiet --define nb_execution_mode=off --jobs 2".split()
    )
    done = python(ROOT, "-m", "sphinx", *options, "docs", str(out))
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.nightly
def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    texts = {page: page.read_text() for page in site.rglob("*.html")}
    assert {url for text in texts.values() for url in LOADED.findall(text)} == set()
    of_this_machine = (str(ROOT), sys.executable)
    assert [p for p, text in texts.items() if any(x in text for x in of_this_machine)] == []
    names = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    dead = []
    for page, text in texts.items():
        for target in set(re.findall(r'<a\b[^>]*\bhref="([^"]*)"', text)):
            path, _, anchor = unquote(target).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            leads_to = (page.parent / path).resolve() if path else page
            there = leads_to.is_file() and (not anchor or anchor in names.get(leads_to, {anchor}))
            dead += [] if there else [f"{page.relative_to(site)}: {target}"]
    assert not dead and len(texts) > 300, dead


@pytest.mark.nightly
def test_every_method_and_dataset_has_a_page_that_says_the_version(site: Path) -> None:
    shown = [
        *(("algorithms", n) for n in ours(algorithms)),
        *(("datasets", n) for n in ours(datasets)),
    ]
    for kind, name in shown:
        assert f"oodbench {__version__}" in (site / "api" / kind / f"{name}.html").read_text()
    method = (site / "api" / "algorithms" / "IRM.html").read_text().replace("\u00a0", " ")
    frozen = (ROOT / "docs" / "boards" / "small.v3.md").read_text()
    (value, *_) = re.findall(r"\| IRM +\| +(\S+ ± \S+) \|", frozen)
    assert all(text in method for text in ("arXiv:1907.02893", value, "penalty_weight"))
