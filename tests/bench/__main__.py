"""python -m tests.bench: see its `cli.py`."""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

from tests.bench.cli import app

if __name__ == "__main__":
    app()
