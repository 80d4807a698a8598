from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import oodbench
from oodbench.__main__ import main
from tests.helpers.commands import python
from tests.helpers.paths import ROOT

ROOMS = sorted(path.parent.name for path in Path(oodbench.__file__).parent.glob("*/__main__.py"))


def test_every_room_with_a_command_line_is_a_command() -> None:
    command = typer.main.get_command(main)
    assert sorted(getattr(command, "commands")) == ROOMS  # noqa: B009


@pytest.mark.parametrize("room", ROOMS)
def test_every_command_has_a_help(room: str) -> None:
    result = CliRunner().invoke(main, [room, "--help"])
    assert result.exit_code == 0, result.output
    assert f" {room} [OPTIONS]" in result.output


@pytest.mark.slow
def test_lists_do_without_numpy_and_commands_records_and_reports_without_torch() -> None:
    rooms = "__main__", "results.directory", "sweep", "report.html", "report.why"
    code = f"""
import sys
from oodbench.list.catalogue import own_entries

assert own_entries() and not {{"torch", "numpy"}} & set(sys.modules)
import oodbench.{", oodbench.".join(rooms)}
assert "torch" not in sys.modules
"""
    done = python(ROOT, "-c", code)
    assert done.returncode == 0, done.stderr
