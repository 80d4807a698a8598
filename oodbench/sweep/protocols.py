"""Protocols: sweeps in sweeps/protocols/ that others build on and that never change. Imports no torch.

A sweep that names a protocol has the protocol's datasets, environments, budgets, networks and
hyperparameters, and adds methods and trials to them. What would move a number is another protocol,
with another name; `tests/golden/protocols.json` freezes each.
"""

from collections.abc import Mapping
from typing import Any

from oodbench.errors import UserError

FREE = ("name", "protocol", "algorithms", "trials", "plugins", "resources")
"""The keys that a sweep under a protocol may set itself."""


def under(protocol: Mapping[str, Any], values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The values of a sweep, completed by those of the protocol that it names.

    An algorithm that is given by its name alone has the protocol's hyperparameters, if the protocol
    lists it. Raises UserError where the sweep contradicts its protocol.
    """
    name = protocol["name"]
    for key, value in values.items():
        if key not in FREE and value != protocol.get(key):
            raise UserError(
                f"{place}: the protocol {name} fixes '{key}'; leave it out, or name no protocol"
            )
    fixed = {_label(item): item for item in protocol["algorithms"]}
    own = values.get("algorithms", protocol["algorithms"])
    listed = own if isinstance(own, list) else []
    if own == "all" or any(isinstance(i, dict) and i.keys() == {"kind"} for i in listed):
        raise UserError(
            f"{place}: the protocol {name} fixes hyperparameters of methods that it lists; list yours "
            "by their names"
        )
    if not isinstance(own, list):  # the checks of the file refuse it
        return {**protocol, **values}
    rows = []
    for item in own:
        theirs = fixed.get(_label(item), item)
        if item not in (theirs, _label(item)):
            raise UserError(
                f"{place}: the protocol {name} fixes the row '{_label(item)}'; "
                "give yours another `label`"
            )
        rows.append(theirs)
    return {**protocol, **values, "algorithms": rows}


def _label(item: Any) -> str | None:
    """The label of an algorithm's row in a sweep file; None for what the checks of the file refuse."""
    label = item.get("label") or item.get("name") if isinstance(item, dict) else item
    return label if isinstance(label, str) else None
