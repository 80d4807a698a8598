from pathlib import Path

import pytest

from oodbench.algorithms import algorithms
from tests.helpers.commands import mistake, type_in

PLUGIN = '''
from oodbench.algorithms import Algorithm, register

@register("Mine", paper="none yet")
class Mine(Algorithm):
    """Does nothing new.

    And says so at length.
    """

    def objective(self, out):
        return out.risks.mean()
'''


def test_one_name_has_a_page() -> None:
    page = type_in("list", "IRM").stdout
    assert page.startswith("IRM (algorithm)\n") and "arXiv:1907.02893" in page


def test_a_plug_in_is_listed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "my_methods.py").write_text(PLUGIN)
    monkeypatch.setattr(algorithms, "_classes", dict(algorithms.items()))
    result = type_in("list", "--plugin", "my_methods")
    assert "Does nothing new. [none yet]" in result.stdout and "at length" not in result.stdout
    said = mistake(type_in("list", "--plugin", "my_method"))
    assert said.startswith("error: unknown plug-in module 'my_method'")
