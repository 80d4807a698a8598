"""Financial indicators, on files in the form of the paper's, with fewer companies."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from oodbench.datasets.financial_indicators import INDICATORS

from oodbench.datasets import datasets, make, md5, require_files
from oodbench.datasets import financial_indicators as module
from oodbench.errors import MissingError, UserError
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.plan import make_plan

SIZES = {"2014": 40, "2015": 36, "2016": 44, "2017": 48, "2018": 42}
Write = Callable[[str, pd.DataFrame], Path]


def table(year: str) -> pd.DataFrame:
    """Indicators whose means differ by year, in another order, with columns of the year alone."""
    rng = np.random.default_rng(int(year))
    count = SIZES[year]
    columns = {name: rng.normal(int(year), 1 + i, count) for i, name in enumerate(INDICATORS)}
    own = {"Sector": ["Energy"] * count, "Class": (np.arange(count) % 4 > 0).astype(int)}
    price = {f"{int(year) + 1} PRICE VAR [%]": rng.normal(size=count)}
    order = {name: columns[name] for name in rng.permutation(INDICATORS)}
    index = pd.Index([f"C{i}" for i in range(count)])
    return pd.DataFrame({f"only {year}": 1.0, **order, **own, **price}, index)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a year's file, whose checksum then counts as the right one."""
    cls = datasets.get("FinancialIndicators")
    checksums = dict(cls.metadata.checksums)
    monkeypatch.setattr(module, "ROWS", SIZES)
    (tmp_path / "financial_indicators").mkdir()

    def written(year: str, values: pd.DataFrame) -> Path:
        path = f"financial_indicators/{year}_clean.csv"
        values.to_csv(tmp_path / path)
        checksums[path] = md5(tmp_path / path)
        monkeypatch.setattr(cls, "metadata", replace(cls.metadata, checksums=dict(checksums)))
        module._read.cache_clear()
        return tmp_path / path

    for year in SIZES:
        written(year, table(year))
    return written


def test_a_year_has_the_shared_indicators_in_one_order(write: Write, tmp_path: Path) -> None:
    dataset = make("FinancialIndicators", {}, tmp_path)
    dataset.check()
    found = dataset.load(0)
    assert tuple(found) == tuple(SIZES) and dataset.input_shape == (37,)
    for year, environment in found.items():
        wanted = table(year)
        assert torch.equal(environment.x, torch.tensor(wanted[[*INDICATORS]].to_numpy()))
        assert environment.y.tolist() == wanted["Class"].tolist()
        assert torch.equal(environment.x, dataset.load(1)[year].x)


def test_inputs_are_whitened_by_what_a_run_trains_on(write: Write, tmp_path: Path) -> None:
    dataset = make("FinancialIndicators", {}, tmp_path)
    found = dataset.load(0)
    whiten = dataset.fit({year: found[year] for year in ("2014", "2015", "2016")})
    x = whiten(torch.cat([found[year].x for year in ("2014", "2015", "2016")]))
    assert x.dtype == torch.float32
    torch.testing.assert_close(x.mean(0), torch.zeros(37), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(37), atol=1e-4, rtol=0)
    assert whiten(found["2018"].x)[:, 0].mean() > 1  # later years have larger values


def test_the_code_whitens_each_year_by_itself(write: Write, tmp_path: Path) -> None:
    dataset = make("FinancialIndicators", {"whitening": "year"}, tmp_path)
    found = dataset.load(0)
    for environment in found.values():
        torch.testing.assert_close(environment.x.mean(0), torch.zeros(37), atol=1e-4, rtol=0)
        assert environment.x.std(0, correction=0).tolist() == pytest.approx([1] * 37, abs=1e-4)
    assert torch.equal(dataset.fit(found)(found["2014"].x), found["2014"].x)


def test_balanced_years_have_the_first_of_each_class(write: Write, tmp_path: Path) -> None:
    found = make("FinancialIndicators", {"balanced": True}, tmp_path).load(0)
    for year, environment in found.items():
        of_file = table(year)
        count = int((of_file["Class"] == 0).sum())
        kept = of_file.groupby("Class").head(count)[[*INDICATORS]].to_numpy()
        assert environment.y.mean() == 0.5 and len(environment.y) == 2 * count
        assert torch.equal(environment.x, torch.tensor(kept))


def refusal(tmp_path: Path) -> str:
    with pytest.raises(UserError) as error:
        make("FinancialIndicators", {}, tmp_path).check()
    return str(error.value)


def test_other_files_are_told_by_columns_rows_and_checksum(write: Write, tmp_path: Path) -> None:
    whole = table("2016")
    file = write("2016", whole.drop(columns=["EPS", "Total assets"]))
    assert f"{file} lacks the columns EPS, Total assets; the paper's" in refusal(tmp_path)
    write("2016", whole.rename(columns={"Class": "class"}))
    assert "lacks the columns Class;" in refusal(tmp_path)
    write("2016", whole[:30])
    assert f"{file} has 30 companies, not 44;" in refusal(tmp_path)
    write("2016", whole.assign(EPS="n/k"))
    assert f"{file} is not a table of financial indicators: " in refusal(tmp_path)
    write("2016", whole)
    file.write_text(file.read_text().replace("Energy", "Utility", 1))
    assert f"{file} is damaged (its md5 is not " in refusal(tmp_path)
    file.unlink()
    with pytest.raises(MissingError, match=r"2016_clean.csv is missing.*--data-dir") as error:
        make("FinancialIndicators", {}, tmp_path).check()
    command = f"python -m oodbench.data download FinancialIndicators --data-dir {tmp_path}"
    assert error.value.command == command


def test_files_are_fetched_from_the_paper_s_repository(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = (tmp_path / "financial_indicators").rename(tmp_path / "data")
    monkeypatch.setattr(module, "SOURCE", str(mirror))
    dataset = require_files(make("FinancialIndicators", {}, tmp_path / "here"))
    dataset.download(tmp_path / "here")
    dataset.check()


def test_the_sweep_has_all_choices_of_years(write: Write, tmp_path: Path) -> None:
    runs = make_plan(read_sweep(find_sweep("financial-indicators")), tmp_path).runs.values()
    assert len(runs) == 20 * 3 * 3
    tasks = {(r.validation_environments, r.test_environments) for r in runs}
    assert tasks == {((stop,), (test,)) for stop in SIZES for test in SIZES if stop != test}
    assert {r.network_hparams["activation"] for r in runs} == {"tanh"}
    assert {(r.steps, r.holdout, r.hparams["weight_decay"]) for r in runs} == {(9001, 0, 2e-3)}
