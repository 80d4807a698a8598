"""Results directories with made-up numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec, State

Curve = Callable[[str, str, int], float]
"""Environment, split and step to the metric's value."""


def write_run(
    results: Results,
    spec: RunSpec,
    training: Sequence[str],
    records: Iterable[Mapping[str, object]],
    *,
    provenance: Mapping[str, object],
    metric: str = "accuracy",
    context: Mapping[str, object] = MappingProxyType({}),
    state: str = "done",
    error: str = "error",
    seconds: float = 1.0,
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
        directory.finish(State(state), spec.steps, seconds)
    elif state == "failed":
        directory.fail(error, "trace")
    elif state == "running":
        directory.beat(spec.steps)


class Made:
    """A results directory in the making; environments are `a`, `b`, `c`, those not tested train."""

    environments: tuple[str, ...] = ("a", "b", "c")

    def __init__(self, path: Path) -> None:
        self.results = Results(path)
        self.runs: dict[str, RunSpec] = {}

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
        options: dict[str, object] | None = None,
        constant: Mapping[str, object] | None = None,
        ceiling: bool = False,
        transductive: bool = False,
    ) -> str:
        """Add a run in a state; returns its id."""
        spec = RunSpec(
            dataset=dataset,
            options=options or {},
            algorithm="ERM",
            hparams=hparams or {"lr": 0.1 / (1 + draw), "optimizer": "adam"},
            label=label,
            network="MLP",
            network_hparams={},
            test_environments=test,
            validation_environments=validation,
            draw=draw,
            trial=trial,
            steps=steps[-1],
            evaluate_every=steps[0],
            ceiling=ceiling,
            transductive=transductive,
        )
        self.runs[spec.id] = spec
        self.results.write_plan("made", {"sweep": {"steps": 30}}, self.runs)
        if state == "planned":
            return spec.id
        training = [e for e in self.environments if e not in (*test, *validation)]
        provenance = {"oodbench": "0.1.0", "commit": "0123456789abcdef", "host": "h"}
        records = []
        for step in steps:
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
            self.results,
            spec,
            training,
            records,
            metric=metric,
            context={"constant": constant} if constant else {},
            provenance=provenance | {"started": f"2026-01-0{1 + trial}"},
            state=state,
            error=error,
            seconds=seconds * steps[-1],
        )
        return spec.id


def flat(value: float) -> Curve:
    """The same value everywhere."""
    return lambda environment, split, step: value


def rising(value: float, test: str = "a") -> Curve:
    """Rises by a point a step; 0.2 below elsewhere on the test environment."""
    return lambda environment, split, step: value + step / 1000 - 0.2 * (environment == test)
