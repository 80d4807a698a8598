"""Where the checkout is, and the frozen texts and numbers of the tests."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
