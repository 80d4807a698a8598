"""Flights: real flights by the months of a year, with nothing of how they went among the inputs."""

from typing import Any

import pandas as pd
import pytest
import torch
from oodbench.datasets.flights import CHOICES, CLIP, MONTHS, NUMBERS

from oodbench.datasets import make, require_files

COUNT = len(NUMBERS)


@pytest.mark.slow
def test_every_environment_has_flights_of_its_months_and_inputs_without_gaps() -> None:
    dataset: Any = make("Flights", {})
    found = dataset.load(0)
    assert tuple(found) == dataset.environments
    for name, environment in found.items():
        days = pd.Timestamp("2012-12-31") + pd.to_timedelta(environment.clusters.numpy(), "D")
        assert set(days.month) == set(MONTHS[name])
        assert environment.x.shape == (2000, *dataset.input_shape)
        assert environment.x.isfinite().all()
        choices = environment.x[:, COUNT:]
        assert set(choices.unique().tolist()) == {0, 1}
        for part in choices.split([len(values) for values in CHOICES.values()], 1):
            assert (part.sum(1) == 1).all()
        assert 0.2 < environment.y.mean() < 0.6


def test_rows_are_those_of_the_package() -> None:
    dataset = make("Flights", {"num_examples": 50})
    files = require_files(dataset)
    table = pd.read_csv(files.file("flights.csv.zip"))
    weather = pd.read_csv(files.file("weather.csv")).set_index(["origin", "time_hour"])
    dates = pd.to_datetime(table[["year", "month", "day"]])
    by_day = table.groupby(dates.dt.dayofyear)
    environment: Any = dataset.load(2)["Nov-Dec"]
    airports, airlines = CHOICES["origin"], CHOICES["carrier"]
    rows = zip(environment.x.tolist(), environment.y, environment.clusters.tolist(), strict=True)
    for (departure, duration, distance, *rest), late, day in rows:
        known, choices = rest[: COUNT - 3], rest[COUNT - 3 :]
        weekday, origin, carrier = choices[:7], choices[7:10], choices[10:]
        time = int(departure) // 60 * 100 + int(departure) % 60
        at = by_day.get_group(day)
        at = at[(at["sched_dep_time"] == time) & (at["distance"] == distance)]
        at = at[at["origin"] == airports[origin.index(1)]]
        at = at[at["carrier"] == airlines[carrier.index(1)]]
        assert dates[at.index[0]].dayofweek == weekday.index(1)
        observed = weather.loc[(at["origin"].iloc[0], at["time_hour"].iloc[0])]
        assert known == pytest.approx(observed[[*NUMBERS[3:]]].astype(float).tolist())
        arrival = at["sched_arr_time"] // 100 * 60 + at["sched_arr_time"] % 100
        same = (arrival - departure) % 1440 == duration
        assert bool(late) in (at["arr_delay"][same] > 0).tolist()


def test_numbers_are_standardised_by_what_is_trained_on_and_clipped() -> None:
    dataset = make("Flights", {})
    found = dataset.load(0)
    training = {"Jan-Feb": found["Jan-Feb"], "Sep-Oct": found["Sep-Oct"]}
    fitted = dataset.fit(training)
    x = torch.cat([e.x for e in training.values()])
    numbers = fitted(x)[:, :COUNT]
    moderate = (numbers.abs() < CLIP).all(0)
    assert moderate.sum() > COUNT / 2 and not moderate.all()
    assert numbers.mean(0)[moderate].abs().max() < 1e-4
    assert (numbers.std(0, correction=0)[moderate] - 1).abs().max() < 1e-4
    assert numbers.abs().max() == CLIP
    assert fitted(found["Jun-Jul"].x)[:, NUMBERS.index("temp")].mean() > 1
    assert torch.equal(fitted(x)[:, COUNT:], x[:, COUNT:])
    assert fitted(x[:1]).shape == (1, *dataset.input_shape)
