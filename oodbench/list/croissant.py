"""A dataset's metadata in Croissant (mlcommons.org/croissant)."""

import mimetypes
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from oodbench.datasets import datasets, make
from oodbench.errors import UserError
from oodbench.list.details import details
from oodbench.report.bibtex import entries, keys_of
from oodbench.version import __version__

CROISSANT = "http://mlcommons.org/croissant"
TERMS = """citeAs column conformsTo dataType extract field fileObject fileProperty fileSet format includes
isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate
separator source subField transform equivalentProperty"""
CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": f"{CROISSANT}/",
    "dct": "http://purl.org/dc/terms/",
    "rai": f"{CROISSANT}/RAI/",
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in TERMS.split()},
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
}
"""The JSON-LD context of Croissant 1.0."""
LETTERS = {
    r"{\l}": "\N{LATIN SMALL LETTER L WITH STROKE}",
    r"{\c{c}}": "\N{LATIN SMALL LETTER C WITH CEDILLA}",
}
ACCENTS = {
    "'": "\N{COMBINING ACUTE ACCENT}",
    "`": "\N{COMBINING GRAVE ACCENT}",
    '"': "\N{COMBINING DIAERESIS}",
}
"""The letters and accents that papers.bib writes in TeX."""
UNTOLD = "rai:personalSensitiveInformation, rai:dataSocialImpact and rai:dataAnnotationProtocol"
"""Fields that are not in the metadata."""


def croissant(name: str, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """The core and RAI fields of a dataset with default options, as JSON-LD.

    Unknown fields are left out; environments and classes are record sets. Raises UserError for an unknown
    name, and for a name that is not a dataset's.
    """
    about = details(name, plugins)
    if about["kind"] != "dataset":
        raise UserError(
            f"Croissant describes datasets, and {name} is of the kind '{about['kind']}'"
        )
    metadata = datasets.get(name).metadata
    fields: dict[str, Any] = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": [f"{CROISSANT}/1.0", f"{CROISSANT}/RAI/1.0"],
        "name": name,
        "description": about["description"],
        "license": metadata.licence,
        "version": __version__,
        "keywords": ["out-of-distribution generalization", metadata.family, metadata.shift],
        "url": _page(metadata.paper),
        **_published(metadata.paper),
        "distribution": [_file(path, md5) for path, md5 in metadata.checksums.items()],
        "recordSet": [*_record_sets(name, about)],
        **_responsible(about),
    }
    return {key: value for key, value in fields.items() if value not in ([], "")}


def _page(paper: str) -> str:
    found = re.search(r"arXiv:(\S+\d)", paper)
    return f"https://arxiv.org/abs/{found[1]}" if found else ""


def _published(paper: str) -> dict[str, Any]:
    found = [entries()[key] for key in keys_of(paper)]
    if not found:
        return {"citeAs": "" if paper == "none" else paper}
    (authors,) = re.findall("author = {(.*)},", found[0])
    (year,) = re.findall("year = {(.*)},", found[0])
    for command, letter in LETTERS.items():
        authors = authors.replace(command, letter)
    accented = re.sub(r"{\\(.)(\w)}", lambda match: match[2] + ACCENTS[match[1]], authors)
    names = unicodedata.normalize("NFC", re.sub("[{}]", "", accented)).split(" and ")
    people = [{"@type": "sc:Person", "name": name} for name in names]
    return {"citeAs": "\n\n".join(found), "creator": people, "datePublished": year}


def _file(path: str, md5: str) -> dict[str, str]:
    return {
        "@type": "cr:FileObject",
        "@id": path,
        "name": PurePosixPath(path).name,
        "contentUrl": path,
        "encodingFormat": mimetypes.guess_type(path)[0] or "application/octet-stream",
        "md5": md5,
    }


def _record_sets(name: str, about: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    environments = about["environments"]
    if environments and isinstance(environments, list):  # otherwise they are in the user's files
        roles = dict.fromkeys(environments, "cr:TrainingSplit")
        roles |= dict.fromkeys(about.get("validation_environments", ()), "cr:ValidationSplit")
        roles |= dict.fromkeys(about["test_environments"], "cr:TestSplit")
        yield _record_set("environments", "cr:Split", "url", roles.items())
    with suppress(UserError):  # classes that are read from files
        if classes := make(name, {}).classes:
            numbered = ((each, str(number)) for number, each in enumerate(classes))
            yield _record_set("classes", "sc:Enumeration", "value", numbered)


def _record_set(
    name: str, kind: str, second: str, rows: Iterable[tuple[str, str]]
) -> dict[str, Any]:
    """Rows of a name and a second text."""
    keys = [f"{name}/name", f"{name}/{second}"]
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "dataType": kind,
        "key": {"@id": keys[0]},
        "field": [{"@type": "cr:Field", "@id": key, "dataType": "sc:Text"} for key in keys],
        "data": [dict(zip(keys, row, strict=True)) for row in rows],
    }


def _responsible(about: Mapping[str, Any]) -> dict[str, Any]:
    shift = about["shift"]
    options = (f"{row['name']} = {row['default']}" for row in about["options"])
    return {
        "rai:dataCollection": about["description"].partition("\n\n")[2],
        "rai:dataBiases": [f"Environments differ in {shift}."],
        "rai:dataLimitations": [f"It tests generalization over one shift, {shift}."],
        "rai:dataUseCases": ["Comparing methods of out-of-distribution generalization."],
        "rai:dataPreprocessingProtocol": [
            f"The class {about['module']}.{about['name']} of oodbench prepares the data "
            f"({', '.join(options) or 'without options'})."
        ],
    }
