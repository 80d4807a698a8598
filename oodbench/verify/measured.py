"""Our numbers of an experiment, and the panels of its picture. Imports no torch."""

import json

from pydantic import BaseModel, ConfigDict


class Line(BaseModel):
    """A curve, or points, of a panel."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    label: str
    x: list[float]
    y: list[float]
    error: list[float] | None = None
    """Half the height of a band, or of a point's bar."""
    points: bool = False
    dx: list[float] | None = None
    dy: list[float] | None = None
    """The vertical lengths of arrows that start at (x, y), where there is `dx`."""


class Panel(BaseModel):
    """One of the axes of a picture, with what is drawn in it."""

    title: str
    x: str
    """The name of the horizontal axis."""
    y: str
    lines: list[Line]
    rows: list[str] = []
    """The names of y = 0, -1, ...; where there are any, the lines' errors are errors of x."""
    marks: dict[str, float] = {}
    """Names of values of x at which a line is drawn."""


class Measured(BaseModel):
    """Our numbers of one experiment, and what its picture shows."""

    values: dict[str, list[float]]
    """A value for each trial, by the target's key (of a computation: by the target's row)."""
    panels: list[Panel] = []
    provenance: dict[str, list[str]] = {}
    """The protocols, code, libraries and data that the numbers come from, by kind."""

    def text(self) -> str:
        """The numbers as JSON, with a line for each target and panel."""
        values = [f"  {json.dumps(key)}: {json.dumps(v)}" for key, v in self.values.items()]
        panels = [f"  {panel.model_dump_json(exclude_defaults=True)}" for panel in self.panels]
        sources = [f"  {json.dumps(key)}: {json.dumps(v)}" for key, v in self.provenance.items()]
        lists = {"values": ("{}", values), "panels": ("[]", panels), "provenance": ("{}", sources)}
        parts = [
            f' "{name}": {ends[0]}\n' + ",\n".join(lines) + f"\n {ends[1]}"
            for name, (ends, lines) in lists.items()
        ]
        return "{\n" + ",\n".join(parts) + "\n}\n"
