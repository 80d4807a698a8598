"""The contract of a method, as a test that anyone can call."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import all modules of requirements at the first use of `check_algorithm`: they import torch."""
    if name == "check_algorithm":
        from oodbench.conformance import functions, requirement, updates  # noqa: F401

        return requirement.check_algorithm
    raise AttributeError(name)
