"""From records to the tables, texts and pages that a reviewer believes: `python -m oodbench.report`.

It imports `results`, `selection` and the ground.
"""
