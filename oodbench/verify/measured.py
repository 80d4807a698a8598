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
    """With `dx`: arrows that start at (x, y)."""


class Panel(BaseModel):
    """A picture's part."""

    title: str
    x: str
    """The axis."""
    y: str
    lines: list[Line]
    rows: list[str] = []
    """Names of y = 0, -1, ...; the errors are then of x."""
    marks: dict[str, float] = {}
    """Names of values of x at which a line is drawn."""


class Measured(BaseModel):
    """What one experiment gave."""

    values: dict[str, list[float]]
    """A value for each trial, by the target's key (of a computation: by the target's row)."""
    panels: list[Panel] = []
    provenance: dict[str, list[str]] = {}
    """Protocols, code, data, libraries: what the numbers come from."""

    def text(self) -> str:
        """As JSON, with a line for each target and panel."""
        values = [f"  {json.dumps(key)}: {json.dumps(v)}" for key, v in self.values.items()]
        panels = [f"  {panel.model_dump_json(exclude_defaults=True)}" for panel in self.panels]
        sources = [f"  {json.dumps(key)}: {json.dumps(v)}" for key, v in self.provenance.items()]
        lists = {"values": ("{}", values), "panels": ("[]", panels), "provenance": ("{}", sources)}
        parts = [
            f' "{name}": {ends[0]}\n' + ",\n".join(lines) + f"\n {ends[1]}"
            for name, (ends, lines) in lists.items()
        ]
        return "{\n" + ",\n".join(parts) + "\n}\n"
