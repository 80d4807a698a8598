"""Papers' printed numbers compared with ours: `python -m oodbench.verify`."""
