"""From a YAML file to finished runs, plan, search, launch and status: `python -m oodbench.sweep`."""
