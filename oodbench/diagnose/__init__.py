"""What a dataset leaves to gain, and how networks memorize: `python -m oodbench.diagnose`."""
