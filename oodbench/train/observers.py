"""Observers, which follow runs in training, among them Trackio, wandb, MLflow and TensorBoard.

An observer's package is imported when it is used.
"""

import getpass
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock

from oodbench.errors import MissingError, described
from oodbench.registry import Registry
from oodbench.results.run_spec import RunSpec, State
from oodbench.train.process import kept_generators

observers: Registry[type["Observer"]] = Registry(
    "observer", "oodbench.train.observers.Observer", "oodbench.observers"
)
PROJECT = "oodbench"  # MLflow calls it an experiment


def register(name: str) -> Callable[[type["Observer"]], type["Observer"]]:
    """Register an observer under its name for `--observe`."""
    return observers.add(name)


class Observer:
    """Base class of observers, with one instance for each run; subclasses override the methods they need.

    An exception becomes a warning, and ends the observation of the run.
    """

    package: ClassVar[str] = ""
    """The package that the observer imports, if any; the extra of oodbench has the observer's name."""

    def started(self, spec: RunSpec, step: int) -> None:
        """Called when the run begins; `step` is above 0 if it resumes from a checkpoint.

        A MissingError, such as for an account, is reported once and ends the observation of all runs.
        """

    def evaluated(self, record: Mapping[str, Any]) -> None:
        """Called with each line of metrics.jsonl, see the guide's page on results."""

    def ended(self, state: State, message: str) -> None:
        """Called when the run ends, with a sentence if it failed."""


_useless: set[type[Observer]] = set()  # those with a MissingError in this process


class Observers:
    """The observers of a run, which can neither change it nor make it fail."""

    def __init__(self, names: Iterable[str], spec: RunSpec) -> None:
        """Raise UserError for an unknown observer."""
        self._run = f"{spec.row} ({spec.id})"
        self._makers = {name: observers.get(name) for name in names}
        self._made: dict[str, Observer] = {}

    def tell(self, event: str, *about: object) -> None:
        """Call the method `event` of every observer that has not failed."""
        if not self._makers:
            return
        with kept_generators():  # observers may draw random numbers
            for name, maker in list(self._makers.items()):
                if maker in _useless:
                    continue
                try:
                    if name not in self._made:
                        self._made[name] = maker()
                    getattr(self._made[name], event)(*about)
                except MissingError as error:
                    _useless.add(maker)
                    warnings.warn(f"{error}; the runs go on without it", stacklevel=2)
                except Exception as error:
                    del self._makers[name]
                    what = described(error)
                    warnings.warn(f"{self._run} goes on without {name}: {what}", stacklevel=2)


def curves(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of metrics.jsonl by name, such as `accuracy/red/out` and `train/loss`."""
    values = {f"train/{name}": value for name, value in record["train"].items()}
    for e in record["evaluations"]:
        values["/".join(filter(None, (e["metric"], e["environment"], e["split"])))] = e["value"]
    return values


def _config(spec: RunSpec) -> dict[str, Any]:
    shown = {"method": spec.label, "dataset": spec.dataset_name, "draw": spec.draw}
    tests = "+".join(spec.test_environments)
    return {**shown, "trial": spec.trial, "test": tests, **spec.hparams}


@register("trackio")
class _Trackio(Observer):
    package = "trackio"
    run: Any

    def started(self, spec: RunSpec, step: int) -> None:
        import trackio

        again = "allow" if step else "never"
        self.run = trackio.init(PROJECT, spec.id, config=_config(spec), resume=again, embed=False)

    def evaluated(self, record: Mapping[str, Any]) -> None:
        self.run.log(curves(record), step=record["step"])

    def ended(self, state: State, message: str) -> None:
        self.run.finish()


@register("wandb")
class _Wandb(_Trackio):
    package = "wandb"

    def started(self, spec: RunSpec, step: int) -> None:
        import wandb

        run: dict[str, Any] = {"project": PROJECT, "id": spec.id, "config": _config(spec)}
        try:
            self.run = wandb.init(**run, resume="allow", reinit="create_new")
        except wandb.errors.UsageError as error:
            ways = "`wandb login`, or WANDB_MODE=offline without an account"
            raise MissingError(f"wandb: {error} ({ways})", "wandb login") from error

    def ended(self, state: State, message: str) -> None:
        self.run.finish(exit_code=0 if state.complete else 1)


@register("mlflow")
class _MLflow(Observer):
    package = "mlflow"

    def started(self, spec: RunSpec, step: int) -> None:
        import mlflow

        # two processes cannot make the tables of a new store at the same time
        lock = Path(tempfile.gettempdir()) / f"oodbench-mlflow-{getpass.getuser()}.lock"
        try:
            with FileLock(lock):
                self.client = mlflow.MlflowClient()
                experiment = mlflow.set_experiment(PROJECT).experiment_id
        except mlflow.MlflowException as error:
            if error.get_http_status_code() != 401:
                raise
            command = "export MLFLOW_TRACKING_USERNAME=... MLFLOW_TRACKING_PASSWORD=..."
            store = mlflow.get_tracking_uri()
            raise MissingError(f"{store} asks for an account: `{command}`", command) from error
        begun = step and self.client.search_runs([experiment], f"run_name = '{spec.id}'")
        run = begun[0] if begun else self.client.create_run(experiment, run_name=spec.id)
        self.id = run.info.run_id
        for name, value in _config(spec).items():
            self.client.log_param(self.id, name, value)

    def evaluated(self, record: Mapping[str, Any]) -> None:
        for name, value in curves(record).items():
            self.client.log_metric(self.id, name, value, step=record["step"])

    def ended(self, state: State, message: str) -> None:
        self.client.set_terminated(self.id, "FINISHED" if state.complete else "FAILED")


@register("tensorboard")
class _TensorBoard(Observer):
    package = "tensorboard"

    def started(self, spec: RunSpec, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purged = step + 1 if step else None  # what a killed run wrote after its checkpoint
        self.writer = SummaryWriter(f"events/{spec.label}/{spec.id}", purge_step=purged)

    def evaluated(self, record: Mapping[str, Any]) -> None:
        for name, value in curves(record).items():
            self.writer.add_scalar(name, value, record["step"])

    def ended(self, state: State, message: str) -> None:
        self.writer.close()
