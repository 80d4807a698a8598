"""Shows the status of a sweep: counts of runs, where runs are trained, why they failed, their logs."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from oodbench.errors import counted, some
from oodbench.results.directory import Directory
from oodbench.results.ended import ended
from oodbench.results.parquet import specs_of
from oodbench.results.run_spec import RunSpec, RunStatus, State
from oodbench.results.stale import stale_in
from oodbench.sweep.launchers import states
from oodbench.sweep.launchers.progress import progress, title
from oodbench.sweep.plan import coordinates
from oodbench.terminal import Terminal

PAUSED = "paused"
LINES = 20
"""The most runs of a state that are listed."""
TAIL = 3
"""The number of a log's last lines that are shown."""
REFRESH_SECONDS = 2.0
"""Seconds between two refreshes of `--watch`."""


def as_json(results: Directory) -> str:
    """The state of every run, and the number of runs by state, as JSON; `log` is the last job's output."""
    stored, now, runs = results.plan(), states(results), []
    for spec in specs_of(stored["rows"]):
        status = now[spec.id]
        log = None if status.log is None else str(status.log)
        values = {"state": _state(status), "note": status.note, "log": log}
        runs.append({"id": spec.id, **coordinates(spec), **values})
    counts = Counter(str(run["state"]) for run in runs)
    return json.dumps({"name": stored["name"], "counts": counts, "runs": runs}, indent=1)


def watch(results: Directory, console: Terminal) -> None:
    """Show the status and a bar, refreshed until all queued and running runs have stopped."""
    total = results.rows()["id"].nunique()
    bar = progress(console, total)
    task = bar.add_task("runs", total=total)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            now = states(results)
            bar.update(task, completed=sum(s.state.at_rest for s in now.values()))
            live.update(Group(render(results, now, console), bar), refresh=True)
            if not any(s.state in (State.QUEUED, State.RUNNING) for s in now.values()):
                return
            time.sleep(REFRESH_SECONDS)


def render(results: Directory, now: dict[str, RunStatus], console: Terminal) -> RenderableType:
    """The counts of each dataset, then a line for each run that is under way or went wrong."""
    stored = results.plan()
    rows = specs_of(stored["rows"])
    specs = {spec.id: spec for spec in reversed(rows)}
    texts = []
    for state in (State.QUEUED, State.RUNNING, State.FAILED, State.BROKEN, State.LOST, PAUSED):
        ids = [i for i in specs if _state(now[i]) == state]
        if state is State.QUEUED:  # a line for all runs that wait for the same reason
            counts = Counter(now[i].note for i in ids)
            lines = [f"queued: {counted(n, 'run')}: {note}" for note, n in counts.items()]
        elif state is State.FAILED:
            lines = [*_failures(results, {i: specs[i] for i in ids}, now)]
        else:
            lines = [_line(results, i, specs[i], now[i]) for i in ids[:LINES]]
            lines += ids[LINES:]
        texts += lines[:LINES]
        if len(lines) > LINES:
            texts.append(f"{state}: and {len(lines) - LINES} more")
    if any(s.state.can_be_retried for s in now.values()):
        texts.append(
            "`launch` resumes paused and lost runs; with --failed it trains failed and broken runs, too."
        )
    texts += [
        f"{'Stale: ' if reason.is_known else ''}{reason.sentence}."
        for reason in stale_in(results, specs, now)
    ]
    texts += [f"{sentence}." for sentence in ended(results.path).wrong]
    if weights := [w for of in results.kept_weights(specs).values() for w in of.values()]:
        size = sum(path.stat().st_size for path in weights)
        texts.append(f"Kept weights: {counted(len(weights), 'file')}, {size / 2**20:.1f} MB.")
    heading = console.render_str(f"{stored['name']} in {results.path}")
    body = [console.render_str(console.wrapped(text)) for text in texts]
    return Group(heading, Text(), *_counts(rows, now, console), *body)


def _counts(
    specs: Sequence[RunSpec], now: Mapping[str, RunStatus], console: Terminal
) -> Iterator[RenderableType]:
    totals = Counter(map(_state, now.values()))
    columns = [s for s in (*State, PAUSED) if totals[s] or s is State.DONE]
    rows: dict[str, dict[str, Counter[str]]] = {}
    for spec in specs:
        row = rows.setdefault(spec.dataset_name, {}).setdefault(spec.label, Counter())
        row[_state(now[spec.id])] += 1
    for dataset, counts in rows.items():
        yield console.render_str(dataset)
        texts = [[label, *(str(n[s] or "") for s in columns)] for label, n in counts.items()]
        yield console.tables(["algorithm", *columns], texts)
    yield console.tables(["all runs", *columns], [["", *(str(totals[s]) for s in columns)]])


def _state(status: RunStatus) -> str:
    # a lost run without a known error can go on
    return PAUSED if status.state is State.LOST and not status.note else status.state


def _failures(
    results: Directory, failed: Mapping[str, RunSpec], now: Mapping[str, RunStatus]
) -> Iterator[str]:
    alike: dict[tuple[str, str, str], list[str]] = {}
    for i, spec in failed.items():
        alike.setdefault((spec.label, spec.dataset_name, now[i].note), []).append(i)
    for (*_, note), ids in alike.items():
        file = results.run(ids[0]).path / "failed.json"
        line = f"failed: {some([title(failed[i]) for i in ids], 1)}: {note} ({file})"
        yield _with_log(line, now[ids[0]])


def _line(results: Directory, run_id: str, spec: RunSpec, state: RunStatus) -> str:
    if _state(state) == PAUSED:
        run = results.run(run_id)
        steps = [0, *(int(record["step"]) for record in run.records())]
        if (beat := run.heartbeat()) is not None:
            steps.append(int(beat.step))
        return f"paused at step {max(steps)}: {title(spec)}"
    return _with_log(f"{state.state}: {title(spec)}: {state.note}", state)


def _with_log(text: str, status: RunStatus) -> str:
    if status.log is None or not status.state.can_be_retried:
        return text
    lines = [f"{text}\n    log: {status.log}"]
    if status.state is State.LOST:
        lines += status.log.read_text(errors="replace").splitlines()[-TAIL:]
    return "\n      ".join(lines)
