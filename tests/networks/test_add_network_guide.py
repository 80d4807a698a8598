"""What docs/guide/add_network.md shows works as it stands there."""

from pathlib import Path

import pytest
import yaml

from oodbench.networks.base import networks
from oodbench.registry import load_plugins
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from tests.helpers.paths import blocks
from tests.helpers.results.sweeps import ended

GUIDE = "docs/guide/add_network.md"


def test_its_network_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks(GUIDE)
    assert len(code.splitlines()) <= 12
    (tmp_path / "guide_network.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(networks, "_classes", dict(networks._classes))
    load_plugins(["guide_network"])
    values = yaml.safe_load(blocks(GUIDE, "yaml")[0]) | {"steps": 5}
    first = next(iter(make_plan(validate(values, "add_network.md")).runs.values()))
    ended(first, tmp_path / "run")
