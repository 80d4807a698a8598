"""The guides of Python and of trained models, run as scripts."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import oodbench
from oodbench.errors import UserError
from tests.helpers.commands import python, type_in
from tests.helpers.paths import blocks


@pytest.mark.nightly
def test_the_guide_of_python_runs_as_a_script(tmp_path: Path) -> None:
    end = "print(model.step, len(numbers), type(numbers).__name__, set(results.plan()['state']))"
    (tmp_path / "script.py").write_text("\n".join([*blocks("docs/guide/python.md"), end]))
    done = python(tmp_path, "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "20 3 DataFrame {'done'}"
    assert "RiskSpread" in done.stdout and "gain over ERM" in done.stdout


def train_patients() -> pd.DataFrame:
    """Train what the guide of trained models loads from results/patients; returns the table."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 3)), columns=["age", "dose", "weight"])
    frame["hospital"] = np.repeat(["Leiden", "Utrecht", "Delft"], 100)
    frame["relapse"] = np.where(frame["age"] > 0, "yes", "no")
    keys: Any = {"trials": 1, "steps": 100, "evaluate_every": 100, "launcher": "debug"}
    oodbench.sweep(
        [{"data": frame, "target": "relapse", "environment": "hospital", "label": "patients"}],
        [{"name": "ERM", "hparams": {"lr": 0.01}}],
        test_environments="each",
        out=Path("results/patients"),
        keep_weights=["last"],
        **keys,
    )
    return frame


@pytest.mark.usefixtures("here")
def test_its_model_of_a_table_predicts_new_rows() -> None:
    frame = train_patients()
    (code,) = (c for c in blocks("docs/guide/models.md") if "DataFrame" in c)
    names: dict[str, Any] = {"oodbench": oodbench}
    exec(code, names)
    model = names["model"]
    assert names["guesses"] == ["no", "yes"]
    assert model.dataset.read(frame[200:]).equal(model.dataset.load(0)["Delft"].x)
    with pytest.raises(UserError, match="unknown column 'dose' in the data frame"):
        model.dataset.read(frame[["age", "weight"]])
    with pytest.raises(UserError, match="a tensor of inputs, not DataFrame: `model"):
        model(frame)
    with pytest.raises(UserError, match=r"cannot be \(2, 7\) of float32: X has 7 features"):
        model(torch.zeros(2, 7))


@pytest.mark.nightly
def test_the_guide_runs_from_top_to_bottom(here: Path) -> None:
    rng = np.random.default_rng(0)
    places = [f"pictures/{e}/{c}" for e in ("indoors", "outdoors") for c in ("cat", "dog")]
    for place in [*places, "new"]:
        (here / place).mkdir(parents=True)
        for name in ("one", "two", "three", "four"):
            pixels = rng.integers(256, size=(16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(here / place / f"{name}.png")
    sweeps = {
        "mine": "datasets: [ColoredDigits]\ntest_environments: [[0.9]]",
        "pictures": "datasets: [ImageFolder]\nnetwork: ConvNet",
    }
    for name, keys in sweeps.items():
        text = f"name: {name}\nalgorithms: [ERM]\ntrials: 1\nsteps: 4\nevaluate_every: 2\n{keys}\n"
        (here / f"{name}.yaml").write_text(text)
        options = ["--launcher", "debug", "--yes", "--keep-weights", "train_val,last"]
        options += ["--data-dir", "pictures"] if name == "pictures" else []
        type_in("sweep", "launch", f"{name}.yaml", *options, code=0)
    train_patients()
    script = "\n".join(blocks("docs/guide/models.md"))
    assert set(re.findall(r"import (\S+)", script)) == {"oodbench", "pandas", "torch"}
    names: dict[str, Any] = {}
    exec(script.replace("guesses = [model.classes[k]", "named = [model.classes[k]"), names)
    assert len(names["named"]) == 2 and set(names["named"]) <= {"cat", "dog"}
    assert set(names["table"]["metric"]) > {"accuracy", "brier"}
