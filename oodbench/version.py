"""The package's version, where a reader of results can ask for it without the rest."""

__version__ = "0.5.0"
