import pytest
from typer.testing import CliRunner

from oodbench.algorithms import algorithms
from oodbench.bench.cli import app
from oodbench.bench.methods import DOMAINBED, REACH, method_costs, method_growth


@pytest.mark.slow
def test_every_method_that_trains_a_network_of_one_logit_has_a_row() -> None:
    rows = {row.what.split()[2]: row for row in method_costs(repeat=1, rounds=1)}
    assert rows["ERM"].measured == "1.00"
    assert rows["IRM"].domainbed == f"{DOMAINBED['IRM']}"
    assert rows["MMREx"].domainbed == "-"
    others = {"CutMix", "ICP", "LeastSquares", "LinearIRM", "LinearVREx", "MIRO", "WiSEFT"}
    assert rows.keys() == set(algorithms) - others
    assert all(float(row.measured) > 0 for row in rows.values())
    assert {name for name, row in rows.items() if row.reach != "-"} == REACH.keys()


def test_growth_has_a_time_for_each_number_of_environments() -> None:
    rows = {row.what.split()[2].rstrip(","): row for row in method_growth((2, 3), 1, 1)}
    assert {"ERM", "CORAL", "MMD", "JTT"} <= rows.keys()
    assert all(len(row.measured.split(", ")) == 2 for row in rows.values())


def test_an_unknown_part_is_named() -> None:
    result = CliRunner().invoke(app, ["method"])
    assert result.exit_code == 2
    assert "did you mean methods" in result.output
