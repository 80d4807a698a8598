"""Makes the JSON Schema of sweep files, by which editors complete and check them."""

from typing import Any

from oodbench.sweep.file import Sweep

TEXT = {"type": "string"}
KIND_ITEM = {
    "type": "object",
    "properties": {"kind": TEXT},
    "required": ["kind"],
    "additionalProperties": False,
}
NUMBER_AS_TEXT = {"type": "string", "pattern": r"^[0-9.]+([eE]-?[0-9]+)?$"}
"""A number such as 1e-1, which YAML 1.1 reads as text."""
FOLDER = r"(?!\.\.?(/|$))[^\s/\x00-\x1f]([^/\x00-\x1f]*[^\s/\x00-\x1f])?"
NAME = f"^{FOLDER}(/{FOLDER})*$"
"""A relative path without `.` and `..`."""


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a sweep file, which proposes the registered names.

    Other names are allowed, as a plug-in may define them, and so are a dataset's options, which
    `sweep plan` checks.
    """
    from oodbench.algorithms import algorithms
    from oodbench.data.noise import KEYS as NOISE
    from oodbench.datasets import datasets
    from oodbench.networks.base import networks

    root = Sweep.model_json_schema()
    models = root.pop("$defs")
    keys, row, dataset = root["properties"], {"$ref": "#/$defs/Row"}, {"$ref": "#/$defs/Entry"}
    noise = {key: {"type": ["number", "string", "object"]} for key in NOISE}
    models["Entry"]["properties"] |= {"name": _proposed(datasets), **noise}
    keys["datasets"]["items"] = {"anyOf": [_proposed(datasets), dataset]}
    keys["algorithms"] = {
        "description": keys["algorithms"]["description"],
        "anyOf": [
            {"const": "all"},
            {
                "type": "array",
                "minItems": 1,
                "items": {"anyOf": [_proposed(algorithms), row, KIND_ITEM]},
            },
        ],
    }
    models["Row"]["properties"]["name"] = _proposed(algorithms)
    models["Component"]["properties"]["name"] = _proposed(networks)
    keys["network"]["anyOf"][0] = _proposed(["default", *networks])
    keys["name"]["pattern"] = NAME
    keys["keep_weights"] = {**keys["keep_weights"], "type": ["array", "string"]}
    for of in (keys, models["DatasetSettings"]["properties"]):
        of["holdout"] = {"anyOf": [of["holdout"], NUMBER_AS_TEXT]}
    required = root.pop("required")
    root["anyOf"] = [{"required": required}, {"required": ["name", "protocol"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **root,
        "$defs": models,
    }


def _proposed(names: Any) -> dict[str, Any]:
    return {"anyOf": [{"enum": sorted(names)}, TEXT]}
