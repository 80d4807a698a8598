"""What `status` shows: counts, what runs where, what went wrong and where its log is."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from oodbench.results.run_spec import RunSpec, State

if TYPE_CHECKING:
    from oodbench.sweep.plan import Plan

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from oodbench.results.directory import Results
from oodbench.sweep.launchers.progress import title
from oodbench.sweep.launchers.states import RunStatus, slurm_answers, states

LINES = 20
"""Runs of one state that are listed."""
TAIL = 3
"""Lines of a log that are shown."""
REFRESH_SECONDS = 2.0
BREATHS = 4
"""Looks at which nothing may be under way before a search that has runs to choose counts as left."""


def show(results: Results, console: Console) -> None:
    """Print the status of a sweep once."""
    console.print(render(results, states(results)), soft_wrap=True)


def watch(results: Results, console: Console) -> None:
    """Show the status, refreshed, with a bar, until no run is queued or running."""
    bar = Progress(
        TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    task = bar.add_task("runs", total=_total(results.plan()))
    idle = 0
    with Live(console=console, auto_refresh=False) as live:
        while True:
            now = states(results)
            bar.update(task, completed=sum(s.state.at_rest for s in now.values()))
            live.update(Group(render(results, now), bar), refresh=True)
            busy = any(s.state in (State.QUEUED, State.RUNNING) for s in now.values())
            idle = 0 if busy else idle + 1
            if idle > (BREATHS if _total(results.plan()) > len(now) else 0):
                return
            time.sleep(REFRESH_SECONDS)


def render(results: Results, now: dict[str, RunStatus]) -> RenderableType:
    """The counts as a table, then a line or two for each run that is under way or went wrong."""
    stored = results.plan()
    specs = {i: RunSpec.from_json(s) for i, s in stored["runs"].items()}
    parts: list[RenderableType] = [_table(f"{stored['name']} in {results.path}", specs, now)]
    if _total(stored) > len(specs):
        text = f"The search has chosen {len(specs)} of {_total(stored)} runs so far."
        parts.append(Text(text + " `launch` goes on with it."))
    _, problem = slurm_answers(results)
    if problem:
        parts.append(Text(f"Slurm does not tell: {problem}"))
    for state in (State.QUEUED, State.RUNNING, State.FAILED, State.BROKEN, State.LOST):
        ids = [i for i in specs if now[i].state == state]
        lines = [_line(results, i, specs[i], now[i]) for i in ids]
        if state is State.QUEUED:  # one line for all that wait for the same
            counts = Counter(now[i].note for i in ids)
            lines = [f"queued: {n} runs: {note}" for note, n in counts.items()]
        parts += [Text(line) for line in lines[:LINES]]
        if len(lines) > LINES:
            parts.append(Text(f"{state}: and {len(lines) - LINES} more"))
    if any(s.state.can_be_retried for s in now.values()):
        parts.append(
            Text(
                "`retry` trains failed, broken and lost runs again; `launch` goes on with lost ones."
            )
        )
    return Group(*parts)


def _total(stored: Mapping[str, Any]) -> int:
    """How many runs the sweep has in the end, of a search those that it has yet to choose too."""
    runs, search = stored["runs"].values(), stored["settings"].get("search")
    if search is None:
        return len(runs)
    key = ("dataset", "options", "label", "test_environments", "trial")
    return int(search["draws"]) * len({str([run[k] for k in key]) for run in runs})


def _table(heading: str, specs: dict[str, RunSpec], now: dict[str, RunStatus]) -> Table:
    rows: dict[tuple[str, str], Counter[str]] = {}
    for run_id, spec in specs.items():
        rows.setdefault((spec.dataset, spec.label), Counter())[now[run_id].state] += 1
    totals = Counter(s.state for s in now.values())
    columns = [s for s in State if totals[s] or s is State.DONE]
    table = Table("dataset", "algorithm", *columns, title=heading)
    for (dataset, label), counts in rows.items():
        table.add_row(dataset, label, *(str(counts[s] or "") for s in columns))
    table.add_section()
    table.add_row("all", "", *(str(totals[s] or "") for s in columns))
    return table


def _line(results: Results, run_id: str, spec: RunSpec, state: RunStatus) -> str:
    """A run, what there is to say about it and, if it went wrong, the end of its log."""
    run = results.run(run_id)
    text = f"{state.state}: {title(spec)}: {state.note}"
    tail: list[str] = []
    if state.state is State.FAILED:
        failure = run.failure() or {}
        text += f"{failure.get('error')} ({run.path / 'failed.json'})"
        tail = str(failure.get("traceback", "")).splitlines()[-TAIL:]
    if state.log is not None and state.state.can_be_retried:
        text += f"\n    log: {state.log}"
        if state.state is State.LOST:
            tail = state.log.read_text(errors="replace").splitlines()[-TAIL:]
    return "\n      ".join([text, *tail])


def show_plan(made: "Plan", console: Console) -> None:
    """Print how many runs of what a sweep holds, and what is impossible and why."""
    table = Table("dataset", "test environments", "algorithm", "runs", "draws", "trials", "steps")
    rows: dict[tuple[str, str, str], list[RunSpec]] = {}
    for spec in made.runs.values():
        key = (spec.dataset, ", ".join(spec.test_environments), spec.label)
        rows.setdefault(key, []).append(spec)
    for key, specs in rows.items():
        draws, trials = {s.draw for s in specs}, {s.trial for s in specs}
        numbers = (len(specs), len(draws), len(trials), specs[0].steps)
        told = [str(n) for n in numbers]
        if made.sweep.search is not None:
            total = made.sweep.search.draws(len(trials))
            told[:2] = [str(total * len(trials)), f"{total} by {made.sweep.search.method.upper()}"]
        table.add_row(*key, *told)
    console.print(table)
    console.print(f"{made.total} runs in sweep '{made.sweep.name}'.", highlight=False)
    for cell in made.impossible:
        console.print(
            f"impossible: {cell.algorithm} on {cell.dataset} "
            f"(test {', '.join(cell.test_environments)}): {cell.reason}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
