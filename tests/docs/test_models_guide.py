"""The guide of trained models, run as a script that imports nothing else of ours."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers.commands import python
from tests.helpers.paths import ROOT

PAGE = ROOT / "docs" / "guide" / "models.md"


@pytest.mark.slow
def test_the_guide_runs_from_top_to_bottom(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    places = [f"pictures/{e}/{c}" for e in ("indoors", "outdoors") for c in ("cat", "dog")]
    for place in [*places, "new"]:
        (tmp_path / place).mkdir(parents=True)
        for name in ("one", "two", "three", "four"):
            pixels = rng.integers(256, size=(16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / place / f"{name}.png")
    sweeps = {
        "mine": "datasets: [ColoredDigits]\ntest_environments: [[0.9]]",
        "pictures": "datasets: [ImageFolder]\nnetwork: ConvNet",
    }
    for name, keys in sweeps.items():
        text = f"name: {name}\nalgorithms: [ERM]\ntrials: 1\nsteps: 4\nevaluate_every: 2\n{keys}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
        launch = ["launch", f"{name}.yaml", "--launcher", "debug", "--yes"]
        launch += ["--keep-weights", "train_val,last"]
        launch += ["--data-dir", "pictures"] if name == "pictures" else []
        python(tmp_path, "-m", "oodbench.sweep", *launch).check_returncode()
    script = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S))
    assert set(re.findall(r"import (\S+)", script)) == {"oodbench", "torch"}
    script += "\nassert len(guesses) == 2 and set(guesses) <= {'cat', 'dog'}"
    script += "\nassert set(table['metric']) > {'accuracy', 'brier'} and model.step == 20"
    done = python(tmp_path, "-W", "error", "-c", script)
    assert done.returncode == 0, done.stderr
