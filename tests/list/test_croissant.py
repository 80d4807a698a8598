"""Datasets in Croissant, as the validator of its authors reads them."""

import json

import mlcroissant
import pytest

from oodbench.datasets import datasets, make
from oodbench.list.croissant import CROISSANT, croissant
from oodbench.report.bibtex import entries
from oodbench.version import __version__
from tests.helpers.commands import mistake, type_in

pytestmark = pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated")  # rdflib's own


@pytest.mark.parametrize("name", [*datasets])
def test_every_dataset_is_valid_croissant(name: str) -> None:
    metadata = mlcroissant.Dataset(croissant(name)).metadata
    assert metadata.ctx.conforms_to.value == f"{CROISSANT}/1.0"
    assert (metadata.name, metadata.version) == (name, __version__)
    assert metadata.description and metadata.license and metadata.data_biases
    assert metadata.data_limitations and metadata.data_use_cases
    about = datasets.get(name).metadata
    assert metadata.url or "arXiv" not in about.paper
    assert {file.md5 for file in metadata.file_objects} == {*about.checksums.values()}


def records(name: str, record_set: str) -> list[tuple[str, str]]:
    found = mlcroissant.Dataset(croissant(name)).records(record_set)
    return [(first, second) for first, second in map(dict.values, found)]


def test_environments_are_splits_and_classes_are_numbered() -> None:
    roles = dict(records("Flights", "environments"))
    dataset = make("Flights", {})
    assert [*roles] == [*dataset.environments]
    assert roles["Jun-Jul"] == "cr:TestSplit" and roles["May+Aug"] == "cr:ValidationSplit"
    assert roles["Jan-Feb"] == "cr:TrainingSplit"
    assert records("Flights", "classes") == [("on time", "0"), ("late", "1")]


def test_a_paper_is_cited_with_its_authors() -> None:
    metadata = mlcroissant.Dataset(croissant("IRMExample")).metadata
    assert metadata.cite_as == entries()["arjovsky2019"]
    assert [person.name for person in metadata.creators][:2] == ["Martin Arjovsky", "Léon Bottou"]
    assert metadata.date_published.year == 2019
    everyone = {p["name"] for name in datasets for p in croissant(name).get("creator", [])}
    assert everyone and not {*"{}\\"} & {*"".join(everyone)}


def test_the_command_prints_json_and_says_what_authors_add() -> None:
    result = type_in("list", "Spirals", "--format", "croissant")
    assert json.loads(result.stdout) == json.loads(json.dumps(croissant("Spirals")))
    assert "rai:personalSensitiveInformation" in result.stderr


def test_what_is_no_dataset_is_refused() -> None:
    said = mistake(type_in("list", "IRM", "--format", "croissant"))
    assert said == "error: Croissant describes datasets, and IRM is of the kind 'algorithm'"
    assert "give its name" in mistake(type_in("list", "--format", "croissant"))
    assert "Spirals" in mistake(type_in("list", "Spiral", "--format", "croissant"))
