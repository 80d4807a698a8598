"""python -m oodbench.verify: see its `cli.py`."""

from oodbench.verify.cli import app

if __name__ == "__main__":
    app()
