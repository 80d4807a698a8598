"""Frozen results of a protocol, many methods that nobody has to run again: `python -m oodbench.board`.

It imports `sweep`, `report`, `selection` and `results`. The guide is docs/guide/boards.md; the form of
a board on disk is described in `oodbench.results.board`.
"""
