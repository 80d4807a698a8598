"""What a cell of a notebook prints comes in pieces of a hundred bytes, and is shown as one text."""

from collections.abc import Sequence

from myst_nb.core import render
from nbformat import NotebookNode
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this; MyST-NB's own function ends each piece with a line break."""
    render.coalesce_streams = joined
    return {"parallel_read_safe": True}


def joined(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """The outputs of a cell, those of one stream that follow each other as one."""
    whole: list[NotebookNode] = []
    for output in outputs:
        last = whole[-1] if whole else None
        if last and last.get("name") and last.get("name") == output.get("name"):
            last["text"] += output["text"]
        else:
            whole.append(output.copy())
    return whole
