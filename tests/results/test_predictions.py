from pathlib import Path

import numpy as np
import pytest

from oodbench.errors import UserError
from oodbench.results.directory import Results
from oodbench.results.predictions import read_predictions, write_examples, write_predictions


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    run = Results(tmp_path).run("r")
    run.path.mkdir(parents=True)
    out = np.array([True, False])
    write_examples(run, "multiclass", {"a/b": (np.array([0, 1]), out)}, ("no", "yes"))
    write_predictions(run, 5, {"a/b": np.array([[1e9, -2.0], [0.5, 1.0]], np.float32)})
    found = read_predictions(run, 5)["a/b"]
    assert found.logits.dtype == np.float16 and found.logits[0].tolist() == [65504.0, -2.0]
    assert found.targets.tolist() == [0, 1] and found.out.tolist() == [True, False]
    assert found.classes == ("no", "yes")
    with pytest.raises(UserError, match=r"keeps no predictions of step 6; .*--keep-predictions"):
        read_predictions(run, 6)
    (tmp_path / "runs" / "r" / "predictions" / "5.npz").write_bytes(b"\x80\x04pickle")
    with pytest.raises(UserError, match="cannot be read"):
        read_predictions(run, 5)
