"""A benchmark harness for out-of-distribution generalization."""

__version__ = "0.1.0"
