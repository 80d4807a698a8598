"""The options that commands on tables share."""

from typing import Annotated

import typer

from oodbench.report.formats import FORMATS

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Results directories, shown as one; or a board, by its name or folder, and results beside it.",
    ),
]
Baseline = Annotated[str, typer.Option(help="The row that others are compared with.")]
Selection = Annotated[
    str | None,
    typer.Option(
        "--rule",
        help="The selection rule: train_val, val_env, leave_one_out, oracle or a plug-in's, or "
        "RULE:METRIC to judge by another metric; by default what the sweep names, else val_env where "
        "it holds validation environments out, else train_val.",
    ),
]
Format = Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")]
Metric = Annotated[
    str | None,
    typer.Option(
        help="Shown instead of the datasets' own: a recorded metric, such as loss, brier or "
        "balanced_accuracy, or one computed from kept predictions, such as macro_f1 or auroc."
    ),
]
Also = Annotated[
    list[str] | None,
    typer.Option(help="A column of a further metric, such as calibration_error; several times."),
]
Datasets = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset", help="Show this dataset alone, by its name in the table; several times."
    ),
]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm",
        "--algorithms",
        help="Show these rows alone; several times, or with commas. A baseline stays.",
    ),
]
Notes = Annotated[bool, typer.Option("--notes", help="Print the notes below tables in full.")]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="A module of metrics or selection rules; the sweep's own plug-ins need no option.",
    ),
]
AllowMixed = Annotated[
    bool, typer.Option("--allow-mixed", help="Accept directories that differ in protocol or code.")
]
