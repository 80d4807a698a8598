"""Pages of the API, written before the site is read: one of each method, dataset, network and module."""

import importlib
import pkgutil
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import commands
import yaml
from docstrings import escaped, restructured
from sphinx.application import Sphinx

import oodbench
from oodbench.list.details import details, registered_entries
from oodbench.report.comparison import table as leaderboard
from oodbench.results.boards import PROTOCOL_FILE, find_board

BOARD = "small.v3"
GREY = ("constant", "ceiling")
KINDS = {
    "algorithm": "Algorithms",
    "dataset": "Datasets",
    "network": "Networks",
    "adaptation": "Adaptations",
}
TITLES = {
    "cannot": "cannot run on",
    "costs": "a step costs",
    "test_environments": "test environments",
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}


def write(app: Sphinx) -> None:
    """Write docs/api/, which git ignores, anew."""
    folder = Path(app.srcdir) / "api"
    shutil.rmtree(folder, ignore_errors=True)
    pages = {"README": front(), "commands": commands.page()} | modules_pages() | registered_pages()
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def front() -> str:
    """The page that leads to all others."""
    parts = [f"   {name}" for name in (*(f"{kind}s" for kind in KINDS), "commands", "modules")]
    return "\n".join(
        [
            *title("API reference"),
            "Everything public, from the docstrings of this version. :doc:`The catalogue </catalogue>` has",
            "all methods, datasets and networks on one page.",
            "",
            ".. toctree::",
            "   :maxdepth: 1",
            "",
            *parts,
            "",
        ]
    )


def title(text: str, line: str = "=") -> list[str]:
    """A heading."""
    return [text, line * len(text), ""]


def toctree(names: Iterable[str]) -> list[str]:
    """A hidden table of contents."""
    return [".. toctree::", "   :hidden:", "", *(f"   {name}" for name in names), ""]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table whose cells are reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in [header, *rows]:
        for i, cell in enumerate(row):
            lines.append(f"   {'*' if i == 0 else ' '} - {cell}".rstrip())
    return [*lines, ""]


# --- modules -------------------------------------------------------------------------------------


def modules_pages() -> dict[str, str]:
    """A page of each module of the package, by room, and the list of them."""
    pages, rows = {}, []
    for name in module_names():
        text = [
            *title(escaped(name)),
            f".. automodule:: {name}",
            "",
            f"`Source <{source(name)}>`__",
            "",
        ]
        pages[f"modules/{name}"] = "\n".join(text)
        documented = importlib.import_module(name).__doc__ or ""
        rows.append([f":doc:`{name} <modules/{name}>`", escaped(documented.partition("\n")[0])])
    text = [
        *title("Modules"),
        "The engine. What scripts call first: ``oodbench.sweep``, ``oodbench.run``, ``oodbench.Results``,",
        "``oodbench.load``, ``oodbench.load_model``, ``oodbench.evaluate`` and ``oodbench.adapt``.",
        "",
        *table(["module", "what it is for"], rows),
        *toctree(pages),
    ]
    return pages | {"modules": "\n".join(text)}


def module_names() -> list[str]:
    """The package's modules that a script may import: no commands, and no file of a method or dataset."""
    names = ["oodbench"]
    for module in pkgutil.walk_packages(oodbench.__path__, "oodbench."):
        parts = module.name.split(".")
        private = any(part.startswith("_") for part in parts)
        if not private and parts[1:2] != ["sweeps"] and not registered_module(parts):
            names.append(module.name)
    return names


def registered_module(parts: Sequence[str]) -> bool:
    """Whether a module stands in algorithms/ or datasets/, whose classes have pages of their own."""
    return len(parts) > 2 and parts[1] in ("algorithms", "datasets")


# --- methods, datasets and networks --------------------------------------------------------------


def registered_pages() -> dict[str, str]:
    """A page of each registered class, and a list of each kind."""
    board = Board()
    pages: dict[str, str] = {}
    for kind, heading in KINDS.items():
        entries = [entry for entry in registered_entries() if entry.kind == kind]
        names = {entry.name: f"{kind}s/{entry.name}" for entry in entries}
        rows = [[f":doc:`{e.name} <{names[e.name]}>`", escaped(e.summary)] for e in entries]
        listed = [*title(heading), *table([kind, "what it is"], rows), *toctree(names.values())]
        pages[f"{kind}s"] = "\n".join(listed)
        for entry in entries:
            pages[names[entry.name]] = "\n".join(page(details(entry.name), board))
    return pages


def page(about: Mapping[str, Any], board: "Board") -> list[str]:
    """The page of one class."""
    lines = [*title(about["name"]), restructured(about["description"]), *facts(about)]
    if about["kind"] == "algorithm":
        lines += board.of_algorithm(about["name"])
    if about["kind"] == "dataset":
        lines += board.of_dataset(about["name"])
    key = "options" if about["kind"] == "dataset" else "hparams"
    return lines + parameters(about["name"], about["kind"], key, about[key])


def facts(about: Mapping[str, Any]) -> list[str]:
    """What is known of a class, a line each."""
    elsewhere = ("kind", "name", "description", "module", "hparams", "options")
    lines = []
    for key, value in about.items():
        if key in elsewhere:
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        lines.append(f":{TITLES.get(key, key.replace('_', ' '))}: {linked(escaped(text))}")
    module = about["module"]
    return [*lines, f":source: `{module} <{source(module)}>`__", ""]


def source(module: str) -> str:
    """The address of a module's file in the repository."""
    from contents import REPOSITORY

    file = Path(str(importlib.import_module(module).__file__))
    root = Path(oodbench.__file__).parents[1]
    return f"{REPOSITORY}/{file.relative_to(root)}"


def linked(text: str) -> str:
    """A text whose numbers of arXiv, and the page of costs, are links."""
    text = text.replace("docs/findings/speed.md", ":doc:`measured </findings/speed>`")
    return re.sub(r"arXiv:(\d{4}\.\d{5})", r"`arXiv:\1 <https://arxiv.org/abs/\1>`__", text)


def parameters(name: str, kind: str, key: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The hyperparameters or options; those that all methods share stand on ERM's page alone."""
    shared: set[str] = set()
    if kind == "algorithm" and name != "ERM":
        shared = {row["name"] for row in details("ERM")["hparams"]}
    own = [row for row in rows if row["name"] not in shared]
    heading = {"hparams": "Hyperparameters", "options": "Options"}[key]
    lines = [*title(heading, "-")] if rows else []
    if own:
        cells = [[f"``{r['name']}``", value(r), r.get("range", ""), meaning(r)] for r in own]
        lines += table(["name", "default", "random draws", "meaning"], cells)
    if shared:
        lines += [":doc:`ERM <ERM>` lists the hyperparameters that every method has.", ""]
    return lines


def value(row: Mapping[str, Any]) -> str:
    """A default as code."""
    return f"``{row['default']}``" if row["default"] != "" else ""


def meaning(row: Mapping[str, Any]) -> str:
    """What a field means, what may be set, and its values for families of datasets."""
    parts = [escaped(row.get("meaning", ""))]
    if bounds := row.get("bounds"):
        parts.append(f"May be {escaped(bounds)}.")
    for family, values in row.get("by_family", {}).items():
        drawn = f", {values['range']}" if "range" in values else ""
        parts.append(f"{escaped(family)}: {escaped(str(values['default']) + drawn)}.")
    return " ".join(filter(None, parts))


class Board:
    """The rows of a frozen board, by its usual rule."""

    def __init__(self) -> None:
        folder = find_board(BOARD)
        protocol = yaml.safe_load((folder / PROTOCOL_FILE).read_text())
        self.algorithm_of = dict(map(_labelled, protocol["algorithms"]))
        self.dataset_of = dict(map(_labelled, protocol["datasets"]))
        self.sheet = leaderboard(folder)

    def of_algorithm(self, name: str) -> list[str]:
        """The algorithm's rows beside ERM's and the grey ones, a line for each dataset."""
        own = [label for label, algorithm in self.algorithm_of.items() if algorithm == name]
        labels = [label for label in own if label not in GREY]
        if not labels:
            return []
        block = self.sheet.paper
        rows = {row[0]: row for row in block.rows}
        shown = [label for label in dict.fromkeys([*labels, "ERM", *GREY]) if label in rows]
        lines = [
            [escaped(dataset), *(whole(rows[label][i]) for label in shown)]
            for i, dataset in enumerate(block.header)
            if 0 < i and dataset != "from"
        ]
        return self._shown("", ["dataset", *shown], lines)

    def of_dataset(self, name: str) -> list[str]:
        """The best five rows of each of the dataset's tables, ERM's and the grey ones."""
        lines: list[str] = []
        for label, dataset in self.dataset_of.items():
            if dataset == name:
                block = next(b for b in self.sheet.blocks if b.title.startswith(f"{label}: "))
                hidden = {"from", "n"} | ({"mean"} if block.header[2] == "mean" else set())
                kept = [i for i, column in enumerate(block.header) if column not in hidden]
                wanted = {row[0] for row in block.rows[:5]} | {"ERM", *GREY}
                rows = [[whole(row[i]) for i in kept] for row in block.rows if row[0] in wanted]
                title_after = ": " + block.title.replace(": ", ", ")
                lines += self._shown(title_after, [block.header[i] for i in kept], rows)
        return lines

    def _shown(self, after: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
        link = f":doc:`The board's page </boards/{BOARD}>` says how it was trained and what ± is."
        heading = title(f"On the board {BOARD}{after}", "-")
        return [*heading, *table([*map(escaped, header)], rows), link, ""]


def whole(cell: str) -> str:
    """A cell that is never wrapped; a dash alone would be a list."""
    return r"\-" if cell == "-" else escaped(cell).replace(" ± ", "\u00a0±\u00a0")


def _labelled(row: str | Mapping[str, Any]) -> tuple[str, str]:
    """The label and the name of a row of a protocol."""
    return (row, row) if isinstance(row, str) else (row.get("label", row["name"]), row["name"])
