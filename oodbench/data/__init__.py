"""Building blocks of datasets, and the tools for their files: `python -m oodbench.data`."""
