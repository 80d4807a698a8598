"""EmojiStyles: the drawings of the code points that every set has, from sets in Iconify's format."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from oodbench.datasets.emoji_styles import GROUPS, SETS, EmojiStyles

from oodbench.data.drawn import DrawnPictures
from oodbench.data.packages import Files
from oodbench.datasets import Environment

POINTS = {"1f600": "grinning-face", "1f3cf": "cricket-game", "1f997": "cricket", "1f984": "unicorn"}
CATEGORIES = {"Smileys & Emotion": ["grinning-face"], "Animals & Nature": ["cricket", "unicorn"]}
CATEGORIES |= {"Activities": ["cricket-game"]}


def emoji_set(place: int, by_point: bool) -> Files:
    """A set in which an older one lacks code points, and calls the game what newer ones call the insect."""
    names = list(POINTS.values())
    bodies = {
        name: {"body": f'<circle cx="8" cy="8" r="{1 + i + place / 10}"/>'}
        for i, name in enumerate(names)
    }
    if not by_point:
        bodies["Cricket_"] = bodies.pop("cricket-game")
        del bodies["cricket"]
    aliases = {} if by_point else {"cricketgame": {"parent": "Cricket_"}}
    icons = {"icons": bodies, "aliases": aliases, "width": 16, "height": 16}
    return {
        "icons.json": json.dumps(icons).encode(),
        "chars.json": json.dumps(POINTS if by_point else {}).encode(),
        "metadata.json": json.dumps({"categories": CATEGORIES} if by_point else {}).encode(),
    }


@pytest.fixture
def files() -> dict[str, Files]:
    old = ("noto-v1", "emojione", "emojione-mono", "fluent")
    return {
        package.name: emoji_set(place, name not in old)
        for place, (name, package) in enumerate(SETS.items())
    }


def emoji(**options: Any) -> EmojiStyles:
    return EmojiStyles(EmojiStyles.Options(**options))


def test_every_set_draws_the_same_code_points(files: dict[str, Files]) -> None:
    """Without the cricket: in the old sets, its name is that of the game's drawing."""
    pictures = emoji().pictures(files)
    for name in SETS:
        drawn = [(p.identity, GROUPS[p.target]) for p in pictures if p.environment == name]
        groups = ("Activities", "Smileys & Emotion", "Animals & Nature")
        assert drawn == [*zip(("1f3cf", "1f600", "1f984"), groups, strict=True)]
    sizes = {p.draw().shape for p in pictures}
    assert sizes == {(3, 16, 16)}
    assert len({p.draw().tobytes() for p in pictures if p.identity == "1f984"}) == len(SETS)


def test_a_code_point_that_a_set_lacks_is_left_out(files: dict[str, Files]) -> None:
    chars = {k: v for k, v in POINTS.items() if v != "unicorn"}
    files[SETS["openmoji"].name]["chars.json"] = json.dumps(chars).encode()
    assert "1f984" not in {p.identity for p in emoji().pictures(files)}


def test_shared_identities_are_trained_on_and_tested_on(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = torch.tensor([True, False])
    given = Environment(torch.zeros(2, 3, 16, 16), torch.zeros(2), out=flags, unseen=flags)
    monkeypatch.setattr(DrawnPictures, "load", lambda self, trial: {"noto": given})
    assert emoji().load(0)["noto"] == given
    assert emoji(shared_identities=True).load(0)["noto"] == replace(given, unseen=None)
