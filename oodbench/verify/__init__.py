"""The papers' printed numbers beside ours: `python -m oodbench.verify`."""
