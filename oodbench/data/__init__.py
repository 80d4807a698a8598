"""What datasets are made of, and the tools for their files: `python -m oodbench.data`.

It imports `datasets.py` and the ground.
"""
