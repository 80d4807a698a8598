"""The columns of a table: what each is read as, and which are inputs of a network."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oodbench.errors import counted

IMPUTATIONS = ("median", "mean")
"""The statistics of a run's training rows that may fill gaps in a column of numbers."""
EMPTY = "(empty)"
"""The category of an empty cell."""


@dataclass(frozen=True)
class Reading:
    """What a column is read as."""

    column: str
    kind: str
    """`number`, `category`, `date`, `index`, `left out`, or an option's name such as `target`."""
    why: str
    values: str = ""
    empty: int = 0
    unusual: bool = False
    """Whether plans mention the reading."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table's inputs, and what fills gaps in columns of numbers."""

    numbers: tuple[str, ...]
    """The columns of numbers."""
    gaps: tuple[str, ...] = ()
    """The columns among `numbers` that have empty cells."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The categories of each categorical column."""
    imputation: str = "median"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of a network's inputs, in their order."""
        empty = (f"{name} {EMPTY}" for name in self.gaps)
        each = (f"{name}: {value}" for name, values in self.categories.items() for value in values)
        return (*self.numbers, *empty, *each)

    def __str__(self) -> str:
        parts = []
        if self.numbers:
            parts.append(f"{counted(len(self.numbers), 'column')} of numbers, standardised")
        if self.gaps:
            gaps = f"gaps of {', '.join(self.gaps)} are filled by the {self.imputation}"
            parts[0] += f" ({gaps}, and an input says where)"
        if self.categories:
            parts.append(f"{counted(len(self.categories), 'column')} of categories, one-hot")
        estimated = "What is estimated comes from the examples that a run trains on."
        return f"Inputs: {len(self.inputs)}, from {' and '.join(parts)}. {estimated}"

    def encoded(self, table: Mapping[str, npt.NDArray[Any]]) -> Tensor:
        """The rows of a table as float64 (N, columns), without a NaN.

        They are the numbers, which the table gives as floats, 0 in a gap (NaN); for each column of `gaps` 1
        in a gap and 0 elsewhere; and the index of each category, which the table gives as texts.
        """
        numbers = [np.nan_to_num(table[name]) for name in self.numbers]
        gaps = [np.isnan(table[name]) for name in self.gaps]
        places = []
        for name, values in self.categories.items():
            place = {value: i for i, value in enumerate(values)}
            assert place.keys() >= set(table[name]), f"a category of {name} is not listed"
            places.append(np.array([place[text] for text in table[name]]))
        return torch.from_numpy(np.stack([*numbers, *gaps, *places], 1).astype(np.float64))

    def encoded_frame(self, frame: Any) -> Tensor:
        """`encoded` of a data frame of pandas, in which NaN or None are gaps."""
        table = {name: frame[name].to_numpy(np.float64) for name in self.numbers}
        for name in self.categories:
            table[name] = frame[name].astype(object).where(frame[name].notna(), EMPTY).to_numpy()
        return self.encoded(table)

    def fitted(self, known: Tensor) -> Callable[[Tensor], Tensor]:
        """The map from encoded rows (N, columns) to inputs (N, len(inputs)), fitted on the rows `known`.

        Gaps are filled by the imputation, numbers standardised, categories one-hot. An input that does not
        vary in `known`, such as a category that is not in it, is 0 in every row.
        """
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        ends = np.cumsum([len(self.numbers), len(self.gaps), len(self.categories)])
        numbers, gaps, categorical = np.split(np.arange(ends[-1]), ends[:-1])
        filled = SimpleImputer(strategy=self.imputation, keep_empty_features=True)
        places = [np.arange(len(values)) for values in self.categories.values()]
        one_hot = OneHotEncoder(categories=places, sparse_output=False)
        transformer = ColumnTransformer(
            [
                ("numbers", make_pipeline(filled, StandardScaler()), numbers),
                ("gaps", "passthrough", gaps),
                ("categories", one_hot, categorical),
            ],
            sparse_threshold=0,
        )
        inputs = transformer.fit_transform(self._with_gaps(known))
        varies = (inputs != inputs[0]).any(0)

        def change(x: Tensor) -> Tensor:
            inputs = transformer.transform(self._with_gaps(x))
            return torch.from_numpy(np.where(varies, inputs, 0).astype(np.float32))

        return change

    def marginals(self, x: Tensor) -> dict[str, str]:
        """The mean and deviation of each number, and the share of gaps and categories.

        `x` has encoded rows (N, columns), or rows (N, len(inputs)) whose categories are one-hot already.
        """
        rows, start = self._with_gaps(x), len(self.numbers)
        if not len(rows):
            return dict.fromkeys(self.inputs, "-")
        known = (values[~np.isnan(values)] for values in rows.T[:start])
        shown = [f"{v.mean():.4g} ± {float(f'{v.std():.2g}'):g}" if len(v) else "-" for v in known]
        shares = rows.T[start:].mean(1)
        if rows.shape[1] != len(self.inputs):
            start += len(self.gaps)
            codes = zip(rows.T[start:].astype(int), self.categories.values(), strict=True)
            counts = (np.bincount(each, minlength=len(values)) for each, values in codes)
            shares = np.concatenate([shares[: len(self.gaps)], *(c / len(rows) for c in counts)])
        shown += [f"{100 * share:.1f} %" for share in shares]
        return dict(zip(self.inputs, shown, strict=True))

    def _with_gaps(self, x: Tensor) -> npt.NDArray[np.float64]:
        rows: npt.NDArray[np.float64] = x.double().numpy().copy()
        for i, name in enumerate(self.gaps):
            rows[rows[:, len(self.numbers) + i] == 1, self.numbers.index(name)] = np.nan
        return rows
