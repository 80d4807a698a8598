"""python -m oodbench.bench: see its `cli.py`."""

from oodbench.bench.cli import app

if __name__ == "__main__":
    app()
