"""`check_algorithm`, which tests whether a method meets the requirements for all methods."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import the requirements at the first use of `check_algorithm`, as they import torch."""
    if name == "check_algorithm":
        from oodbench.conformance import checks, requirements  # noqa: F401

        return checks.check_algorithm
    raise AttributeError(name)
