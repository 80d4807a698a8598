"""Results directories with made-up numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from oodbench.notes import AnyNote
from oodbench.report.tables import Block
from oodbench.report.tables.leaderboard import Leaderboard
from oodbench.report.tables.leaderboard import leaderboard as leaderboard
from oodbench.report.tables.sheet import blocks
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_spec import RunSpec, State
from oodbench.version import __version__
from tests.helpers.commands import type_in

Curve = Callable[[str, str, int], float]
"""Environment, split and step to the metric's value."""


def any_version(text: str) -> str:
    """A text without the version that trained its numbers."""
    return text.replace(f"oodbench {__version__} (", "oodbench VERSION (")


def write_run(
    results: Directory,
    spec: RunSpec,
    training: Sequence[str],
    records: Iterable[Mapping[str, object]],
    *,
    provenance: Mapping[str, object],
    metric: str = "accuracy",
    context: Mapping[str, object] = MappingProxyType({}),
    state: str = "done",
    error: str = "error",
) -> None:
    """The files of a run in a state, with these records; one that is lost has no end."""
    directory = results.run(spec.id)
    directory.path.mkdir(parents=True, exist_ok=True)
    known = {
        "dataset_label": spec.dataset,
        "training_environments": list(training),
        "metric": metric,
        "higher_is_better": metric == "accuracy",
    }
    directory.start(spec, {**known, **context}, provenance)
    for record in records:
        directory.append(record)
    if state in ("done", "diverged"):
        directory.finish(State(state), spec.steps)
    elif state == "failed":
        directory.fail(error, "trace")
    elif state == "running":
        directory.beat(spec.steps)


class Making:
    name: str
    settings: Mapping[str, object] = MappingProxyType({})

    def __init__(self, path: Path) -> None:
        self.directory = Directory(path)
        self.runs: dict[str, RunSpec] = {}
        self.planned = 0

    def write_plan(self) -> None:
        """Write the plan of the runs so far; after each run it would take most of the time."""
        if self.planned < len(self.runs):
            self.directory.write_plan(self.name, self.settings, [*self.runs.values()])
            self.planned = len(self.runs)

    @property
    def results(self) -> Directory:
        """The directory, whose plan has the runs so far."""
        self.write_plan()
        return self.directory


class Made(Making):
    """Runs with several steps; environments are `a`, `b`, `c`, those not tested train."""

    environments: tuple[str, ...] = ("a", "b", "c")
    name = "made"
    settings: Mapping[str, object] = MappingProxyType({"sweep": {"steps": 30}})

    def add(
        self,
        dataset: str,
        label: str,
        test: tuple[str, ...],
        trial: int,
        curve: Curve,
        *,
        draw: int = 0,
        steps: Sequence[int] = (10, 20, 30),
        metric: str = "accuracy",
        state: str = "done",
        seconds: float = 1.0,
        memory: float | None = None,
        error: str = "",
        hparams: dict[str, object] | None = None,
        validation: tuple[str, ...] = (),
        constant: Mapping[str, object] | None = None,
        **fields: Any,
    ) -> str:
        """Add a run in a state, with further fields of its spec; returns its id."""
        made = spec(
            *(dataset, label, test),
            draw=draw,
            trial=trial,
            hparams=hparams or {"lr": 0.1 / (1 + draw), "optimizer": "adam"},
            network="MLP",
            validation_environments=validation,
            steps=steps[-1],
            evaluate_every=steps[0],
            **fields,
        )
        self.runs[made.id] = made
        if state == "planned":
            return made.id
        training = [e for e in self.environments if e not in (*test, *validation)]
        provenance = {"oodbench": __version__, "commit": "0123456789abcdef", "host": "h"}
        records = []
        for step in steps[-1:] if made.reference else steps:
            cost = {"training_seconds": seconds * step, "waiting_seconds": seconds * step / 8}
            cost |= {"memory_mb": memory} if memory else {}
            evaluations = [
                {"environment": e, "split": s, "metric": metric, "value": v, "count": 8}
                for e in self.environments
                for s in ("in", "out")
                for v in (curve(e, s, step),)
            ]
            records.append({"step": step, "train": {}, "cost": cost, "evaluations": evaluations})
        write_run(
            self.directory,
            made,
            training,
            records,
            metric=metric,
            context={"constant": constant} if constant else {},
            provenance=provenance | {"started": f"2026-01-0{1 + trial}"},
            state=state,
            error=error,
        )
        return made.id


def flat(value: float) -> Curve:
    return lambda environment, split, step: value


def rising(value: float, test: str = "a") -> Curve:
    """Rises by a point a step; 0.2 below elsewhere on the test environment."""
    return lambda environment, split, step: value + step / 1000 - 0.2 * (environment == test)


CODE = {"oodbench": __version__, "commit": "0123456789abcdef+"}


def spec(
    dataset: str,
    label: str,
    test: str | tuple[str, ...] = "t",
    *,
    draw: int = 0,
    trial: int = 0,
    **changes: Any,
) -> RunSpec:
    """The spec of a run of `OneStep`; as a text, `test` joins its test environments by `+`."""
    values: dict[str, Any] = {"hparams": {"draw": draw}, "network": "mlp", "network_hparams": {}}
    values |= {"steps": 10, "evaluate_every": 10} | changes
    return RunSpec(
        dataset=dataset,
        algorithm=label,
        label=label,
        test_environments=tuple(test.split("+")) if isinstance(test, str) else test,
        draw=draw,
        trial=trial,
        **values,
    )


class OneStep(Making):
    """Runs that train on `train` and record one step."""

    name = "test"

    def __init__(self, path: Path, code: Mapping[str, object] = CODE) -> None:
        super().__init__(path)
        self.code = code

    def add(
        self,
        run: RunSpec,
        *tests: float,
        score: float = 0.5,
        metric: str = "accuracy",
        predictor: Mapping[str, float] = MappingProxyType({}),
        state: str = "done",
        loss: float | None = None,
    ) -> None:
        """Add a run with a value on each test environment, and with metrics of the predictor itself.

        The `loss` on the test environments is 1 - value by default.
        """
        self.runs[run.id] = run
        if state == "planned":
            return
        rows: list[tuple[str | None, str | None, str, float]] = [("train", "out", metric, score)]
        rows += [(name, "in", metric, score) for name in run.validation_environments]
        for name, value in zip(run.test_environments, tests, strict=True):
            rows += [(name, "in", metric, value), (name, "out", metric, 0.123)]
            rows += [(name, "in", "loss", 1 - value if loss is None else loss)]
        rows += [(None, None, name, value) for name, value in predictor.items()]
        keys = ("environment", "split", "metric", "value", "count")
        evaluations = [dict(zip(keys, (*row, 8), strict=True)) for row in rows]
        write_run(
            self.directory,
            run,
            ["train"],
            [{"step": run.steps, "evaluations": evaluations}],
            metric=metric,
            provenance=self.code,
            state=state,
        )

    def leaderboard(self, rule: str | None = None, metric: str | None = None) -> Leaderboard:
        return leaderboard(read_results(self.results), rule, metric)

    def blocks(self) -> list[Block]:
        return blocks(self.leaderboard())


def texts(notes: Iterable[AnyNote]) -> tuple[str, ...]:
    return tuple(map(str, notes))


def report(*arguments: object) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command of `report`."""
    result = type_in("report", *arguments)
    assert not isinstance(result.exception, Exception), repr(result.exception)
    return result.exit_code, result.stdout, result.stderr
