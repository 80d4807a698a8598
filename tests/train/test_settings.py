from oodbench.train.settings import MIN_TO_VECTORIZE, large_bundles
from tests.helpers.sweeps import tiny


def test_few_runs_of_a_kind_are_no_crowd() -> None:
    few = tiny(algorithms=["ERM"], trials=MIN_TO_VECTORIZE - 1).runs.values()
    many = tiny(algorithms=["ERM"], trials=MIN_TO_VECTORIZE).runs.values()
    assert not large_bundles(few) and not large_bundles(many, at_hand=MIN_TO_VECTORIZE - 1)
    assert large_bundles(many) == large_bundles([*few, *many]) == {next(iter(many)).bundle_key}
