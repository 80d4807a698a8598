from pathlib import Path
from typing import Any

import pytest

from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.list.catalogue import listing, markdown, own_entries
from oodbench.list.details import registered_entries
from oodbench.networks.base import networks
from oodbench.registry import CHANGES, paper_of, written
from tests.helpers.algorithms.ours import ours
from tests.helpers.paths import ROOT


def test_the_committed_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "catalogue.md").read_text() == markdown(own_entries())


def test_algorithms_stand_under_what_they_change() -> None:
    text = listing(own_entries(), 80)
    titles = [line for line in text.splitlines() if line.startswith("algorithms")]
    assert titles[0] == "algorithms, risk: how the environments' risks become one"
    assert [title.split(": ")[0].removeprefix("algorithms, ") for title in titles] == [*CHANGES]
    penalties = text.partition(titles[1])[2].partition("\n\n")[0]
    assert "  CORAL" in penalties and "  ERM" not in penalties
    assert "(transductive)" in text.partition("  MTL")[2].partition("  RI")[0]


@pytest.mark.parametrize(
    ("kind", "registry"),
    [("algorithm", algorithms), ("dataset", datasets), ("network", networks)],
)
def test_the_files_say_what_the_registry_holds(kind: str, registry: Any) -> None:
    found = {entry.name: entry for entry in own_entries() if entry.kind == kind}
    assert list(found) == list(ours(registry))
    registered = {entry.name: entry for entry in registered_entries() if entry.kind == kind}
    assert found == {name: registered[name] for name in found}


def test_only_classes_that_are_registered_are_entries(tmp_path: Path) -> None:
    source = '''
@register("One", Metadata(licence="MIT", paper="arXiv:1"))
class One(Base):
    """Is one.

    At length.
    """

@dataclass(frozen=True)
class Two:
    """Is none."""

@register(name, paper="no literal")
class Three:
    """Is none that can be read."""
'''
    (tmp_path / "some.py").write_text(source)
    ((name, call, node, _),) = written([tmp_path / "some.py"])
    assert (name, node.name, paper_of(call)) == ("One", "One", "arXiv:1")
