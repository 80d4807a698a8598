from pathlib import Path

import pytest

from oodbench.algorithms import algorithms
from tests.bench.steps import METHODS, SLACK, method_rows
from tests.helpers.algorithms.ours import ours


@pytest.mark.nightly
def test_every_method_that_trains_a_network_of_one_logit_has_a_row(tmp_path: Path) -> None:
    rows = {row.what.split()[2]: row for row in method_rows(tmp_path, repeat=1, rounds=1)}
    assert rows["ERM"].measured == "1.00"
    assert rows["IRM"].domainbed == f"{METHODS['IRM'][1]}"
    assert rows["MMREx"].domainbed == "-"
    others = {"CutMix", "MIRO", "WiSEFT"}
    trained = {name for name, cls in ours(algorithms).items() if cls.trains_network}
    assert rows.keys() == trained - others
    assert all(float(row.measured) > 0 for row in rows.values())
    assert rows["GroupDRO"].reach == f"<= {METHODS['GroupDRO'][0]}"
    assert rows["Focal"].reach == f"<= {SLACK:.2f}", "its matrix products are those of ERM"
