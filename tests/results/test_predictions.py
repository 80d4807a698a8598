import copy
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from oodbench.errors import UserError
from oodbench.results.directory import Directory
from oodbench.results.predictions import (
    freeze_predictions,
    frozen_predictions,
    predictions_file,
    read_predictions,
    write_examples,
    write_predictions,
)


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    run = Directory(tmp_path).run("r")
    run.path.mkdir(parents=True)
    out = np.array([True, False])
    write_examples(run, "multiclass", {"a/b": (np.array([0, 1]), out)}, ("no", "yes"))
    write_predictions(run, 5, {"a/b": np.array([[1e9, -2.0], [0.5, 1.0]], np.float32)})
    found = read_predictions(run, 5)["a/b"]
    assert found.logits.dtype == np.float16 and found.logits[0].tolist() == [65504.0, -2.0]
    assert found.targets.tolist() == [0, 1] and found.out.tolist() == [True, False]
    assert found.classes == ("no", "yes")
    with pytest.raises(UserError, match=r"keeps no predictions of step 6: .*--keep-predictions"):
        read_predictions(run, 6)
    (tmp_path / "kept" / "r" / "predictions" / "5.npz").write_bytes(b"\x80\x04pickle")
    with pytest.raises(UserError, match="cannot be read"):
        read_predictions(run, 5)


def test_doubles_are_frozen_beside_half_precision(tmp_path: Path) -> None:
    """Rows of scikit-learn keep doubles, and all rows of a dataset share a file; `out` is left out."""
    given = {"half": np.array([[0.1], [0.2]], np.float32), "double": np.array([[0.1], [0.2]])}
    for name, logits in given.items():
        run = Directory(tmp_path).run(name)
        run.path.mkdir(parents=True)
        targets = np.array([[1.0], [2.0]], np.float32)
        write_examples(run, "regression", {"a": (targets, np.array([True, False]))})
        write_predictions(run, 5, {"a": logits})
    chosen = [(Directory(tmp_path).run(name), 5, ["a"]) for name in given]
    freeze_predictions(predictions_file(tmp_path, "d"), chosen)
    read = frozen_predictions(tmp_path, "d")
    for name, logits in given.items():
        found = read(name, 5)["a"]
        kept = logits.astype(np.float16) if name == "half" else logits
        assert found.logits.tolist() == kept[1:].tolist() and found.targets.tolist() == [[2.0]]


class Evil:
    """Its pickle makes a file when it is read."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, ("was_run", "w")


def packed(path: Path) -> None:
    np.savez_compressed(path, names=np.array(["a"]), logits0=np.zeros((10**6, 3)))


def lying(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file, file.open("names.npy", "w") as member:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**9, 50)}
        np.lib.format.write_array_header_1_0(member, header)
        member.write(bytes(80))


def coded(path: Path) -> None:
    np.savez(path, names=np.array([Evil()], dtype=object))


def overlapping(path: Path) -> None:
    """Many entries are of the same bytes."""
    np.savez(path, names=np.array(["a"]), logits0=np.zeros((1000, 3)))
    with zipfile.ZipFile(path, "a") as file:
        entry = file.getinfo("logits0.npy")
        for number in range(1, 50):
            copied = copy.copy(entry)
            copied.filename = f"logits{number}.npy"
            file.filelist.append(copied)
        file.writestr("more.npy", b"")  # the list of entries is then written anew


@pytest.mark.parametrize("make", [packed, lying, coded, overlapping])
def test_a_strangers_arrays_run_no_code_and_are_no_larger_than_their_file(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Directory(tmp_path).run("r")
    write_examples(run, "multiclass", {"a": (np.array([0, 1]), np.array([True, False]))})
    make(run.kept / "predictions" / "5.npz")
    tracemalloc.start()
    with pytest.raises(UserError, match="cannot be read at step 5"):
        read_predictions(run, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22 and not Path("was_run").exists()
