import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.bench.gpu import app
from tests.helpers.commands import mistake, python
from tests.helpers.paths import ROOT


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    said = mistake(CliRunner().invoke(app, ["--out", str(tmp_path)]))
    assert said.startswith("error: there is no CUDA device here") and not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_it_runs_on_a_cpu_at_small_sizes(tmp_path: Path) -> None:
    chosen = ("ANDMask", "ExampleANDMask", "Mixup")
    options = ("--device", "cpu", "--out", str(tmp_path), *chosen)
    done = python(ROOT, "-m", "tests.bench.gpu", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["left_out"] == []
    tests, sweep, *_ = (row["measured"] for row in found["rows"])
    assert "are done" in sweep and "skipped" in tests
    whats = "\n".join(row["what"] for row in found["rows"])
    for what in ("ExampleANDMask / ERM, ResNet50", "Mixup / ERM, ResNet18", "bfloat16", "waiting"):
        assert what in whats
    _has_all_rows((tmp_path / "gpu.md").read_text(), found["rows"])


def _has_all_rows(shown: str, rows: list[dict[str, str]]) -> None:
    lines = [[cell.strip() for cell in line.split("|")] for line in shown.splitlines()]
    for row in rows:
        name, of_method, _ = row["what"].removeprefix("update step, ").partition(" / ERM, ")
        cells = [name] if of_method and "," not in name else [row["what"]]
        assert any({*cells, row["measured"]} <= {*line} for line in lines), row
