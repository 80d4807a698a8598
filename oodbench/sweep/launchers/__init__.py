"""Launchers: classes that have the runs of a sweep trained somewhere, and report the runs' states.

A launcher is a subclass of `Launcher` that is registered under a name: by a file of this folder, by an
entry point of the group `oodbench.launchers`, or by a module that `--plugin` names. docs/guide/launchers.md
shows how to write a launcher. It gets a `Job` with the runs, the options of the launch and the results
directory.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from oodbench.errors import MOST_THREADS, UserError, plugin_hint, unknown, wrong_result
from oodbench.registry import Registry
from oodbench.results.directory import Directory
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.run_spec import RunStatus as RunStatus  # launchers return it
from oodbench.terminal import Terminal
from oodbench.train.settings import TrainSettings
from oodbench.validation import parse

launchers: Registry[type["Launcher"]] = Registry(
    "launcher", "oodbench.sweep.launchers.Launcher", "oodbench.launchers"
)


def register(name: str) -> Callable[[type["Launcher"]], type["Launcher"]]:
    """Register a launcher under the name that users give to `--launcher`."""
    return launchers.add(name)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(TrainSettings):
    """Options of a launch; the ids of runs do not depend on them."""

    out: Path
    """The results directory."""
    launcher: str = "local"
    """The name of a launcher."""
    workers: int | None = None
    """Processes at a time; None: one per core, or the resource `runs_per_gpu` on each GPU."""
    devices: str = "auto"
    """`auto`, `cpu` or a list such as `cuda:0,cuda:1`."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """The sweep's `resources`, filled in by `launch`; each launcher reads the keys that it knows."""
    dry_run: bool = False
    """Whether the launcher only shows what it would submit."""
    stale: str = ""
    """What a launch does with stale runs: `retrain` or `keep`; if empty, the launch is refused."""
    failed: bool = False
    """Whether failed and broken runs are trained again, too."""
    retries: int = 0
    """How often a run that fails is trained again in the same launch, after the others."""
    confirm: bool = False
    """Whether to ask before anything is written, if stdin is a terminal."""
    table: bool = True
    """Whether the leaderboard is printed at the end."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Some runs of a sweep, and how they are to be trained."""

    name: str
    """The name of the sweep."""
    results: Directory
    specs: dict[str, RunSpec]
    """All runs of the sweep."""
    ids: tuple[str, ...]
    """The ids of the runs to train."""
    options: LaunchOptions
    workers: int = 1
    """The number of processes at a time, which the launcher sets."""
    devices: tuple[str, ...] = ("cpu",)
    """The devices, assigned to the workers in turn."""
    gpus: tuple[str, ...] = ()
    """Names as in CUDA_VISIBLE_DEVICES, assigned in turn; a worker sees no other GPU."""

    @property
    def at_once(self) -> int:
        """The number of workers to use, at most one per run."""
        return min(self.workers, len(self.ids))

    def check_plan(self) -> None:
        """Raise UserError if the results directory or its plan has been removed since the launch began."""
        if not (self.results.path / "sweep.json").exists():
            raise UserError(
                f"{self.results.path / 'sweep.json'} has been removed, so the launch stops: move the "
                "directory back, or launch into its new path"
            )

    def settings_of(self, worker: int) -> TrainSettings:
        """The settings of a worker's runs, with its device and its share of the cores for reading data."""
        has_affinity = hasattr(os, "sched_getaffinity")
        cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        share = cores // max(1, self.at_once)
        data_dir = self.options.data_dir
        return replace(
            self.options,
            data_dir=data_dir and data_dir.absolute(),  # a plug-in may change the working directory
            device=self.devices[worker % len(self.devices)],
            loader_workers=max(1, share),
            device_share=1 / -(-self.at_once // max(1, len(self.gpus or self.devices))),
        )


class Resources(BaseModel):
    """Resources that runs request; launchers with more options subclass it."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    runs_per_gpu: int = Field(default=1, ge=1, le=MOST_THREADS)
    """Runs that share a GPU at a time."""

    @classmethod
    def of(cls, values: Mapping[str, Any], place: str = "resources") -> Self:
        """The resources of the keys that this class has; raises UserError for wrong values."""
        return parse(cls, {k: v for k, v in values.items() if k in cls.model_fields}, place)


class Launcher(ABC):
    """Base class of launchers; subclasses define at least `launch`."""

    Resources: ClassVar[type[Resources]] = Resources
    """The keys of `resources` that the launcher reads."""

    def warm_up(self) -> None:  # noqa: B027
        """Start slow preparations; called before a sweep is planned."""

    def check(self, job: Job) -> None:  # noqa: B027
        """Raise UserError for runs that cannot be trained here; called before anything is written."""

    @abstractmethod
    def launch(self, job: Job) -> dict[str, State]:
        """Have each run of `job.ids` trained, unless another process trains it.

        A failed run does not stop the others. Returns the states of runs: the final state, or `queued` if
        a cluster trains the run later.
        """

    def preview(self, job: Job, console: Terminal) -> None:
        """Print what `launch` would submit; raises UserError if the launcher submits nothing."""
        raise UserError("--dry-run shows the jobs of a cluster: add --launcher slurm")

    def states(self, results: Directory, ids: Collection[str]) -> dict[str, RunStatus]:
        """The status of those runs that the launcher has submitted to a cluster."""
        return {}

    def cancel(self, results: Directory) -> int:
        """Cancel a sweep's submitted jobs; returns how many had not ended."""
        return 0


def submitters(results: Directory, settings: Mapping[str, Any]) -> Iterator[Launcher]:
    """All launchers; raises UserError if the launcher in a plan's settings is not registered."""
    hint = plugin_hint(settings.get("plugins", ()))
    launchers.get(settings.get("launcher", "local"), str(results.path), hint)
    return (launchers.get(name)() for name in launchers)


def states(results: Directory) -> dict[str, RunStatus]:
    """The status of each planned run.

    The disk decides which runs have ended. Of other runs, the launcher that submitted them may know that
    they are queued, or cannot be running any more.
    """
    stored, submitted = results.plan(), dict[str, RunStatus]()
    wanted = list(stored["rows"]["id"].unique())
    for launcher in submitters(results, stored["settings"]):
        found: object = launcher.states(results, wanted)
        if not isinstance(found, dict):
            who = f"the launcher {type(launcher).__name__}"
            raise wrong_result("states", who, "the statuses of runs by their ids", found)
        submitted |= found
    return results.statuses(i for i in wanted if i not in submitted) | submitted


def check_resources(sweep: str, resources: Mapping[str, Any]) -> None:
    """Raise UserError for a sweep's resources with keys that no launcher reads, or with wrong values."""
    place = f"the resources of {sweep}"
    known: list[type[Resources]] = [launchers.get(name).Resources for name in launchers]
    keys = dict.fromkeys(key for cls in known for key in cls.model_fields)
    for key in resources:
        if key not in keys:
            raise unknown("resource", key, keys, place)
    for cls in known:
        cls.of(resources, place)
