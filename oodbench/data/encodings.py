"""Encodings in fixed shapes of the images, texts and molecules that the package `wilds` returns."""

import importlib
import re
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oodbench.data.pictures.pixels import rgb
from oodbench.errors import MissingError, UserError, missing_package

VOCABULARY = 2**15
"""The number of ids of hashed words; 0 is padding."""
ATOM, BOND = 9, 5
"""The number of values of an atom, all categories, and of a bond, two atoms and three categories."""
ROW = ATOM + 3 * BOND
"""The number of values in a row, which has one atom and three bonds."""
DISTILBERT = "distilbert-base-uncased"
"""The name on Hugging Face of the weights and tokenizer of arXiv:1910.01108."""
CODEGPT = "microsoft/CodeGPT-small-py"
"""The name on Hugging Face of the weights and tokenizer for Python of arXiv:2102.04664."""


def image(picture: Any, size: int, *, margin: float, crop: bool) -> Tensor:
    """A Pillow image as bytes (3, size, size).

    With `crop`, only the largest central square is used. The image is resized to `margin` times `size`,
    and its centre is taken.
    """
    from torchvision.transforms import functional

    shown, larger = rgb(picture), int(size * margin)
    if crop:
        shown = functional.center_crop(shown, [min(shown.size)])
    if shown.size != (larger, larger):
        shown = functional.resize(shown, [larger, larger])
    pixels: Tensor = functional.pil_to_tensor(functional.center_crop(shown, [size]))
    return pixels


def molecule(graph: Any, size: int) -> Tensor:
    """A graph of torch_geometric as integers (size, ROW).

    Row i holds atom i and the bonds 3i to 3i + 2; unused entries are -1. Raises UserError for more than
    `size` atoms or 3 `size` bonds, where each direction of a bond counts.
    """
    atoms, bonds = len(graph.x), graph.edge_index.shape[1]
    if atoms > size or bonds > 3 * size:
        wanted = max(atoms, -(-bonds // 3))
        raise UserError(f"a molecule of {atoms} atoms needs the option size={wanted}")
    rows = torch.full((size, ATOM), -1, dtype=torch.int16)
    rows[:atoms] = graph.x.to(rows.dtype)
    ends = torch.full((3 * size, BOND), -1, dtype=torch.int16)
    ends[:bonds] = torch.cat([graph.edge_index.T, graph.edge_attr], 1).to(ends.dtype)
    return torch.cat([rows, ends.view(size, 3 * BOND)], 1)


def hashed_words(text: str, length: int) -> Tensor:
    """A text as ids (length,): hashes of its first words and punctuation marks, padded with 0."""
    words = re.findall(r"\w+|[^\w\s]", text.lower())[:length]
    ids = torch.zeros(length, dtype=torch.long)
    hashes = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words]
    ids[: len(hashes)] = torch.tensor(hashes, dtype=torch.long)
    return ids


def word_pieces(length: int, model: str = "") -> Callable[[str], Tensor]:
    """A function from a text to token ids (length,): DistilBERT's padded with 0, or a `model`'s with -1."""
    loader, name = ("AutoTokenizer", model) if model else ("DistilBertTokenizerFast", DISTILBERT)
    tokenizer = pretrained(loader, name)
    # a tokenizer may lack a padding token, or have another one than the model's configuration
    padding = -1 if model else 0

    def prepare(text: str) -> Tensor:
        ids = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        return torch.tensor([*ids, *[padding] * (length - len(ids))])

    return prepare


def transformers() -> Any:
    """The package transformers; raises MissingError if it is not installed."""
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        missing = missing_package("text", "transformers", "text")
        raise MissingError(
            f"{missing}; with the option `from_scratch: true`, datasets of natural language do not need it",
            missing.command,
        ) from error


def pretrained(cls: str, name: str, *, download: bool = False, **settings: Any) -> Any:
    """An object of the class `cls` of transformers, from the folder `name` or the local cache.

    With `download` it may come from Hugging Face. Raises UserError if it is not found.
    """
    loader = getattr(transformers(), cls)
    try:
        return loader.from_pretrained(name, local_files_only=not download, **settings)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{name} is neither a folder nor in the cache of transformers: "
            "`python -m oodbench.data download` of a text dataset fetches it, "
            "and the dataset's option `from_scratch: true` needs no such model"
        ) from error
