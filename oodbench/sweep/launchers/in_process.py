"""The launcher `debug`: the runs one after the other in this process."""

from collections import deque

from oodbench.errors import UserError
from oodbench.results.run_spec import State
from oodbench.sweep.launchers.job import Job
from oodbench.sweep.launchers.progress import Display


def debug(job: Job) -> dict[str, State]:
    """Train the runs one after the other in this process.

    Raises UserError for a run timeout, at which a process ends.
    """
    if job.settings.run_timeout is not None:
        raise UserError("the launcher debug has no processes to end: use local for --run-timeout")
    from oodbench.train.execute import execute

    states: dict[str, State] = {}
    settings = job.settings_of(0)
    queue = deque(job.ids)
    with Display(job, 1) as display:
        while queue:
            run_id = queue.popleft()
            display.started(0, [run_id])
            state, message = execute(
                job.specs[run_id],
                job.results.run(run_id),
                settings,
                lambda step: display.stepped(0, step),
            )
            display.idle(0)
            if state is State.INTERRUPTED:
                raise UserError(f"{message}; once that is mended, the same launch goes on")
            display.ended(run_id, state, message)
            states[run_id] = state
    return states
