"""The size of every room, and the budget that it keeps: `python -m tests.budget` prints both.

`python -m tests.budget write` makes the budget what the rooms have now.
"""

import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from tabulate import tabulate

from tests.helpers.paths import ROOT

FILE = ROOT / "tests" / "budget.toml"
GROUND = "ground"
"""The room of the modules that stand in oodbench/ itself."""
KINDS = ("lines", "modules", "commands", "options")
ASSETS = {".js", ".css", ".html"}
HEAD = """# The most lines, modules, commands and options of each room: see docs/CONTRIBUTING.md. Who needs
# more takes as much away elsewhere in the same merge, or says beside the number which users asked for it.
"""

Sizes = dict[str, dict[str, int]]


def measured() -> Sizes:
    """Return the sizes of the rooms of oodbench/, of its assets and of tests/, by room and kind."""
    sizes: dict[str, Counter[str]] = {}
    for file in sorted((ROOT / "oodbench").rglob("*.py")):
        of_room = sizes.setdefault(_room(file), Counter())
        of_room["lines"] += _lines(file)
        of_room["modules"] += 1
    for room, command in commands():
        of_room = sizes.setdefault(room, Counter())
        of_room["commands"] += 1
        of_room["options"] += sum(each.param_type_name == "option" for each in command.params)
    assets = [file for file in (ROOT / "oodbench").rglob("*") if file.suffix in ASSETS]
    sizes["assets"] = Counter(lines=sum(map(_lines, assets)))
    sizes["tests"] = Counter(lines=sum(map(_lines, (ROOT / "tests").rglob("*.py"))))
    return {room: {k: of_room[k] for k in KINDS if of_room[k]} for room, of_room in sizes.items()}


def _room(file: Path) -> str:
    first, *inner = file.relative_to(ROOT / "oodbench").parts
    return first if inner else GROUND


def _lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that a user can type, with the room that has its function."""
    from oodbench.__main__ import main

    waiting: list[Any] = [typer.main.get_command(main)]
    while waiting:
        command = waiting.pop()
        if inner := getattr(command, "commands", None):
            waiting += inner.values()
        else:
            room, _, inner = command.callback.__module__.removeprefix("oodbench.").partition(".")
            yield room if inner else GROUND, command


def exceeded(sizes: Sizes, budget: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a sentence on each room that has more than its budget; one without a budget has none."""
    return [
        f"{room} has {size:,} {kind}, and its budget is {budget.get(room, {}).get(kind, 0):,}"
        for room, of_room in sizes.items()
        for kind, size in of_room.items()
        if size > budget.get(room, {}).get(kind, 0)
    ]


def read_budget() -> dict[str, dict[str, int]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def written(sizes: Sizes, before: str) -> str:
    """Return the budget that has these sizes, with the comments beside numbers that it has before."""
    comments, room = {}, ""
    for line in before.splitlines():
        entry, mark, comment = line.partition("  # ")
        room = entry.strip("[]") if entry.startswith("[") else room
        if mark:
            comments[room, entry.partition(" ")[0]] = mark + comment
    lines = [HEAD.rstrip()]
    for room in sorted(sizes):
        lines += ["", f"[{room}]"]
        lines += [f"{k} = {n}{comments.get((room, k), '')}" for k, n in sizes[room].items()]
    return "\n".join([*lines, ""])


def main() -> None:
    """Print the rooms beside their budget, the largest first; with `write`, write the budget."""
    sizes = measured()
    if sys.argv[1:] == ["write"]:
        FILE.write_text(written(sizes, FILE.read_text(encoding="utf-8")), encoding="utf-8")
    budget = read_budget()
    rows = [
        [room, *(f"{of_room.get(k, 0)} / {budget.get(room, {}).get(k, 0)}" for k in KINDS)]
        for room, of_room in sorted(sizes.items(), key=lambda each: -each[1]["lines"])
    ]
    house = [of_room for room, of_room in sizes.items() if room not in ("assets", "tests")]
    rows.append(["oodbench/", *(str(sum(each.get(k, 0) for each in house)) for k in KINDS)])
    print(tabulate(rows, ["room", *(f"{kind} / budget" for kind in KINDS)]))


if __name__ == "__main__":
    main()
