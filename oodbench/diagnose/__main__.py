"""python -m oodbench.diagnose: see its `cli.py`."""

from oodbench.diagnose.cli import app

if __name__ == "__main__":
    app()
