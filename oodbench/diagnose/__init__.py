"""What a dataset leaves to gain: `python -m oodbench.diagnose`."""
