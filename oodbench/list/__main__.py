"""Everything that is registered: python -m oodbench.list."""

from oodbench.list.cli import app

if __name__ == "__main__":
    app()
