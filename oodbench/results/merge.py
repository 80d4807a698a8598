"""The results directories of one sweep, from several machines, as a new one."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oodbench.errors import UserError
from oodbench.files import whole_folder
from oodbench.results.directory import Results
from oodbench.results.join import check_protocol, joined
from oodbench.results.provenance import code
from oodbench.results.run_spec import RunSpec, State

PLACE = ["dataset_label", "label", "test_environments", "draw", "trial"]
"""The columns of a run that name its place in a sweep."""
LEFT_OUT = ("lock", "heartbeat")
"""The files of a run that say who trains it."""


@dataclass(frozen=True)
class Merged:
    """What a merge has written."""

    runs: int
    """The number of planned runs."""
    codes: tuple[str, ...]
    """The version and commit of all code that trained one of them."""


def merge(directories: Sequence[Path], out: Path) -> Merged:
    """Write the runs of results directories of one sweep into a new one, whole or not at all.

    Of a run that several have, the copy that has got furthest is taken. Raises UserError if `out` is
    there, and if the sweeps have different names, settings or runs in one place, or search.
    """
    if out.exists():
        raise UserError(f"{out} is there already; use another --out")
    plans = [Results(directory).plan() for directory in directories]
    _check_settings(directories, plans)
    runs = joined(directories, allow_mixed=True).runs
    check_protocol(runs)
    clash = runs[runs.duplicated(PLACE, keep=False)]
    if len(clash):
        first = clash.iloc[0]
        raise UserError(
            f"the directories hold different runs as draw {first['draw']}, trial {first['trial']} of "
            f"{first['label']} on {first['dataset_label']}: they are not of one sweep"
        )
    specs = {i: RunSpec.from_json(s) for plan in plans for i, s in plan["runs"].items()}
    settings = plans[0]["settings"]
    plugins = dict.fromkeys(p for plan in plans for p in plan["settings"].get("plugins", ()))
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(out) as part:
        Results(part).write_plan(plans[0]["name"], settings | {"plugins": list(plugins)}, specs)
        for run_id in specs:
            copies = [Results(d).run(run_id) for d in directories]
            best = max(copies, key=lambda run: _progress(run.state(), run.records()))
            if best.path.is_dir():
                ignored = shutil.ignore_patterns(*LEFT_OUT)
                shutil.copytree(best.path, part / "runs" / run_id, ignore=ignored)
    return Merged(len(specs), tuple(sorted({code(p) for p in runs["provenance"] if p})))


def _progress(state: State, records: Sequence[Any]) -> tuple[bool, bool, int]:
    """What orders the copies of a run: complete, then ended, then by the number of records."""
    return state.complete, state.final, len(records)


def _check_settings(directories: Sequence[Path], plans: Sequence[dict[str, Any]]) -> None:
    for directory, plan in zip(directories, plans, strict=True):
        if plan["name"] != plans[0]["name"]:
            raise UserError(
                f"{directories[0]} holds the sweep '{plans[0]['name']}' and {directory} "
                f"'{plan['name']}'; `table` and `compare` take directories of several sweeps"
            )
        if plan["settings"].get("search"):
            raise UserError(
                f"{directory} holds a search, whose draws depend on its own runs: it cannot be merged"
            )
        first, own = plans[0]["settings"].get("sweep", {}), plan["settings"].get("sweep", {})
        for key in sorted({*first, *own}):
            if first.get(key) != own.get(key):
                raise UserError(
                    f"{directories[0]} and {directory} differ in {key} "
                    f"({first.get(key)} against {own.get(key)}): they are not of one sweep"
                )
