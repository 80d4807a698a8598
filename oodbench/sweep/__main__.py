"""python -m oodbench.sweep: see its `cli.py`."""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

from oodbench.sweep.cli import app

if __name__ == "__main__":
    app()
