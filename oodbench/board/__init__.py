"""Frozen results of a protocol, many methods that nobody has to run again: `python -m oodbench.board`.

The guide is docs/guide/boards.md; its files are the two tables of `oodbench.results.parquet`.
"""
