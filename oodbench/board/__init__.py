"""Frozen results of a protocol, many methods that nobody has to run again: `python -m oodbench.board`.

The guide is docs/guide/boards.md; the form of a board on disk is described in `oodbench.results.parquet`.
"""
