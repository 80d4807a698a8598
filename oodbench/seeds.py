"""Seeds derived from names: what must be shared between runs depends on shared names only."""

import hashlib


def derive(*names: object) -> int:
    """A 63-bit seed from any names, by SHA-256; equal names give equal seeds on every machine.

    Neither the algorithm nor its hyperparameters are among the names from which shared randomness
    is derived, so that methods and draws are compared on the same ground (common random numbers).
    Runs of the same dataset, test environments and trial share data noise and splits. They share
    initial weights where they also have the same network with the same hyperparameters, and the
    order of batches where they also have the same batch size.
    """
    text = "\x1f".join(str(name) for name in names)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
