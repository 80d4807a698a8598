"""python -m oodbench.data: see its `cli.py`."""

from oodbench.data.cli import app

if __name__ == "__main__":
    app()
