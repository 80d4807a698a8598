"""Where the runs of a sweep are trained, behind one contract.

A launcher is called with a `Job`. It sees to it that each run is trained unless another process
does, never stops for a failed one, and returns the state of each id: the final one, or `queued`
where a cluster trains it later.
"""
