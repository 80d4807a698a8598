"""Seeds derived from names: what must be shared between runs depends on shared names only."""

import hashlib


def derive(*names: object) -> int:
    """A 63-bit seed from any names, by SHA-256; equal names give equal seeds on every machine.

    No seed of shared randomness is derived from the algorithm or its hyperparameters, so that methods and
    draws are compared on common random numbers: runs of the same dataset, test environments and trial share
    data noise and splits, with the same network also initial weights, and with the same batch size also the
    order of batches.
    """
    text = "\x1f".join(str(name) for name in names)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_torch(seed: int) -> None:
    """Seed torch's global generators, on the CPU and on every GPU."""
    import torch

    # `torch.manual_seed` would also keep a stack trace for each kind of device that is not here
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
