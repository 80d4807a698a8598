"""The commands in one: `oodbench sweep launch`, `oodbench report table`, `oodbench data list`, ..."""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

from oodbench.board.cli import app as board
from oodbench.conformance.cli import app as conformance
from oodbench.data.cli import app as data
from oodbench.diagnose.cli import app as diagnose
from oodbench.list.cli import app as list_
from oodbench.report.cli import app as report
from oodbench.sweep.cli import app as sweep
from oodbench.terminal import commands
from oodbench.train.cli import app as train
from oodbench.verify.cli import app as verify

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
