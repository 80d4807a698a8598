"""Pictures of what the AND-mask does, and why: `python -m oodbench.diagnose`."""
