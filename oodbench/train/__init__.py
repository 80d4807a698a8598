"""The engine: runs from their specs to their records, in one process.

It imports methods, data and results, and knows nothing of sweeps, searches or clusters.
"""
