"""Implements `oodbench.Results`: tables and models of a sweep, of a board, or of both side by side."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import pandas as pd

from oodbench.errors import UserError, names_arguments
from oodbench.report import why as reasons
from oodbench.report.cells import with_prediction_metrics
from oodbench.report.comparison import comparison, table
from oodbench.report.gaps import BASELINE
from oodbench.report.sources import frames_of
from oodbench.report.tables import Sheet, to_terminal
from oodbench.results.boards import board_among
from oodbench.results.read import records_of_sources
from oodbench.results.tables import Tables
from oodbench.terminal import plain_terminal

if TYPE_CHECKING:
    from oodbench.train.models import Model

PLANNED = ("dataset", "label", "test_environments", "draw", "trial", "steps", "state")


class Report(pd.DataFrame):
    """The numbers of a report, one in each row, which are shown as the report's tables.

    Frames made from it, such as by `query`, are plain data frames.
    """

    _metadata = ("sheet",)
    sheet: Sheet

    @classmethod
    def of(cls, sheet: Sheet) -> "Report":
        """The numbers of a sheet."""
        made = cls(sheet.frame)
        made.sheet = sheet
        return made

    def __repr__(self) -> str:
        return to_terminal(self.sheet, plain_terminal(), whole=True)

    def _repr_html_(self) -> str:
        return self.sheet._repr_html_()


class Results:
    """The results of a sweep in a directory, of a board by its name, or of both side by side.

    `oodbench.sweep` returns them. `oodbench.Results("results/mine")` opens the results of a sweep,
    `oodbench.Results("small.v3", "results/mine")` adds those of a board. Every access reads the disk.
    Raises UserError for what is neither a results directory nor a board.
    """

    def __init__(self, *sources: str | PathLike[str], allow_mixed: bool = False) -> None:
        """Open results; `allow_mixed` accepts directories that differ in protocol or code."""
        if not sources:
            raise UserError("oodbench.Results: no results directory or board is named")
        self.sources = [str(source) for source in sources]
        self._allow_mixed = allow_mixed
        board_among(self.sources)

    def __repr__(self) -> str:
        return f"oodbench.Results({', '.join(map(repr, self.sources))})"

    def _tables(self, rule: str | None = None, metric: str | None = None) -> Tables:
        found = frames_of(self.sources, allow_mixed=self._allow_mixed)
        return with_prediction_metrics(found, rule, [metric])

    @property
    def runs(self) -> pd.DataFrame:
        """The planned runs, one in each row, with the fields of their specs, `state`, costs and `error`."""
        runs: pd.DataFrame = self._tables().runs
        return runs

    @property
    def records(self) -> pd.DataFrame:
        """All records, as `oodbench.load` returns them."""
        return records_of_sources(self.sources)

    def plan(self) -> pd.DataFrame:
        """The planned runs by id, with dataset, row, test environments, draw, trial, steps and state."""
        runs = self.runs
        tests = runs["test_environments"].map("+".join)
        found = runs.assign(dataset=runs["dataset_label"], test_environments=tests)
        return found.set_index("id")[list(PLANNED)]

    @names_arguments
    def table(
        self,
        *,
        rule: str | None = None,
        metric: str | None = None,
        also: str | Sequence[str] = (),
        datasets: str | Sequence[str] = (),
        rows: str | Sequence[str] = (),
    ) -> Report:
        """The leaderboard, as `python -m oodbench.report table` prints it.

        `rule` is the selection rule. `metric` replaces the main metrics of datasets, and metrics in `also`
        are added. `datasets` and `rows` are a name or several; empty means all. Raises UserError for
        unknown names.
        """
        names = {"also": also, "datasets": datasets, "rows": rows}
        several: Any = {k: [v] if isinstance(v, str) else v for k, v in names.items()}
        options: dict[str, Any] = {"rule": rule, "metric": metric, "allow_mixed": self._allow_mixed}
        return Report.of(table(*self.sources, **several, **options))

    @names_arguments
    def compare(
        self, baseline: str = BASELINE, *, rule: str | None = None, metric: str | None = None
    ) -> Report:
        """The paired gains of each row over a baseline, with intervals, and the mean ranks.

        Raises UserError for unknown names.
        """
        return Report.of(comparison(self._tables(rule, metric), baseline, rule, metric))

    @names_arguments
    def why(
        self,
        row: str | None = None,
        dataset: str | None = None,
        *,
        test_environment: str | None = None,
        rule: str | None = None,
        metric: str | None = None,
    ) -> reasons.Why:
        """The runs behind a cell of the leaderboard, and which of them were chosen.

        Names are those of the table, several test environments joined by `+`; a name may be left out if the
        table has only one. Raises UserError for unknown names.
        """
        names = dataset, row, test_environment
        options = ("`dataset`", "`row`", "`test_environment`")
        return reasons.why(self._tables(rule, metric), *names, rule, metric, options=options)

    @names_arguments
    def model(
        self,
        row: str | None = None,
        dataset: str | None = None,
        *,
        test_environment: str | None = None,
        rule: str | None = None,
        trial: int | None = None,
        data_dir: str | PathLike[str] | None = None,
        device: str = "cpu",
        plugins: bool = False,
    ) -> "Model":
        """The trained model that a rule chooses, from weights that the sweep kept (`keep_weights`).

        `model(model.dataset.read(frame))` predicts new rows of a table, see `oodbench.load_model`; names
        are as in `why`. In a new process, `plugins=True` imports the
        plug-ins of the run and the classes of a script or a notebook, which runs their code. Raises
        UserError as `load_model` does, and for boards and several directories.
        """
        from oodbench.train.models import load_model

        _, directories = board_among(self.sources)
        if len(self.sources) != 1 or not directories:
            raise UserError(f"{self} is not one results directory, and a model is loaded from one")
        return load_model(
            directories[0],
            dataset=dataset,
            algorithm=row,
            test_environment=test_environment,
            rule=rule,
            trial=trial,
            data_dir=data_dir,
            device=device,
            plugins=plugins,
        )
