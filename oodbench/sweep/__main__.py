"""python -m oodbench.sweep: see its `cli.py`."""

from oodbench.sweep.cli import app

if __name__ == "__main__":
    app()
