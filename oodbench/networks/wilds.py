"""Networks for WILDS' texts, code and molecules.

Texts and code are ids of words or word pieces, padded with 0; a molecule is a table with an atom and three
bonds in each row (see `oodbench.data.encodings`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oodbench.data.encodings import ATOM, BOND, CODEGPT, ROW, VOCABULARY, pretrained, transformers
from oodbench.datasets import Dataset
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.networks.base import Network, register

ATOM_KINDS, BOND_KINDS = (119, 5, 12, 12, 10, 6, 6, 2, 2), (5, 6, 2)
"""The numbers of values of an atom's and a bond's categories in the Open Graph Benchmark."""


class _Words(nn.Module):
    """Ids (N, L) to (N, F): each filter's largest response in the text."""

    def __init__(self, width: int, filters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.filters = nn.ModuleList(
            nn.Conv1d(width, filters, size, padding=size // 2) for size in (3, 4, 5)
        )

    def forward(self, ids: Tensor) -> Tensor:
        words = self.embedding(ids).transpose(1, 2)
        return torch.cat([f(words).relu().amax(2) for f in self.filters], 1)


@register("TextCNN")
class TextCNN(Network):
    """Hashed words, filters of 3, 4 and 5 words, and the maximum over the text (arXiv:1408.5882)."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The paper uses pretrained word vectors of width 300, and 100 filters of each size."""

        width: int = hparam(64, low=1)
        filters: int = hparam(100, low=1)

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__(hparams)
        _require_text("TextCNN", input_shape)
        self.num_features = 3 * hparams.filters
        self.featurizer = _Words(hparams.width, hparams.filters)
        self.classifier = nn.Linear(self.num_features, num_outputs)


class _Transformer(Network):
    config: ClassVar[str]
    """The name of transformers' configuration class."""

    @classmethod
    def resolved(cls, values: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
        if values["weights"] != "none":  # raises UserError if the files are missing
            pretrained(cls.config, str(values["weights"]))
        return super().resolved(values, dataset)


class _States(nn.Module):
    """Maps ids (N, L) to features that a function computes from a transformer's states and the ids."""

    def __init__(self, model: Any, read: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.read = model, read

    def forward(self, ids: Tensor) -> Tensor:
        return self.read(self.model, ids)


def _first(model: Any, ids: Tensor) -> Tensor:
    """The state of the first token, (N, F)."""
    # a mask (N, 1, 1, L): given ids only, transformers would inspect them on the host
    states: Tensor = model(input_ids=ids, attention_mask=(ids != 0)[:, None, None])[0]
    return states[:, 0]


@register("DistilBERT")
class DistilBERT(_Transformer):
    """A linear classifier on DistilBERT's last state of the first token (arXiv:1910.01108)."""

    config = "DistilBertConfig"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """With `weights: none` all weights are random."""

        weights: str = hparam("distilbert-base-uncased")
        """A name in transformers' local cache, a folder with its files, or `none`. A run's id holds this
        value, even if it is a path."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__(hparams)
        _require_text("DistilBERT", input_shape)
        if hparams.weights == "none":
            module = transformers()
            model = module.DistilBertModel(module.DistilBertConfig())
        else:
            model = pretrained("DistilBertModel", hparams.weights)
        self.num_features = int(model.config.dim)
        self.featurizer = _States(model, _first)
        self.classifier = nn.Linear(self.num_features, num_outputs)


def _pooled(model: Any, ids: Tensor, pool: str) -> Tensor:
    """The state that represents the text, (N, F); ids after its end are -1."""
    seen, padding = ids >= 0, model.config.pad_token_id
    if padding is not None:  # other tokenizers' datasets may pad with this id
        seen = seen & (ids != padding)
    states: Tensor = model(input_ids=ids.clamp(min=0), attention_mask=seen.long())[0]
    if pool == "first":
        return states[:, 0]
    counts = seen.sum(1).clamp(min=1)
    if pool == "last":
        return states[torch.arange(len(ids), device=ids.device), counts - 1]
    mean: Tensor = (states * seen[..., None]).sum(1) / counts[:, None]
    return mean


@register("TextModel")
class TextModel(_Transformer):
    """A linear classifier on any text model that transformers' `AutoModel` loads."""

    config = "AutoConfig"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The weights, and the state that represents a text."""

        weights: str = hparam("distilbert-base-uncased")
        """A folder with the model's files, or a name in transformers' local cache."""
        pool: str = hparam("first", options=("first", "last", "mean"))
        """The state of the first token (usual for BERT), of the last (usual for GPT), or the mean."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__(hparams)
        _require_text("TextModel", input_shape)
        model = pretrained("AutoModel", hparams.weights)
        if model.config.is_encoder_decoder:
            model = model.get_encoder()
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # unused: its weights would have no gradient
        self.num_features = int(model.config.hidden_size)
        self.featurizer = _States(model, partial(_pooled, pool=hparams.pool))
        self.classifier = nn.Linear(self.num_features, num_outputs)


def _require_text(name: str, input_shape: tuple[int, ...]) -> None:
    if len(input_shape) != 1:
        raise UserError(
            f"the network {name} takes texts of a fixed length, not inputs of the shape {input_shape}"
        )


def _causal(model: Any, ids: Tensor) -> Tensor:
    """All states, (N, L, F), each computed from the tokens up to its position."""
    length = ids.shape[1]
    seen = torch.ones(1, 1, length, length, dtype=torch.bool, device=ids.device).tril()
    states: Tensor = model(input_ids=ids, attention_mask=seen, use_cache=False)[0]
    return states


@register("CodeGPT")
class CodeGPT(_Transformer):
    """GPT-2 trained on source code (arXiv:2102.04664): logits (N, L, C) of the next token.

    The classifier shares its weights with the embedding of the tokens, as GPT-2's does.
    """

    config = "GPT2Config"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """`layers`, `width` and `heads` apply to `weights: none`; their defaults are CodeGPT's."""

        weights: str = hparam(CODEGPT)
        """A name in transformers' local cache, a folder with its files, or `none`. A run's id holds this
        value, even if it is a path."""
        layers: int = hparam(12, low=1, high=1000)
        width: int = hparam(768, low=1)
        heads: int = hparam(12, low=1)
        dropout: float = hparam(0.1, low=0.0, high=0.99)

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        """Raise UserError if the inputs are not tokens, or if the weights cannot be loaded."""
        super().__init__(hparams)
        _require_text("CodeGPT", input_shape)
        rate = hparams.dropout
        drop: dict[str, Any] = {"embd_pdrop": rate, "resid_pdrop": rate, "attn_pdrop": rate}
        if hparams.weights == "none":
            module = transformers()
            config = module.GPT2Config(
                vocab_size=num_outputs,
                n_positions=max(1024, *input_shape),
                n_embd=hparams.width,
                n_layer=hparams.layers,
                n_head=hparams.heads,
                bos_token_id=None,  # GPT-2's may lie outside of the vocabulary
                eos_token_id=None,
                **drop,
            )
            model = module.GPT2Model(config)
        else:
            model = pretrained("GPT2Model", hparams.weights, **drop)
            model.resize_token_embeddings(num_outputs)
        self.num_features = int(model.config.n_embd)
        self.featurizer = _States(model, _causal)
        self.classifier = nn.Linear(self.num_features, num_outputs, bias=False)
        self.classifier.weight = model.wte.weight


class _Embedding(nn.Module):
    """Rows of K categories (M, K) to the sums of their embeddings (M, F)."""

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        tables = [nn.Embedding(size, width) for size in sizes]
        for table in tables:
            nn.init.xavier_uniform_(table.weight)
        self.tables = nn.ModuleList(tables)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([t(rows[:, k]) for k, t in enumerate(self.tables)]).sum(0)


def _layers(width: int) -> list[nn.Module]:
    first, second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
    return [first, nn.BatchNorm1d(2 * width), nn.ReLU(), second, nn.BatchNorm1d(width)]


class _GIN(nn.Module):
    """Molecules (N, size, ROW) to means of atoms' features (N, F)."""

    def __init__(self, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.atoms = _Embedding(ATOM_KINDS, width)
        self.bonds = nn.ModuleList(_Embedding(BOND_KINDS, width) for _ in range(depth))
        self.eps = nn.Parameter(torch.zeros(depth))
        self.updates = nn.ModuleList(nn.Sequential(*_layers(width)) for _ in range(depth))
        self.virtual = nn.Parameter(torch.zeros(width))
        self.virtual_updates = nn.ModuleList(
            nn.Sequential(*_layers(width), nn.ReLU()) for _ in range(depth - 1)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, molecules: Tensor) -> Tensor:
        rows = molecules.long()
        atoms, bonds = rows[..., :ATOM], rows[..., ATOM:].reshape(len(rows), -1, BOND)
        is_atom, is_bond = atoms[..., 0] >= 0, bonds[..., 0] >= 0
        molecule = is_atom.nonzero()[:, 0]
        number = is_atom.flatten().cumsum(0).view(is_atom.shape) - 1  # among all atoms
        source, target = (number.gather(1, bonds[..., k].clamp(min=0))[is_bond] for k in (0, 1))
        h, kinds = self.atoms(atoms[is_atom]), bonds[is_bond][:, 2:]
        virtual = self.virtual.expand(len(rows), -1)
        for layer, update in enumerate(self.updates):
            h = h + virtual[molecule]
            messages = (h[source] + self.bonds[layer](kinds)).relu()
            new = update(((1 + self.eps[layer]) * h).index_add(0, target, messages))
            if layer < len(self.virtual_updates):
                total = virtual.index_add(0, molecule, h)
                virtual = self.dropout(self.virtual_updates[layer](total))
                new = new.relu()
            h = self.dropout(new)
        sums: Tensor = h.new_zeros(len(rows), h.shape[1]).index_add(0, molecule, h)
        return sums / is_atom.sum(1, keepdim=True)


@register("GIN")
class GIN(Network):
    """Graph isomorphism network with a virtual node, averaged over atoms (arXiv:1810.00826, 2005.00687).

    h_i <- MLP((1 + eps) h_i + sum over bonds j-i of relu(h_j + bond)). Before each layer the virtual node's
    features are added to those of every atom, and then updated from the sum over atoms, as in the Open
    Graph Benchmark's code.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The defaults are the Open Graph Benchmark's for ogbg-molpcba."""

        width: int = hparam(300, low=1)
        depth: int = hparam(5, low=1, high=1000)
        dropout: float = hparam(0.5, low=0.0, high=0.99)

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__(hparams)
        if len(input_shape) != 2 or input_shape[1] != ROW:
            raise UserError(f"the network GIN takes molecules, not inputs of shape {input_shape}")
        self.num_features = hparams.width
        self.featurizer = _GIN(hparams.width, hparams.depth, hparams.dropout)
        self.classifier = nn.Linear(hparams.width, num_outputs)
