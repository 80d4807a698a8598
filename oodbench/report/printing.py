"""Tables on the terminal."""

from collections.abc import Sequence

import pandas as pd

from oodbench.errors import unknown
from oodbench.metrics import of_predictions
from oodbench.report.formats import FORMATS
from oodbench.report.leaderboard import leaderboard
from oodbench.report.sheet import Sheet, sheet
from oodbench.results.frames import Frames
from oodbench.selection import choose


def print_table(
    frames: Frames,
    selection: str | None = None,
    format_: str = "terminal",
    metric: str | None = None,
) -> None:
    """Print the leaderboard of the runs of `joined`; raises UserError for unknown names."""
    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    frames = with_kept(frames, [selection], metric)
    print_sheet(sheet(leaderboard(frames, selection, metric)), format_)


def with_kept(frames: Frames, rules: Sequence[str | None], metric: str | None) -> Frames:
    """The frames with the metric from the kept predictions at what each of the rules chose, if it is
    one of theirs, for the runs that did not record it; raises UserError for a rule that chooses nothing.
    """
    from oodbench.report.prediction_metrics import with_metric

    computed = None if metric is None else of_predictions(metric)
    if metric is None or computed is None or not rules:
        return frames
    recorded = frames.metrics.loc[frames.metrics["metric"] == metric, "id"].unique()
    chosen = pd.concat([choose(frames, rule)[["id", "step"]] for rule in rules]).drop_duplicates()
    chosen = chosen[~chosen["id"].isin(recorded)]
    return with_metric(frames, chosen, metric, computed) if len(chosen) else frames


def print_sheet(found: Sheet, format_: str) -> None:
    """Print tables in a format; raises UserError if there is none of that name."""
    print(sheet_text(found, format_), end="")


def sheet_text(found: Sheet, format_: str) -> str:
    """The text of tables in a format; raises UserError if there is none of that name."""
    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    return FORMATS[format_](found)
