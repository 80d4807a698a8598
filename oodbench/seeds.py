"""Seeds derived from names: what must be shared between runs depends on shared names only."""

import hashlib


def derive(*names: object) -> int:
    """A 63-bit seed from any names, by SHA-256; equal names give equal seeds on every machine.

    Data noise, splits, initial weights and batch order are derived from (dataset, test
    environments, trial) alone, so that algorithms and hyperparameter draws are compared on the
    same ground (common random numbers).
    """
    text = "\x1f".join(str(name) for name in names)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
