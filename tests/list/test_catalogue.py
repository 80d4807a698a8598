"""The catalogue in the terminal, and the page that is committed."""

from pathlib import Path

from oodbench.list.catalogue import Entry, listing, markdown, registered_entries, registries
from oodbench.registry import CHANGES, word, written
from tests.helpers.paths import ROOT


def own_entries() -> list[Entry]:
    """The entries that are not from tests."""
    known = registries()
    modules = {e: known[e.kind].get(e.name).__module__ for e in registered_entries()}
    return [entry for entry, module in modules.items() if module.startswith("oodbench.")]


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
    assert (name, node.name, word(call, "paper")) == ("One", "One", "arXiv:1")
