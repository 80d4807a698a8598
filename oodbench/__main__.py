"""The commands in one: `oodbench sweep launch`, `oodbench report table`, `oodbench data list`, ..."""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

from oodbench.board.__main__ import app as board
from oodbench.conformance.__main__ import app as conformance
from oodbench.data.__main__ import app as data
from oodbench.diagnose.__main__ import app as diagnose
from oodbench.list.__main__ import app as list_
from oodbench.report.__main__ import app as report
from oodbench.sweep.__main__ import app as sweep
from oodbench.terminal import commands
from oodbench.train.__main__ import app as train
from oodbench.verify.__main__ import app as verify

main = commands(__doc__, no_args_is_help=True, add_completion=True)
main.add_typer(sweep, name="sweep")
main.add_typer(report, name="report")
main.add_typer(board, name="board")
main.add_typer(data, name="data")
main.add_typer(diagnose, name="diagnose")
main.add_typer(train, name="train")
for command in (conformance, list_, verify):
    main.add_typer(command)  # its only command has the name of its room

if __name__ == "__main__":
    main()
