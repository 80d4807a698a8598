"""What the harness itself costs, for its developers: `python -m oodbench.bench`.

It imports anything but `verify` and `diagnose`.
"""
