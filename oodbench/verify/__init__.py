"""The papers' printed numbers beside ours: `python -m oodbench.verify`.

It imports `sweep`, `diagnose` and `report`.
"""
