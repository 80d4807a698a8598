"""python -m oodbench.board list | show | run | rerun | freeze | validate | html."""

from oodbench.board.cli import app

app(prog_name="python -m oodbench.board")
