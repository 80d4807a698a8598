from pathlib import Path
from typing import Any

from oodbench.report.figures import Finding, save_finding


def test_a_picture_is_the_same_every_time(tmp_path: Path) -> None:
    def draw(figure: Any) -> None:
        figure.subplots().plot([1, 2], [3, 4])

    finding = Finding("a title", ["a"], [["1"]], [], draw)
    names: dict[str, list[Path]] = {
        folder: list(save_finding(finding, "same", tmp_path / folder)) for folder in ("one", "two")
    }
    for one, two in zip(*names.values(), strict=True):
        assert one.read_bytes() == two.read_bytes()
