"""The protocol of a board: its sweep, which of its runs are trained, and whether all of them are there."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.board.files import PROTOCOL_FILE, part_files
from oodbench.board.parts import Part, read_part
from oodbench.board.summary import check_summary
from oodbench.errors import UserError, unknown
from oodbench.results.frames import Frames, sweep_runs
from oodbench.results.run_spec import COMPLETE, RunSpec
from oodbench.results.schemas import DamagedFile
from oodbench.selection import sees_test
from oodbench.sweep.file import Row, Sweep, validate
from oodbench.sweep.plan import absent_data, make_plan
from oodbench.terminal import terminal
from oodbench.yaml_values import read_yaml


def protocol_of(board: Path) -> Sweep:
    """The sweep of a board; raises UserError for a file that is no sweep, or cannot be a board's."""
    file = board / PROTOCOL_FILE
    values = read_yaml(file)
    if not isinstance(values, dict):
        raise UserError(f"{file} must hold keys and values, as the file of a sweep")
    values.pop("protocol", None)  # it names itself
    sweep = validate(values, str(file))
    if sweep.selection is not None and sees_test(sweep.selection):
        raise UserError(
            f"{file} selects by {sweep.selection}, which sees the test environments: no board is "
            "ranked by it"
        )
    if sweep.test_environments == "pairs":
        raise UserError(f"{file} plans pairs of test environments, which a board cannot hold")
    return sweep


def restricted(
    protocol: Sweep,
    rows: Sequence[str],
    trials: int | None = None,
    draws: int | None = None,
    datasets: Sequence[str] = (),
) -> Sweep:
    """The protocol with these rows alone, at most the first `trials` and `draws`, and these datasets.

    A row is one of the protocol's by its label, or a method by its name, and `all` are all rows of the
    protocol. Without `datasets` all are kept. Raises UserError where the protocol has fewer trials or
    draws, or no such dataset.
    """
    listed = {label_of(item): item for item in protocol.algorithms}
    named = [label for row in rows for label in (listed if row == "all" else [row])]
    entries = {_name_of(entry): entry for entry in protocol.datasets}
    for name in datasets:
        if name not in entries:
            raise unknown("dataset", name, entries, f"the protocol {protocol.name}")
    update = {
        "datasets": [entries[name] for name in dict.fromkeys(datasets or entries)],
        "algorithms": [listed.get(name, name) for name in dict.fromkeys(named)],
        "trials": _first(protocol.trials, trials, "trials", protocol.name),
        "hparam_draws": _first(protocol.hparam_draws, draws, "draws", protocol.name),
        "protocol": protocol.name,
    }
    return protocol.model_copy(update=update)


def possible(sweep: Sweep, data_dir: Path | None) -> Sweep:
    """The sweep with the datasets whose data and packages are there; the others are printed.

    Raises MissingError if none is left.
    """
    absent = absent_data(sweep, data_dir)
    left = [entry for entry in sweep.datasets if _name_of(entry) not in absent]
    if not left:
        raise next(iter(absent.values()))
    for label, error in absent.items():
        terminal(stderr=True).say(f"{label} is left out: it needs `{error.command}`")
    return sweep.model_copy(update={"datasets": left})


def label_of(row: str | Row) -> str:
    """The row of the table of an entry of a sweep's algorithms."""
    from oodbench.sweep.cells import completed_row

    return row if isinstance(row, str) else str(completed_row(row).label)


def _name_of(dataset: str | dict[str, Any]) -> str:
    """What a protocol calls a dataset: its label, if it gives one, else its name."""
    if isinstance(dataset, str):
        return dataset
    return str(dataset.get("label") or dataset.get("name"))


def _first(planned: int | list[int], wanted: int | None, what: str, name: str) -> int | list[int]:
    indices = list(range(planned)) if isinstance(planned, int) else planned
    if wanted is None:
        return planned
    if wanted > len(indices):
        raise UserError(f"the protocol {name} has {len(indices)} {what}, not {wanted}")
    return indices[:wanted]


LARGEST = 10 * 2**20
"""Bytes of the parts of a board."""

Rows = dict[tuple[str, str], dict[str, RunSpec]]
"""Specs by id of every (dataset, label)."""


def planned_rows(protocol: Sweep, labels: Sequence[str], data_dir: Path | None) -> Rows:
    """What the protocol plans for these rows; raises UserError as a plan does."""
    rows: Rows = {}
    plan = make_plan(restricted(protocol, labels), data_dir, to_train=False)
    for spec in plan.runs.values():
        rows.setdefault((spec.dataset_name, spec.label), {})[spec.id] = spec
    return rows


def wrong_results(frames: Frames, protocol: Sweep, data_dir: Path | None) -> list[str]:
    """What keeps the runs of a results directory from being frozen under a protocol, a sentence each."""
    runs = sweep_runs(frames)
    if (runs["search"] != "random").any():
        return ["the draws of a search depend on its own runs: they cannot be frozen"]
    labels = [str(label) for label in runs["label"].unique()]
    planned = planned_rows(protocol, labels, data_dir)
    wrong = []
    for (dataset, label), group in runs.groupby(["dataset_label", "label"], sort=False):
        ended = set(group.loc[group["state"].isin(COMPLETE), "id"])
        specs = planned.get((str(dataset), str(label)))
        if specs is None:
            wrong.append(f"{label} on {dataset}: the protocol plans no such row")
        else:
            wrong += _wrong_row(f"{label} on {dataset}", group, ended, specs)
    return wrong


def _wrong_row(
    row: str, runs: pd.DataFrame, ended: set[str], planned: Mapping[str, RunSpec]
) -> list[str]:
    """What is wrong with the runs of a row, of which `ended` have results."""
    strange = set(runs["id"]) - set(planned)
    if strange:
        return [
            f"{row}: {len(strange)} of {len(runs)} runs are under another protocol, such as "
            f"{min(strange)}"
        ]
    wrong = []
    left = runs[runs["id"].isin(ended)]
    for what, wanted, there in (
        ("trial", _each(s.trial for s in planned.values()), set(left["trial"])),
        ("draw", _each(s.draw for s in planned.values()), set(left["draw"])),
        (
            "test set",
            _each("+".join(s.test_environments) for s in planned.values()),
            set(left["test_environments"].map("+".join)),
        ),
    ):
        missing = [str(value) for value in wanted if value not in there]
        if missing:
            wrong.append(f"{row}: {what} {', '.join(missing)} missing ({len(wanted)} are planned)")
    if not wrong and len(ended) < len(planned):
        wrong.append(f"{row}: {len(ended)} of {len(planned)} runs have results")
    return wrong


def _each(values: Iterable[object]) -> list[object]:
    return list(dict.fromkeys(values))


def wrong_board(board: Path, data_dir: Path | None) -> list[str]:
    """What is wrong with a board, a sentence each; raises UserError if its protocol cannot be read."""
    protocol = protocol_of(board)
    wrong, parts = [], []
    for path in part_files(board):
        try:
            part = read_part(path)
            part.specs()
            parts.append(part)
        except DamagedFile as error:
            wrong.append(str(error))
    if not parts:
        return [*wrong, f"{board} has no part that can be read"]
    size = sum(path.stat().st_size for path in part_files(board))
    if size > LARGEST:
        wrong.append(
            f"the parts have {size / 2**20:.1f} MB; a board has at most {LARGEST / 2**20:.0f}"
        )
    known = [label_of(row) for row in protocol.algorithms]
    labels = list(dict.fromkeys(part.label for part in parts))
    possible = [label for label in labels if label in known or _is_method(label)]
    planned = planned_rows(protocol, possible, data_dir) if possible else {}
    for part in parts:
        row = f"{part.label} on {part.dataset}"
        wrong += [f"{row}: {text}" for text in _wrong_part(part, parts)]
        specs = planned.get((part.dataset, part.label))
        if specs is None:
            wrong.append(f"{row}: the protocol plans no such row, or needs its plug-in")
            continue
        runs = part.runs()
        wrong += _wrong_row(row, runs, set(runs["id"]), specs)
    try:
        check_summary(board)
    except UserError as error:
        wrong.append(str(error))
    return wrong


def _is_method(name: str) -> bool:
    from oodbench.algorithms import algorithms

    return name in set(algorithms)


def _wrong_part(part: Part, parts: Sequence[Part]) -> list[str]:
    """What a part's own content says against it."""
    wrong = []
    first = next(p for p in parts if p.dataset == part.dataset)
    if part.rules != first.rules:
        wrong.append(f"has the rules {part.rules}, and {first.label} has {first.rules}")
    if part.rules and all(map(sees_test, part.rules)):
        seeing = " and ".join(part.rules)
        wrong.append(f"has no rule but {seeing}, which sees the test environments")
    runs = part.runs()
    both = zip(runs["training_environments"], runs["validation_environments"], strict=True)
    if any(set(training) & set(validation) for training, validation in both):
        wrong.append("trains on validation environments")
    return wrong


def refuse(wrong: Sequence[str], what: str) -> None:
    """Raise UserError with the first few of these sentences, if there are any."""
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise UserError(f"{what}: {'; '.join(wrong[:3])}{more}")
