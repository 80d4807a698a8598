from pathlib import Path

import pytest

from oodbench.algorithms import algorithms
from tests.bench.steps import METHODS, SLACK, method_rows


@pytest.mark.nightly
def test_every_method_that_trains_a_network_of_one_logit_has_a_row(tmp_path: Path) -> None:
    rows = {row.what.split()[2]: row for row in method_rows(tmp_path, repeat=1, rounds=1)}
    assert rows["ERM"].measured == "1.00"
    assert rows["IRM"].domainbed == f"{METHODS['IRM'][1]}"
    assert rows["MMREx"].domainbed == "-"
    others = set(
        "CutMix ICP ISR_Cov ISR_Mean LeastSquares LinearIRM LinearVREx MIRO WiSEFT ZeroShot".split()
    )
    others |= {name for name in algorithms if not algorithms.get(name).trains_network}
    ours = {n for n, cls in algorithms.items() if cls.__module__.startswith("oodbench.algorithms.")}
    assert rows.keys() == ours - others
    assert all(float(row.measured) > 0 for row in rows.values())
    assert rows["GroupDRO"].reach == f"<= {METHODS['GroupDRO'][0]}"
    assert rows["Focal"].reach == f"<= {SLACK:.2f}", "its matrix products are those of ERM"
