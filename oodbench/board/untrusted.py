"""Train the runs of a submission again, in a process that holds only what a stranger's code may see.

python -m oodbench.board.untrusted TASK, where TASK is a file with a `Task` as JSON. The process knows specs
and no frozen number; `oodbench.board.verification` starts it, with the variables of portable arithmetic,
and compares what it leaves in the results directory.
"""

import sys
from inspect import getsourcefile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from oodbench.algorithms import algorithms
from oodbench.board.checks import planned_rows
from oodbench.board.protocol import protocol_of
from oodbench.board.rerun import train_frozen
from oodbench.errors import UserError
from oodbench.registry import load_plugins
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.launch import LaunchOptions
from oodbench.terminal import exit_on_user_error


class Task(BaseModel):
    """All that the process is told: which runs to train, by which method, and where."""

    board: Path
    """A folder with the protocol alone."""
    algorithm: str
    method: Path
    rows: dict[str, dict[str, list[str]]]
    """The ids of the submitted runs, by label and dataset."""
    transductive: dict[str, list[str]]
    """The datasets on which a label's part says that predictions depend on other test inputs."""
    specs: list[tuple[dict[str, Any], bool]]
    """The runs to train, and whether each was vectorized."""
    out: Path
    data_dir: Path | None
    workers: int | None


def check_rows(task: Task) -> None:
    """Raise UserError unless each row has, on each of its datasets, the runs that the protocol plans."""
    protocol = protocol_of(task.board)
    datasets = list(dict.fromkeys(d for of_label in task.rows.values() for d in of_label))
    planned = planned_rows(protocol, list(task.rows), task.data_dir, datasets)
    submitted = {(d, label): set(ids) for label, row in task.rows.items() for d, ids in row.items()}
    for (dataset, label), ids in submitted.items():
        specs = planned.get((dataset, label))
        if specs is None:
            raise UserError(f"the protocol plans no run of {label} on {dataset}")
        if strange := ids ^ set(specs):
            raise UserError(
                f"{len(strange)} runs of {label} on {dataset} are not those that the protocol plans "
                "for this method, such as other hyperparameters than its draws"
            )
        declared = next(iter(specs.values())).transductive
        if declared != (dataset in task.transductive.get(label, ())):
            so = "is" if declared else "is not"
            raise UserError(f"{label} {so} transductive, and its part on {dataset} says otherwise")


@exit_on_user_error
def main(file: str) -> None:
    """Load the method, check its rows and train the runs."""
    task = Task.model_validate_json(Path(file).read_text())
    known = algorithms.find(task.algorithm)
    if known and Path(str(getsourcefile(known))).read_bytes() != task.method.read_bytes():
        raise UserError(
            f"the method's file is not the code of {task.algorithm}, which is registered"
        )
    plugins = () if known else (task.method.stem,)
    load_plugins(plugins)
    check_rows(task)
    runs = [(RunSpec.from_json(values), together) for values, together in task.specs]
    options = LaunchOptions(
        out=task.out,
        launcher="debug" if task.workers == 1 else "local",
        plugins=plugins,
        workers=task.workers,
        data_dir=task.data_dir,
    )
    train_frozen(task.board, runs, options)


if __name__ == "__main__":
    main(sys.argv[1])
