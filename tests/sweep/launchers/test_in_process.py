from dataclasses import replace
from pathlib import Path

import pytest

from oodbench.errors import UserError
from oodbench.sweep.launchers.in_process import debug
from oodbench.train.settings import TrainSettings
from tests.helpers.sweeps import job, tiny


def test_it_takes_no_timeout(tmp_path: Path) -> None:
    asked = job(tiny(), tmp_path)
    with pytest.raises(UserError, match="use local for --run-timeout"):
        debug(replace(asked, settings=TrainSettings(run_timeout=1.0)))
