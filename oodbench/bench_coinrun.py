"""What making CoinRun data costs."""

import time
from pathlib import Path

from oodbench.data.cli.coinrun.making import PLANNER, make_shard
from oodbench.data.cli.coinrun.shards import TRAINING, UNSEEN, Settings, Shard
from oodbench.data.cli.coinrun.simulator import package
from oodbench.errors import UserError

Row = tuple[str, str, str, str]
PARTS = [Shard(TRAINING, 0), *(Shard(UNSEEN, i) for i in range(4))]
"""A mix as in the small set of docs/coinrun.md: a test level for every 25 states of training."""


def making(folder: Path) -> list[Row]:
    """States that the planner makes a CPU second; the row is missing where the game is."""
    try:
        package()
    except UserError:
        return []
    settings = Settings(levels=8, states=100, test_levels=32, expert=PLANNER)
    start = time.process_time()
    for shard in PARTS:
        make_shard(shard, folder, settings, None)
    states = settings.states + len(PARTS) - 1
    pace = states / (time.process_time() - start)
    return [("CoinRun: states made a CPU second by the planner", ">= 5", f"{pace:.1f}", "-")]
