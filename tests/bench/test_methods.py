from typer.testing import CliRunner

from oodbench.algorithms import algorithms
from oodbench.bench.cli import app
from oodbench.bench.methods import DOMAINBED, method_costs


def test_every_method_that_trains_a_network_of_one_logit_has_a_row() -> None:
    rows = {row.what.split()[2]: row for row in method_costs(repeat=1, rounds=1)}
    assert rows["ERM"].measured == "1.00"
    assert rows["IRM"].domainbed == f"{DOMAINBED['IRM']}"
    assert rows["MMREx"].domainbed == "-"
    assert rows.keys() == set(algorithms) - {"ICP", "LeastSquares", "LinearIRM", "LinearVREx"}
    assert all(float(row.measured) > 0 for row in rows.values())


def test_an_unknown_part_is_named() -> None:
    result = CliRunner().invoke(app, ["method"])
    assert result.exit_code == 2
    assert "did you mean methods" in result.output
