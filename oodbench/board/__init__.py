"""Boards: frozen results of many methods under one protocol, `python -m oodbench.board`.

The guide is docs/guide/boards.md; `oodbench.results.parquet` describes the files.
"""
