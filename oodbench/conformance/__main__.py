"""Check whether a method meets the requirements for all methods."""

from oodbench.arithmetic import prepare

if __name__ == "__main__":
    prepare()  # before numpy and torch are loaded

from typing import Annotated

import typer

from oodbench.terminal import Plugins, commands, terminal

app = commands()

Name = Annotated[str, typer.Argument(metavar="NAME", help="A method.")]


@app.command(name="conformance", help=__doc__)
def conformance(name: Name, plugin: Plugins = None) -> None:
    """Print how many requirements a method keeps, and a sentence and exit code 1 for broken ones."""
    from oodbench.conformance import check_algorithm
    from oodbench.registry import load_plugins

    load_plugins(plugin or [])
    console, lines, broken = terminal(), list[str](), ""
    try:
        check_algorithm(name, lines.append)
    except AssertionError as error:
        broken = str(error)
    for line in lines:  # kept requirements are only counted, broken ones are in the error
        if not line.startswith(("broken: ", "kept: ")) or "round-off)" in line:
            console.say(line)
    kept, of_broken = (sum(line.startswith(how) for line in lines) for how in ("kept", "broken"))
    console.say(f"{name} keeps {kept} of the {kept + of_broken} requirements that apply to it.")
    if broken:
        console.say(broken)
        raise SystemExit(1)


if __name__ == "__main__":
    app()
