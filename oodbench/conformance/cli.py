"""Whether a method keeps to the contract of all methods."""

from typing import Annotated

import typer

from oodbench.terminal import Plugins, commands, terminal

app = commands()

Name = Annotated[str, typer.Argument(metavar="NAME", help="A method.")]


@app.command(name="conformance", help=__doc__)
def conformance(name: Name, plugin: Plugins = None) -> None:
    """Print which requirements a method keeps, and end with 1 and a sentence for each broken one."""
    from oodbench.conformance import check_algorithm
    from oodbench.registry import load_plugins

    load_plugins(plugin or [])
    console, lines, broken = terminal(), list[str](), ""
    try:
        check_algorithm(name, lines.append)
    except AssertionError as error:
        broken = str(error)
    for line in lines:
        if not line.startswith(("broken: ", "kept: ")) or "round-off)" in line:
            console.say(line)
    kept, of_broken = (sum(line.startswith(how) for line in lines) for how in ("kept", "broken"))
    console.say(f"{name} keeps {kept} of the {kept + of_broken} requirements that apply to it.")
    if broken:
        console.say(broken)
        raise SystemExit(1)
