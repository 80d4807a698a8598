"""The resources that runs request, from the sweep file and flags."""

import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from oodbench.errors import MOST_THREADS

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")
_GPUS = re.compile(r"(?:(?P<type>[A-Za-z]\w*):)?(?P<count>\d+)")


class Resources(BaseModel):
    """Resources that runs request; launchers with more options subclass it."""

    model_config = ConfigDict(extra="forbid")

    runs_per_gpu: int = Field(default=1, ge=1, le=MOST_THREADS)
    """Runs that share a GPU at a time."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The resources among `values` that this class knows."""
        return cls.model_validate({k: v for k, v in values.items() if k in cls.model_fields})


class SlurmResources(Resources):
    """The resources of one Slurm job, and how runs are put into jobs."""

    partition: str | None = None
    """The partition; the cluster's default if not given."""
    account: str | None = None
    qos: str | None = None
    gpus: str = "0"
    """GPUs of a job: a number, or type:number."""
    cpus: int = Field(default=1, ge=1)
    """CPU cores of a job."""
    memory: str | None = None
    """Memory of a job, such as 8G."""
    time: str = "1:00:00"
    """Time limit of a job: minutes, H:M:S or D-H:M:S."""
    constraint: str | None = None
    """Features that the node must have."""
    parallel: int | None = Field(default=None, ge=1)
    """Jobs of an array that run at a time."""
    runs_per_job: int | None = Field(default=None, ge=1)
    """Runs that share a job; None is as many as take about ten minutes."""
    slurm: dict[str, Any] = Field(default={})
    """Any other option of sbatch, and `setup` and `signal_delay_s` of submitit."""

    @field_validator("gpus", "memory", "time", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("time")
    @classmethod
    def _check_time(cls, value: str) -> str:
        if not minutes(value):
            raise ValueError("must be minutes, H:M:S or D-H:M:S")
        return value

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, value: str) -> str:
        if not _GPUS.fullmatch(value):
            raise ValueError("must be a number of GPUs or type:number")
        return value

    @property
    def gpu_count(self) -> int:
        """The number of GPUs of a job."""
        return int(self.gpus.rpartition(":")[2])

    def at_a_time(self, threads: int) -> int:
        """Runs that a job trains at once: `runs_per_gpu` per GPU; without GPUs, one per `threads` cores."""
        if self.gpu_count:
            return self.gpu_count * self.runs_per_gpu
        return max(1, self.cpus // threads)


def minutes(text: str) -> float | None:
    """The minutes of a time as Slurm spells it: `90`, `30:00`, `1:30:00`, `2-12`, `2-12:30:00`.

    None for `UNLIMITED`, `infinite` and text that is not a time.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    numbers = [int(n) for n in match["rest"].split(":")]
    if match["days"] is None and len(numbers) < 3:  # minutes first
        numbers = [0, *numbers]
    hours, mins, seconds = numbers + [0] * (3 - len(numbers))
    return int(match["days"] or 0) * 1440 + hours * 60 + mins + seconds / 60
