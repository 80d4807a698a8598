"""A user's texts, in a column of a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oodbench.columns import Reading
from oodbench.data.encodings import hashed_words, word_pieces
from oodbench.datasets import Environment, Metadata, register
from oodbench.hparams import hparam

from .listed import Listed

if TYPE_CHECKING:
    import pandas as pd


@register(
    "Texts",
    Metadata(
        paper="none",
        licence="the file's",
        family="text",
        shift="the file's",
        network="TextModel",
        steps=2000,
    ),
)
class Texts(Listed):
    """Texts as the ids of a tokenizer's pieces or, without one, of hashed words for a small network."""

    @dataclass(frozen=True, kw_only=True)
    class Options(Listed.Options):
        """The file, what its columns mean, and how texts become numbers."""

        text: str = hparam("text")
        """The column of texts."""
        model: str = hparam("")
        """A folder with the tokenizer and the weights of any model of the package transformers that
        `AutoModel` loads; none: hashed words and the network `TextCNN`."""
        size: int = hparam(128, low=1)
        """The number of pieces or words of a text that are read."""

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.texts = self.rows.texts(options.text)
        self._roles[options.text] = Reading(options.text, "text", "the option `text`")
        self.input_shape = (options.size,)

    @property
    def network(self) -> str:
        """`TextModel` if there is a model, otherwise the small `TextCNN`."""
        return "TextModel" if self.options.model else "TextCNN"

    @property
    def network_hparams(self) -> dict[str, object]:
        """The folder of the model's weights."""
        return {"weights": self.options.model} if self.options.model else {}

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments in the order of the file, the same in every trial."""
        x = self._encoded(self.texts)
        return self.examples({name: x[places] for name, places in self.places.items()})

    def read(self, new: "pd.DataFrame | str | PathLike[str]") -> Tensor:
        """The ids (N, size) of new texts, in a data frame or a file with the column of texts."""
        return self._encoded(self.further(new).texts(self.options.text))

    def _encoded(self, texts: Sequence[str]) -> Tensor:
        size, model = self.options.size, self.options.model
        ids = word_pieces(size, model) if model else partial(hashed_words, length=size)
        return torch.stack([ids(text) for text in texts])
