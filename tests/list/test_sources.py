import ast

import pytest

from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.list.registered import registered_entries
from oodbench.list.sources import _entries, own_entries, summary
from oodbench.networks.base import networks

OWN = "oodbench."


def own(kind: str) -> list[str]:
    """The names of a kind that are not from tests."""
    registry = {"algorithm": algorithms, "dataset": datasets, "network": networks}[kind]
    return [name for name in registry if registry.get(name).__module__.startswith(OWN)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["algorithm", "dataset", "network"])
def test_the_files_say_what_the_registry_holds(kind: str) -> None:
    found = {entry.name: entry for entry in own_entries() if entry.kind == kind}
    assert list(found) == own(kind)
    registered = {entry.name: entry for entry in registered_entries() if entry.kind == kind}
    assert found == {name: registered[name] for name in own(kind)}


def test_every_entry_has_a_sentence_and_a_paper() -> None:
    for entry in own_entries():
        assert entry.summary.endswith("."), entry
        assert entry.paper or entry.kind == "network", entry


def test_only_classes_that_are_registered_are_entries() -> None:
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
    (entry,) = _entries("dataset", ast.parse(source), {})
    assert (entry.name, entry.summary, entry.paper) == ("One", "Is one.", "arXiv:1")


def test_the_summary_is_the_first_line_of_a_docstring() -> None:
    assert summary("One.\n\n    Two.") == "One."
    assert summary(None) == ""
