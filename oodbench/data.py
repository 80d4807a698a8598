"""The files of datasets on the command line: download, verify, list."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from oodbench.errors import reports_mistakes

if TYPE_CHECKING:
    from oodbench.datasets import Dataset

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A dataset.")]
DataDir = Annotated[Path, typer.Option(help="Where the files are, or go to.")]
Options = Annotated[list[str] | None, typer.Option("--set", help="OPTION=VALUE of the dataset.")]
Plugins = Annotated[list[str] | None, typer.Option("--plugin", help="A module to import first.")]


@app.command()
@reports_mistakes
def download(name: Name, data_dir: DataDir, set_: Options = None, plugin: Plugins = None) -> None:
    """Fetch the files of a dataset, then verify them."""
    dataset = _dataset(name, data_dir, set_, plugin)
    dataset.download(data_dir)
    _verify(dataset)


@app.command()
@reports_mistakes
def verify(name: Name, data_dir: DataDir, set_: Options = None, plugin: Plugins = None) -> None:
    """Say whether the files of a dataset are there and have the right checksums."""
    _verify(_dataset(name, data_dir, set_, plugin))


@app.command("list")
@reports_mistakes
def list_(plugin: Plugins = None) -> None:
    """Show which files each dataset reads under the data directory."""
    from oodbench.datasets import datasets
    from oodbench.registry import load_plugins

    load_plugins(plugin or [])
    table = Table("dataset", Column("files", no_wrap=True), "licence")
    for name in datasets:
        metadata = datasets.get(name).metadata
        table.add_row(name, "\n".join(metadata.checksums) or "none", metadata.licence)
    Console().print(table)


def _dataset(
    name: str, data_dir: Path, settings: list[str] | None, plugins: list[str] | None
) -> "Dataset":
    from oodbench.datasets import make
    from oodbench.registry import load_plugins
    from oodbench.sweep_file import parse_settings

    load_plugins(plugins or [])
    return make(name, parse_settings(settings or []), data_dir)


def _verify(dataset: "Dataset") -> None:
    dataset.check()
    name, count = dataset.name, len(dataset.checksums)
    where = f"{count} files in {dataset.data_dir}"
    print(f"{name}: {where} are right" if count else f"{name} reads no files")


if __name__ == "__main__":
    app()
