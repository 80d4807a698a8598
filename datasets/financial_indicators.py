"""Financial indicators of listed companies: does the value of a company rise in the next year?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from oodbench.columns import Columns
from oodbench.datasets import Environment, FileDataset, Metadata, register
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.tasks import Task

SOURCE = (
    "https://raw.githubusercontent.com/capybaralet/REx_code_release/"
    "47dfb3a2f93a195389a9c933a66482eee455c720/finance_experiments/data"
)
"""Where arXiv:2003.00688's authors publish the files, which needs no login."""
INSTEAD = f"the paper's files are at {SOURCE}"
ROWS = {"2014": 3788, "2015": 4112, "2016": 4783, "2017": 4958, "2018": 4390}
"""The companies of each year."""
INDICATORS = (
    "Revenue",
    "Gross Profit",
    "SG&A Expense",
    "Operating Expenses",
    "Operating Income",
    "Earnings before Tax",
    "Net Income",
    "Net Income Com",
    "EPS",
    "EPS Diluted",
    "Weighted Average Shs Out",
    "Weighted Average Shs Out (Dil)",
    "Gross Margin",
    "EBIT Margin",
    "EBITDA",
    "EBIT",
    "Consolidated Income",
    "Earnings Before Tax Margin",
    "Net Profit Margin",
    "Cash and cash equivalents",
    "Property, Plant & Equipment Net",
    "Total assets",
    "Total liabilities",
    "Retained earnings (deficit)",
    "Total shareholders equity",
    "Depreciation & Amortization",
    "Operating Cash Flow",
    "Capital Expenditure",
    "Investing Cash flow",
    "Financing Cash Flow",
    "Net cash flow / Change in cash",
    "Free Cash Flow",
    "assetTurnover",
    "Income Quality",
    "Tangible Asset Value",
    "Gross Profit Growth",
    "Operating Income Growth",
)
"""The columns that the files of all years share, without the sector."""
TARGET = "Class"


@register(
    "FinancialIndicators",
    Metadata(
        paper="arXiv:2003.00688",
        licence="its authors' (Kaggle's cnic92/200-financial-indicators-of-us-stocks-20142018)",
        family="tabular",
        shift="the year",
        network="MLP",
        steps=9001,
        checksums={
            "financial_indicators/2014_clean.csv": "90807e907441d3fd9915a5e57e4070c4",
            "financial_indicators/2015_clean.csv": "f81144afdea4a89c2b5b0e30cbe42575",
            "financial_indicators/2016_clean.csv": "099aa5559bd9199cd867d92765622678",
            "financial_indicators/2017_clean.csv": "a0992d25fea431ff8af21932294a98bb",
            "financial_indicators/2018_clean.csv": "bec8d2e9dccffb04712ed77f76f022fe",
        },
    ),
)
class FinancialIndicators(FileDataset):
    """Will a company's value rise next year? Environments are the years from 2014 to 2018.

    Inputs are the 37 indicators of several thousand companies that the files of all years have, whitened:
    centred and divided by their standard deviation (thesis, section 11.1.10.3). The files are the paper's.
    Its authors took version 1 of a dataset on Kaggle, whose download needs a login, filled gaps, and
    clipped values at the 3rd and 97th percentiles; the result is in their code's repository. Most companies
    appear in several years. The last year is the test environment, the one before it is for validation; the
    sweep `financial-indicators` has all 20 choices of both.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """The defaults are from the paper's text, the other values from its code and table."""

        whitening: str = hparam("training", options=("training", "year"))
        """The examples whose moments whiten the inputs: a run's training examples, or those of each year.
        With the latter, a run knows the inputs of the test year."""
        balanced: bool = hparam(False)
        """Whether a year keeps equally many companies of both classes, the first in its file."""

    options: Options
    environments = tuple(ROWS)
    validation_environments = ("2017",)
    test_environments = ("2018",)
    columns = Columns(INDICATORS)
    input_shape = (len(INDICATORS),)
    task = Task("binary")
    classes = ("falls", "rises")

    def load(self, trial: int) -> dict[str, Environment]:
        """The years, the same in every trial; raises UserError for missing or other files."""
        return dict(zip(ROWS, map(self._year, self.checksums, ROWS.values()), strict=True))

    def _year(self, path: str, rows: int) -> Environment:
        x, y = _read(self.file(path), rows)
        if self.options.balanced:
            ranks = torch.where(y == 1, y.cumsum(0), (1 - y).cumsum(0))
            kept = ranks <= torch.minimum(y.sum(), (1 - y).sum())
            x, y = x[kept], y[kept]
        if self.options.whitening == "year":
            x = self.columns.fitted(x)(x)
        return Environment(x, y)

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """The map that whitens inputs by the training examples, unless each year was whitened by itself."""
        if self.options.whitening == "year":
            return super().fit(training)
        return self.columns.fitted(torch.cat([e.x for e in training.values()]))

    def check(self) -> None:
        """Raise UserError for a file that is missing, has other columns or rows, or is damaged."""
        self.load(0)
        super().check()

    def download(self, data_dir: Path) -> None:
        """Fetch what is missing or damaged from the repository of the paper's code."""
        from oodbench.data import copies  # which brings pyarrow

        copies.fetch(self, SOURCE, data_dir)


@lru_cache(maxsize=len(ROWS))
def _read(file: Path, rows: int) -> tuple[Tensor, Tensor]:
    """The indicators (N, 37), float64, and classes (N,) of a year's file with N = `rows`."""
    import pandas as pd  # runs of other datasets start faster without it

    wanted = (*INDICATORS, TARGET)
    try:
        table = pd.read_csv(
            file, usecols=lambda name: name in wanted, dtype="float64", float_precision="round_trip"
        )
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} is not a table of financial indicators: {reason}") from error
    if lacking := [name for name in wanted if name not in table]:
        raise UserError(f"{file} lacks the columns {', '.join(lacking)}; {INSTEAD}")
    if len(table) != rows:
        raise UserError(f"{file} has {len(table)} companies, not {rows}; {INSTEAD}")
    return (
        torch.from_numpy(table[[*INDICATORS]].to_numpy()),
        torch.from_numpy(table[TARGET].to_numpy("float32")),
    )
