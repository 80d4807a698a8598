"""A tier is a part of a protocol: it is trained, compared with what the board has of it, and judged."""

from pathlib import Path

import pytest

from tests.helpers.results.boards import invoke

pytestmark = pytest.mark.slow

LITE = "lite: {datasets: [SEM], draws: 2, trials: 3}\n"


@pytest.mark.nightly
def test_a_tier_is_shown_beside_as_much_of_the_board(copy: Path, tmp_path: Path) -> None:
    (copy / "tiers.yaml").write_text(LITE)
    run = ("run", copy, "--algorithm", "VREx", "--tier", "lite", "--workers", 1)
    text = invoke(*run, "--out", tmp_path / "out")
    assert "6 runs" in text and "3 of 4 trials, 2 of 4 draws" in " ".join(text.split())
    assert "1 of 2 datasets" in " ".join(text.split())
    text = invoke(*run, "--trials", 1, "--out", tmp_path / "fewer")
    assert "2 runs" in text and "1 of 4 trials" in " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LITE, "unknown tier 'light' in the board tiny.v1; did you mean lite?"),
        ("lite: {draws: 0}", "lite: draws: input should be greater than or equal to 1"),
        ("lite: {steps: 5}", "lite: unknown key 'steps'; known: datasets"),
        ("[lite]", "must hold tiers by name"),
    ],
)
def test_a_mistake_in_a_tier_is_one_sentence(copy: Path, text: str, message: str) -> None:
    (copy / "tiers.yaml").write_text(text)
    told = invoke("run", copy, "--algorithm", "VREx", "--tier", "light", "--out", "x", code=2)
    assert message in told and told.count("\n") == 1
