"""How many configurations beat chance out of distribution (arXiv:2003.00688, section 4.1)."""

from collections.abc import Mapping

import numpy as np

from oodbench.results.frames import Frames
from oodbench.verify.computations import computation
from oodbench.verify.measured import Measured
from oodbench.verify.readings import last_values
from oodbench.verify.targets import Reading

CHANCE = 0.5


@computation("covariate-shift-search")
def covariate_shift_search(trials: int, frames: Mapping[str, Frames]) -> Measured:
    """Whether each run that ended is satisfactory (1 or 0), by row and imbalance.

    It is if its test accuracy at the last step is above chance and below its training accuracy.
    """
    values: dict[str, list[float]] = {}
    for found in frames.values():
        test, training = (last_values(Reading(environment=e), found) for e in ("test", "training"))
        kinds = test["options"].map(lambda options: options["imbalance"])
        good = (test["value"] > CHANCE) & (training["value"] > test["value"])
        for (row, kind), of_row in good.groupby([test["label"], kinds]):
            values[f"{row}, {kind}"] = [float(v) for v in np.asarray(of_row)]
    return Measured(values=values)
