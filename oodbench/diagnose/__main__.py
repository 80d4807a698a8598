"""python -m oodbench.diagnose: see its `cli.py`."""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

from oodbench.diagnose.cli import app

if __name__ == "__main__":
    app()
