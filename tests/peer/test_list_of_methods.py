"""The guide says which methods of DomainBed differ here, and all others are compared with theirs."""

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


def differences() -> dict[str, str]:
    """What differs, by method, in the guide's table of methods."""
    text = (ROOT / "docs" / "guide" / "from_domainbed.md").read_text()
    table = text.partition("\n## Methods\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: what for names, what in rows for name in names.split(", ")}


def test_every_method_of_theirs_has_its_name_here() -> None:
    assert len(DOMAINBED) == 34
    assert set(DOMAINBED) <= set(algorithms)


def test_what_is_equal_is_compared() -> None:
    differing = differences()
    assert set(differing) < set(DOMAINBED) and all(differing.values())
    for theirs in DOMAINBED:
        if differing.get(theirs, "equal").startswith("equal"):
            assert theirs in CASES or theirs in ELSEWHERE, theirs
