"""The engine: runs from their specs to their records, in one process.

It knows nothing of sweeps or clusters.
"""
