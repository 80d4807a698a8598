"""What the guide says of the board photographs: its commands, its hours, its table of pretraining."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from oodbench.board.protocol import find_tier, overview, protocol_of
from oodbench.results.boards import find_board
from oodbench.results.tables import PRETRAINING
from tests.helpers.paths import ROOT
from tests.helpers.results.boards import invoke

PAGE = (ROOT / "docs/guide/natural_pictures.md").read_text().partition("## Photographs")[2]
BOARD = find_board("photographs")


def test_the_runs_of_each_tier_are_those_of_the_protocol() -> None:
    runs = {label: int(count.replace(",", "")) for label, _, _, count, *_ in overview(BOARD)}
    for tier in ("features", "features-whole", "fine-tuned"):
        found = find_tier(BOARD, tier)
        share = 1 if found.draws is None else 9
        text = re.search(rf"\| `{tier}` \|[^|]*\| ([\d,]+) \|", PAGE)
        assert text and text[1] == f"{sum(runs[d] for d in found.datasets) // share:,}"


def test_the_hours_follow_from_the_measured_steps() -> None:
    rows = json.loads((ROOT / "docs/findings/gpu.json").read_text())["rows"]
    measured = {row["what"]: row["measured"] for row in rows}
    place = "3 x 32 images of 224 x 224, cuda:0"
    step = float(measured[f"update step, ERM, ms, ResNet50, {place}"])
    names = [str(getattr(row, "name", row)) for row in protocol_of(BOARD).algorithms]
    slower = [float(measured.get(f"update step, {n} / ERM, ResNet50, {place}", 1.0)) for n in names]
    mean = sum(slower) / len(slower)
    hours = 3888 * 5001 * step * mean / 3.6e6
    assert f"{step:.0f} ms for ERM and {mean:.2f} times as long for the mean" in PAGE
    assert f"{1000 / step / mean:.1f} steps a second" in PAGE
    assert f"{hours:.0f} hours on an NVIDIA H200 in float32 ({hours / 27 / mean:.0f} for" in PAGE


def test_the_table_of_pretraining_is_that_of_its_file() -> None:
    seen = yaml.safe_load(PRETRAINING.read_text())["seen"]
    for weights, of_weights in seen.items():
        verdicts, sources = zip(*of_weights.values(), strict=True)
        assert all(sources) and f"| {weights} | {' | '.join(verdicts)} |" in PAGE


@pytest.mark.slow
def test_every_command_of_the_board_is_understood(tmp_path: Path) -> None:
    lines = re.findall(r"\$ python -m oodbench\.board (?!freeze)(.*)", PAGE)
    assert len(lines) == 5
    for line in lines:
        words = shlex.split(line.replace("DIR", str(tmp_path)), comments=True)
        text = invoke(*words, code=0 if words[0] == "show" else 2)
        said = ("photographs has a protocol", "PACS: there is no folder", "has its data here")
        assert any(sentence in text for sentence in said)
