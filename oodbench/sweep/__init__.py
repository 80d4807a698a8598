"""From a YAML file to finished runs, plan, launch and status: `python -m oodbench.sweep`."""
