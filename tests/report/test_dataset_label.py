"""A dataset's `label:` is its name."""

from pathlib import Path

import pytest

from oodbench.errors import UserError
from tests.helpers.results.sweeps import tiny

LABEL = "Linear, 40 examples"
DATA = [{"name": "LinearSEM", "num_examples": 40, "label": LABEL}]


def test_a_dataset_that_names_itself_takes_it_too(tmp_path: Path) -> None:
    rows = ["age,target,environment", *(f"{n},{n % 2},{'ab'[n // 8]}" for n in range(16))]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    data = {"name": "Table", "file": str(tmp_path / "t.csv")}
    assert {s.dataset_name for s in tiny(datasets=[data]).runs.values()} == {"t"}
    named = tiny(datasets=[data | {"label": LABEL}])
    assert {s.dataset_name for s in named.runs.values()} == {LABEL}


def test_equal_labels_are_refused() -> None:
    other = {"name": "LinearSEM", "num_examples": 50, "label": LABEL}
    with pytest.raises(UserError, match=f"two datasets are called '{LABEL}': give them a `label`"):
        tiny(datasets=[*DATA, other])
    with pytest.raises(UserError, match="two datasets are called 'LinearSEM'"):
        tiny(datasets=["LinearSEM", other | {"label": "LinearSEM"}])
    with pytest.raises(UserError, match="'all datasets' is the name of what is over all datasets"):
        tiny(datasets=[other | {"label": "all datasets"}])
    assert len(tiny(datasets=[*DATA, other | {"label": "50 examples"}]).runs) == 2 * 2 * 2
