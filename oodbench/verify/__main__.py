"""python -m oodbench.verify: see its `cli.py`."""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

from oodbench.verify.cli import app

if __name__ == "__main__":
    app()
