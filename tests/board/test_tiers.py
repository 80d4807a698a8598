"""A tier is a part of a protocol: it is trained, compared with what the board has of it, and judged."""

from pathlib import Path

import pytest
import scipy.stats

from oodbench.board.page import agreement
from oodbench.board.page.contents import contents
from oodbench.board.page.markdown import markdown_page
from oodbench.board.protocol import Tier, tiers
from oodbench.report.gap_tables import Gaps, gaps_of
from oodbench.results.frames import subset
from oodbench.results.frozen import frozen
from tests.helpers.boards import invoke
from tests.helpers.made_boards import Means, made_board

LITE = "lite: {datasets: [SEM], draws: 2, trials: 3}\n"


def test_a_tier_is_trained_and_shown_beside_as_much_of_the_board(
    copy: Path, tmp_path: Path
) -> None:
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
        ("lite: {draws: 0}", "lite.draws: Input should be greater than or equal to 1"),
        ("lite: {steps: 5}", "lite.steps: Extra inputs are not permitted"),
        ("[lite]", "Input should be a valid dictionary"),
    ],
)
def test_a_mistake_in_a_tier_is_one_sentence(copy: Path, text: str, message: str) -> None:
    (copy / "tiers.yaml").write_text(text)
    told = invoke("run", copy, "--algorithm", "VREx", "--tier", "light", "--out", "x", code=2)
    assert message in told and told.count("\n") == 1


def test_the_page_has_the_tau_of_a_tier_with_the_whole_board(tmp_path: Path) -> None:
    labels = {"ERM": 0.5, **{f"R{i}": 0.5 + 0.003 * i for i in range(6)}, "ceiling": 0.9}
    means: Means = {"a": labels, "b": labels}
    board = tmp_path / "tiers.v1"
    runs = made_board(
        board, means, 4, 5, rules=dict.fromkeys(means, ("val_env",)), ceilings=("ceiling",)
    )
    tier = Tier(datasets=["b"], draws=2, trials=3)
    (board / "tiers.yaml").write_text("lite: {datasets: [b], draws: 2, trials: 3}")
    assert tiers(board) == {"lite": tier}
    frames = frozen(str(board))
    few = frames.runs[(frames.runs["draw"] < 2) & (frames.runs["trial"] < 3)]
    orders = []
    for made in (frames, subset(frames, few[few["dataset_label"] == "b"])):
        gaps = gaps_of(made, "val_env")
        assert isinstance(gaps, Gaps)
        orders.append(gaps.means.sort_index())
    tau = scipy.stats.kendalltau(*orders).statistic
    assert -1 < tau < 1
    erm = runs.query("label == 'ERM' and dataset == 'b' and draw < 2 and trial < 3")
    whole = gaps_of(frames, "val_env")
    assert whole is not None
    (row,) = agreement.tiers_agree(whole, frames, tiers(board)).rows
    assert row == ["lite", "1", "2", "3", "6", f"{erm['seconds'].sum():.0f} s", f"{tau:.2f}"]
    assert "### Tiers: Kendall's tau" in markdown_page(contents(str(board)))
