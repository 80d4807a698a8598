import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from oodbench.datasets import make
from oodbench.errors import UserError
from tests.bench import race
from tests.bench.cli import app
from tests.bench.process_tree import Cost

STAND_IN = {
    "__init__.py": "",
    "lib/__init__.py": "",
    "scripts/__init__.py": "",
    "datasets.py": "class MultipleDomainDataset:\n    N_WORKERS = 8\n",
    "algorithms.py": """
class Method:
    def update(self, batches):
        time.sleep(0.02)
import time
def get_algorithm_class(name):
    return Method
""",
    "hparams_registry.py": """
def default_hparams(algorithm, dataset):
    return {"lr": 1.0, "batch_size": 32}
def random_hparams(algorithm, dataset, seed):
    return {"lr": 2.0, "batch_size": 17}
""",
    "lib/misc.py": "import time\ndef accuracy(network):\n    time.sleep(0.03)\n    return 0.5\n",
    "lib/fast_data_loader.py": """
class InfiniteDataLoader:
    def __init__(self, data):
        self.data = data
    def __iter__(self):
        while True:
            yield self.data[:4]
""",
    "scripts/sweep.py": """
import argparse, pathlib, subprocess, sys
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=pathlib.Path)
given, rest = parser.parse_known_args()
print(*rest)
for i in range(16):
    (given.output_dir / str(i)).mkdir(parents=True)
    (given.output_dir / str(i) / "done").touch()
subprocess.run(f"python -m domainbed.scripts.train {given.output_dir}/said", shell=True, check=True)
""",
    "scripts/train.py": """
import json, pathlib, sys
from domainbed import algorithms, datasets, hparams_registry
from domainbed.lib import misc
from domainbed.lib.fast_data_loader import InfiniteDataLoader
first = hparams_registry.default_hparams("ERM", "Spirals")
hparams = [first, hparams_registry.random_hparams("ERM", "Spirals", 3)]
made = datasets.Spirals("root", [0], hparams[0])
loaders = zip(*[InfiniteDataLoader(d) for d in made.datasets])
method = algorithms.get_algorithm_class("ERM")()
for _ in range(5):
    method.update(next(loaders))
misc.accuracy(method)
x, y = made.datasets[1][:3]
pathlib.Path(sys.argv[1]).write_text(json.dumps([
    hparams, made.N_WORKERS, made.CHECKPOINT_FREQ, len(made.ENVIRONMENTS), [len(d) for d in made.datasets],
    list(made.input_shape), x.tolist(), y.tolist(), str(y.dtype)]))
""",
}
"""A checkout with DomainBed's interface, as far as the race meets it, and with sleep for work."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in STAND_IN.items():
        path = tmp_path / "checkout" / "domainbed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "checkout"


def lap(folder: Path, checkout: Path) -> tuple[Cost, dict[str, float]]:
    folder.mkdir()
    peer = race.Peer(path=checkout, python=Path(sys.executable))
    return race.run_peer(peer, race.ENTRANTS[2], "12 and 29", 16, folder)


@pytest.mark.slow
def test_what_the_peer_is_given_and_its_times(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cost, phases = lap(Path("lap"), checkout.relative_to(tmp_path))
    said = json.loads(Path("lap/results/said").read_text())
    hparams, workers, every, held, sizes, shape, x, y, kind = said
    network = {"mlp_width": 256, "mlp_depth": 2, "mlp_dropout": 0.0}
    assert hparams == [
        {"lr": 1.0, **network, "batch_size": 12},
        {"lr": 2.0, **network, "batch_size": 29},
    ]
    assert (workers, every, held, shape) == (0, race.EVALUATE_EVERY, 1, [18])
    assert sizes == [2000] + 16 * [1024]
    ours = make("Spirals", {}, None).load(0)["0"]
    assert np.array_equal(np.float32(x), ours.x[:3].numpy())
    assert (y, kind) == (ours.y[:3].tolist(), "torch.int64")
    assert phases["stepping"] >= 5 * 0.02
    assert phases["evaluating"] >= 0.03
    assert phases["importing"] > phases["setting up"] > 0
    assert sum(phases.values()) == pytest.approx(cost.wall_seconds)
    log = Path("lap/log.txt").read_text()
    assert "launch --datasets Spirals --algorithms ERM IRM VREx ANDMask --n_hparams 2" in log


@pytest.mark.slow
def test_a_sweep_of_theirs_that_lacks_runs_is_no_result(checkout: Path, tmp_path: Path) -> None:
    (checkout / "domainbed" / "algorithms.py").unlink()  # as if something it imports were missing
    (checkout / "domainbed" / "scripts" / "sweep.py").write_text("from domainbed import algorithms")
    with pytest.raises(UserError, match=r"0 of 16 runs ended well; .*log.txt"):
        lap(tmp_path / "lap", checkout)


@pytest.mark.slow
def test_our_side_alone(tmp_path: Path) -> None:
    arguments = ["--steps", "2", "--only", "12 and 29", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["race", *arguments])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads((tmp_path / "race.json").read_text())
    (ours,) = found["laps"]
    assert (ours["entrant"], ours["batch"], found["steps"]) == ("oodbench", "12 and 29", 2)
    assert ours["cost"]["processes"] >= 3
    assert sum(ours["phases"].values()) == pytest.approx(2 * ours["cost"]["wall_seconds"])
    assert min(ours["phases"][p] for p in ("stepping", "evaluating", "the rest")) > 0
    assert "| 12 and 29 | oodbench" in result.output


def made_up(entrant: str, wall: float, batch: str = "256") -> race.Lap:
    cost = Cost(wall, 2 * wall, 100.0, 4, 0)
    phases = {"stepping": wall / 2}
    return race.Lap(entrant, batch, cost, phases, 0.5)


def test_the_table_has_medians_and_ratios_to_ours() -> None:
    laps = [made_up("oodbench", w) for w in (10.0, 12.0, 50.0)]
    laps += [made_up("DomainBed as shipped", w) for w in (100.0, 240.0, 300.0)]
    laps.append(made_up("oodbench", 8.0, "12 and 29"))
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in race.table(laps).splitlines()]
    assert rows[2][:6] == ["256", "oodbench", "12.0", "1.0", "24", "1.0"]
    assert rows[2][6:] == ["4800", "100", "4", "0.5"]
    assert rows[3][:7] == ["256", "DomainBed as shipped", "240.0", "20.0", "480", "20.0", "240"]
    assert rows[4][:4] == ["12 and 29", "oodbench", "8.0", "1.0"]
    assert rows[-1] == ["12 and 29", "oodbench", "", "", "", "4.0", "", ""]


def test_mistakes_are_named(tmp_path: Path) -> None:
    for arguments, message in (
        (["--domainbed", str(tmp_path)], "is no checkout of DomainBed"),
        (["--only", "128"], "no batch setting '128' (256, 12 and 29)"),
    ):
        result = CliRunner().invoke(app, ["race", *arguments, "--out", str(tmp_path / "out")])
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())
        assert not (tmp_path / "out").exists()
