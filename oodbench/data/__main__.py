"""python -m oodbench.data: see its `cli.py`."""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

from oodbench.data.cli import app

if __name__ == "__main__":
    app()
