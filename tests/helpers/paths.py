"""Where the checkout is, the frozen texts and numbers of the tests, and the code that its pages show."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"


def blocks(page: str, language: str = "python") -> list[str]:
    """The code of a page in one language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
