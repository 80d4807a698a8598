"""Kept weights on disk, runs/<id>/weights/RULE-STEP.safetensors.

The file of a rule is of the step that the rule would choose among the run's own; while a run is
trained there may be two, as a resumed run may need the former one.
"""

from pathlib import Path
from urllib.parse import quote, unquote

from oodbench.results.directory import RunDirectory

LAST = "last"
"""What names the weights of a run's last step, beside the selection rules."""
SUFFIX = ".safetensors"


def weights_path(run: RunDirectory, rule: str, step: int) -> Path:
    """Where the weights of a step are kept for a rule."""
    return run.weights / f"{quote(rule, safe=':')}-{step}{SUFFIX}"


def kept_weights(run: RunDirectory) -> dict[tuple[str, int], Path]:
    """The files of kept weights by rule and step."""
    found = {}
    for path in sorted(run.weights.glob(f"*{SUFFIX}")):
        rule, _, step = path.stem.rpartition("-")
        if rule and step.isdecimal() and not path.name.startswith("."):
            found[unquote(rule), int(step)] = path
    return found
