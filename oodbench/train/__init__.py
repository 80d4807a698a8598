"""The engine: runs from their specs to their records, in one process; no sweeps, no clusters."""
