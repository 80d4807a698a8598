"""python -m oodbench.train: see its `cli.py`."""

from oodbench.train.cli import app

if __name__ == "__main__":
    app()
