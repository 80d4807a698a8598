"""The guide says of every method of DomainBed which is ours, or why there is none."""

import re

from oodbench.algorithms import algorithms
from tests.helpers.paths import ROOT
from tests.peer.setting import CASES

DOMAINBED = """
    ERM ERMPlusPlus Fish IRM GroupDRO Mixup MLDG CORAL MMD DANN CDANN MTL SagNet ARM VREx RSC SD ANDMask
    SANDMask IGA SelfReg Fishr TRM IB_ERM IB_IRM CAD CondCAD Transfer CausIRL_CORAL CausIRL_MMD
    EQRM RDM ADRMX URM
""".split()
"""The names in `ALGORITHMS` of domainbed/algorithms.py at b93c22a."""


ELSEWHERE = ("ERMPlusPlus", "TRM", "Transfer")
"""Those whose comparison stands in docs/findings/sources.md."""


def rows() -> list[list[str]]:
    """The rows of the guide's table of methods: theirs, ours, equal or why not."""
    text = (ROOT / "docs" / "guide" / "from_domainbed.md").read_text()
    table = text.partition("\n## Methods\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_method_of_theirs_has_one_row() -> None:
    assert len(DOMAINBED) == 34
    assert [theirs for theirs, _, _ in rows()] == DOMAINBED


def test_a_row_names_a_method_that_there_is_or_none() -> None:
    for theirs, ours, reason in rows():
        names = re.findall(r"`(\w+)`", ours)
        assert set(names) <= set(algorithms), ours
        assert names or (ours == "-" and theirs not in algorithms), f"{theirs} is here"
        assert reason


def test_what_is_called_equal_is_compared() -> None:
    for theirs, _, reason in rows():
        compared = theirs in CASES or theirs in ELSEWHERE
        assert reason.startswith("equal") == compared, theirs
