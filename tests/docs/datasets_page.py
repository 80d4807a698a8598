"""docs/datasets.md: what ERM leaves to gain on every dataset that can be made here."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter

from oodbench.datasets import Dataset, datasets, make
from oodbench.diagnose.admission import ERM
from oodbench.diagnose.head_room import (
    ALONE,
    CEILING,
    HeadRoom,
    has_choice,
    head_room,
    show,
    value_text,
)
from oodbench.errors import UserError, unknown
from oodbench.files import write_whole
from oodbench.metrics import is_proportion
from oodbench.report.numbers import gain
from oodbench.sweep.launchers import LaunchOptions
from oodbench.terminal import commands, terminal
from tests.docs.findings import filled, table_row

DOCS = Path("docs")
MEASURED = "datasets/measured.json"
"""The figures, by dataset, beside the page."""
OPEN = ("CC", "MIT", "Apache", "free fonts")
"""Beginnings of the licences that allow a dataset's pictures on the page."""
OF_ONES_OWN = ("FrozenFeatures", "HuggingFace", "ImageFolder", "Manifest", "Table", "Texts")
"""Datasets that read the user's own files."""

RHO = "\N{GREEK SMALL LETTER RHO}"

ROOMS = TypeAdapter(dict[str, HeadRoom])

app = commands(__doc__)


@app.command()
def write_page(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Datasets to measure.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where their files are.")] = None,
    out: Annotated[Path, typer.Option(help="Keeps the runs.")] = Path("results/head-room"),
    docs: Annotated[Path, typer.Option(help="The folder of the page.")] = DOCS,
    steps: Annotated[int | None, typer.Option(min=1, help="Of a run; at most 600.")] = None,
    draws: Annotated[int, typer.Option(min=2)] = 8,
    trials: Annotated[int, typer.Option(min=2)] = 3,
) -> None:
    """Measure datasets, with `all` those that are here, and write the page."""
    known = list(datasets)
    wanted = known if names == ["all"] else names or []
    (docs / "datasets").mkdir(exist_ok=True)
    for name in wanted:
        if name not in known:
            raise unknown("dataset", name, known)
        dataset = _here(name, data_dir)
        if dataset is None:
            continue
        _write_picture(dataset, docs)
        options = LaunchOptions(out=out / name, data_dir=data_dir, workers=1)
        try:
            room = head_room(
                name, {}, options, steps=steps, draws=draws, trials=trials, references=False
            )
        except UserError as error:
            terminal().say(f"{name}: {error}")
            continue
        show(room, terminal())
        rooms = {**measured(docs), name: room}
        texts = {n: asdict(rooms[n]) for n in sorted(rooms, key=str.casefold)}
        write_whole(docs / MEASURED, json.dumps(texts, indent=1) + "\n")
    path = docs / "datasets.md"
    write_whole(path, page(path.read_text(encoding="utf-8"), measured(docs), pictures(docs)))


def measured(docs: Path) -> dict[str, HeadRoom]:
    """The figures beside the page in `docs`, by dataset."""
    path = docs / MEASURED
    return ROOMS.validate_json(path.read_bytes()) if path.is_file() else {}


def pictures(docs: Path) -> list[str]:
    """The datasets whose contact sheet is beside the page."""
    return sorted((p.stem for p in (docs / "datasets").glob("*.png")), key=str.casefold)


def _here(name: str, data_dir: Path | None) -> Dataset | None:
    """The dataset with its default options, or None if its files are not here."""
    try:
        dataset = make(name, {}, data_dir)
        dataset.check()
    except UserError:
        return None
    return dataset


def _write_picture(dataset: Dataset, docs: Path) -> None:
    from oodbench.data.sheet import write_sheet

    is_open = dataset.metadata.licence.startswith(OPEN)
    if is_open and dataset.task.has_classes and len(dataset.input_shape) == 3:
        write_sheet(dataset, dataset.load(0), docs / "datasets" / f"{dataset.name}.png")


def page(text: str, rooms: Mapping[str, HeadRoom], shown: Sequence[str]) -> str:
    """The Markdown page `text`, with these figures and pictures in place of those that it has."""
    values = ("constant", "ERM", "ceiling", "alone", "room")
    budget = ("draws x trials x steps", "s/run")
    columns = ("dataset", "shift", "test", "metric", *values, "passes", RHO, *budget)
    table = [_row(columns), "| --- " * 4 + "| ---: " * 5 + "| --- | ---: | ---: | ---: |"]
    table += [_row(_cells(name, room)) for name, room in rooms.items()]
    images = [f"**{n}** ({_licence(n)})\n\n![{n}](datasets/{n}.png)\n" for n in shown]
    parts = {"measured": table, "others": [*_unmeasured(rooms)], "pictures": images}
    return filled(text, parts)


def _licence(name: str) -> str:
    return datasets.get(name).metadata.licence


def _row(cells: Sequence[str]) -> str:
    return table_row([cell.replace("|", "/") for cell in cells])


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
    rest = [name for name in datasets if name not in rooms]
    users = [name for name in rest if name in OF_ONES_OWN]
    with_files = [n for n in rest if n not in users and _needs_files(n)]
    other = [name for name in rest if name not in users + with_files]
    unchosen = [n for n in other if not has_choice(make(n, {}))]
    reasons = {
        "They are made of the user's own data": users,
        "They need files or packages, or there was no time for them": with_files,
        "They have neither `out` splits nor validation environments to choose runs by": unchosen,
        "They need no files, and there was no time for them": [
            name for name in other if name not in unchosen
        ],
    }
    for reason, names in reasons.items():
        if names:
            yield f"- {reason}: {', '.join(names)}."


def _needs_files(name: str) -> bool:
    metadata = datasets.get(name).metadata
    return bool(metadata.checksums or metadata.folder)


if __name__ == "__main__":
    app()
