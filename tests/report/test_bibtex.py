"""The entries of a paper's bibliography."""

import re
from pathlib import Path

from oodbench.report.bibtex import entries, keys_of, own_files, papers
from tests.helpers.results.made import OneStep, report, spec

KNOWN = {name: paper for name, paper in papers(own_files()).items() if paper not in ("", "none")}


def test_what_was_published_has_an_entry() -> None:
    lacking = [paper for paper in KNOWN.values() if not keys_of(paper)]
    assert not lacking, "oodbench/report/papers.bib lacks them"


def test_an_entry_has_authors_a_title_and_the_year_of_its_key() -> None:
    for key, entry in entries().items():
        assert entry.count("{") == entry.count("}"), key
        fields = dict(re.findall(r"^  (\w+) = {(.*)},$", entry, re.MULTILINE))
        assert {"author", "title", "year"} <= fields.keys(), key
        assert fields["year"] == re.sub("[^0-9]", "", key)
        year = fields.get("eprint", "9999")[:2]
        assert year == "99" or int(f"20{year}") <= int(fields["year"]), key


def test_the_entries_of_results_are_printed(tmp_path: Path) -> None:
    made = OneStep(tmp_path)
    for label in ("IRM", "VREx"):
        made.add(spec("PACS", label), 0.5)
    code, text, error = report("bibtex", made.results.path)
    assert code == 0, error
    for key in ("arjovsky2019", "krueger2021", "li2017"):
        assert text.count(f"{{{key},") == 1
    assert "There is no entry for" in error and "mlp" in error
