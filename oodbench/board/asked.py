"""The arguments of a board's commands, and the frames that they ask for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oodbench.results.frames import Frames


@dataclass(frozen=True)
class Asked:
    """The arguments of a board's command: its name, results directories beside it, and what is shown."""

    name: str
    directories: Sequence[Path] = ()
    rule: str | None = None
    datasets: Sequence[str] = ()
    rows: Sequence[str] = ()
    baseline: str = "ERM"
    metric: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the whole board is asked for, and nothing beside it."""
        return self == Asked(self.name)

    def frames(self) -> "Frames":
        """The frames that are asked for; raises UserError as `beside_board` does, and for unknown names."""
        from oodbench.board.beside import beside_board  # brings pandas, which takes half a second
        from oodbench.results.frames import only

        frames = beside_board(self.name, self.directories, self.datasets)
        return only(frames, (), self.rows, self.baseline)
