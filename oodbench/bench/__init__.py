"""What the harness itself costs, for its developers: `python -m oodbench.bench`."""
