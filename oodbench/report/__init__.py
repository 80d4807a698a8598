"""Tables, figures and pages of results, with their errors and caveats: `python -m oodbench.report`.

It imports `results`, `selection` and the ground.
"""
