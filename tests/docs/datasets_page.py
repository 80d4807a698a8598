"""docs/datasets.md: what ERM leaves to gain on every dataset that can be made here."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter

from oodbench.data.sheet import write_sheet
from oodbench.datasets import Dataset, datasets, make
from oodbench.diagnose import head_room
from oodbench.diagnose.admission import ERM
from oodbench.diagnose.head_room import ALONE, CEILING, HeadRoom, value_text
from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.metrics import is_proportion
from oodbench.report.numbers import gain
from oodbench.sweep.launchers import LaunchOptions
from oodbench.terminal import commands, terminal
from tests.docs.findings import filled, table_row
from tests.helpers.paths import ROOT

DOCS = ROOT / "docs"
MEASURED = DOCS / "datasets" / "measured.json"
"""The figures, by dataset, beside the page."""
OPEN = ("CC", "MIT", "Apache", "free fonts")
"""Beginnings of the licences that allow a dataset's pictures on the page."""
OF_ONES_OWN = ("FrozenFeatures", "HuggingFace", "ImageFolder", "Manifest", "Table", "Texts")
"""Datasets that read the user's own files."""
REASONS = (
    "They are made of the user's own data",
    "They need files or packages, or there was no time for them",
    "They have neither `out` splits nor validation environments to choose runs by",
    "They need no files, and there was no time for them",
)
"""Why registered datasets were not measured."""
RHO = "\N{GREEK SMALL LETTER RHO}"

ROOMS = TypeAdapter(dict[str, HeadRoom])

app = commands(__doc__)


@app.command()
def write_page(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    data_dir: Path | None = None,
    out: Path = Path("results/head-room"),
    steps: int | None = None,
    draws: int = 8,
    trials: int = 3,
) -> None:
    """Measure datasets, with `all` those that are here, and write the page; OUT keeps the runs."""
    for name in datasets if names == ["all"] else names or ():
        try:
            dataset = make(name, {}, data_dir)
            dataset.check()
            _write_picture(dataset)
            options = LaunchOptions(out=out / name, data_dir=data_dir, workers=1)
            room = head_room.head_room(
                name, {}, options, steps=steps, draws=draws, trials=trials, references=False
            )
        except UserError as error:  # such as one of files that are not here
            terminal().say(f"{name}: {error}")
            continue
        head_room.show(room, terminal())
        rooms = {**measured(), name: room}
        texts = {n: asdict(rooms[n]) for n in sorted(rooms, key=str.casefold)}
        write_whole(MEASURED, json.dumps(texts, indent=1) + "\n")
    path = DOCS / "datasets.md"
    write_whole(path, page(path.read_text(encoding="utf-8"), measured(), pictures()))


def measured() -> dict[str, HeadRoom]:
    return ROOMS.validate_json(MEASURED.read_bytes())


def pictures() -> list[str]:
    """The datasets whose contact sheet is beside the page."""
    return sorted((p.stem for p in (DOCS / "datasets").glob("*.png")), key=str.casefold)


def _write_picture(dataset: Dataset) -> None:
    is_open = dataset.metadata.licence.startswith(OPEN)
    if is_open and dataset.task.has_classes and len(dataset.input_shape) == 3:
        write_sheet(dataset, dataset.load(0), DOCS / "datasets" / f"{dataset.name}.png")


def page(text: str, rooms: Mapping[str, HeadRoom], shown: Sequence[str]) -> str:
    """The Markdown page `text`, with these figures and pictures in place of those that it has."""
    values = ("constant", "ERM", "ceiling", "alone", "room")
    budget = ("draws x trials x steps", "s/run")
    columns = ("dataset", "shift", "test", "metric", *values, "passes", RHO, *budget)
    table = [table_row(columns), "| --- " * 4 + "| ---: " * 5 + "| --- | ---: | ---: | ---: |"]
    for name, room in rooms.items():
        table.append(table_row([cell.replace("|", "/") for cell in _cells(name, room)]))
    licences = {name: datasets.get(name).metadata.licence for name in shown}
    images = [f"**{n}** ({licences[n]})\n\n![{n}](datasets/{n}.png)\n" for n in shown]
    parts = {"measured": table, "others": [*_unmeasured(rooms)], "pictures": images}
    return filled(text, parts)


def _cells(name: str, room: HeadRoom) -> list[str]:
    figures = room.figures
    erm, like_test, alone = figures.outside[ERM], *map(figures.ceilings.get, (CEILING, ALONE))
    values = (room.constant, erm, like_test, alone)
    unit = " (%)" if is_proportion(figures.metric) else ""
    rho = "-" if room.spearman is None else f"{room.spearman[0]:+.2f}"
    has_room = figures.room is not None and figures.room >= figures.least_room
    verdict = "at chance" if room.is_at_chance else "yes" if has_room else "no"
    return [
        name,
        datasets.get(name).metadata.shift,
        ", ".join(room.tests),
        figures.metric + unit,
        *(value_text(value, figures.metric) for value in values),
        "-" if figures.room is None else gain(figures.room, figures.metric),
        verdict,
        f"**{rho}**" if room.is_on_the_line else rho,
        f"{room.draws} x {room.trials} x {room.steps}",
        f"{room.seconds:.1f}",
    ]


def _unmeasured(rooms: Mapping[str, HeadRoom]) -> Iterator[str]:
    """A line for each reason why registered datasets were not measured."""
    names: dict[str, list[str]] = {reason: [] for reason in REASONS}
    for name in datasets:
        metadata = datasets.get(name).metadata
        if name in rooms:
            continue
        if name in OF_ONES_OWN:
            number = 0
        elif metadata.checksums or metadata.folder:
            number = 1
        else:
            number = 3 if head_room.has_choice(make(name, {})) else 2
        names[REASONS[number]].append(name)
    yield from (f"- {reason}: {', '.join(each)}." for reason, each in names.items() if each)


if __name__ == "__main__":
    app()
