"""python -m oodbench.bench: see its `cli.py`."""

from oodbench.bench.cli import main

if __name__ == "__main__":
    main()
