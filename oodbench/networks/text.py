"""Networks for texts as ids of words or word pieces, of which 0 fills up; see `data.encodings`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.data.encodings import CODEGPT, VOCABULARY, pretrained, transformers
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.networks.base import Network, register


class _Words(nn.Module):
    """Ids (N, L) to (N, F): the largest response of each filter anywhere in the text."""

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
    """Hashed words, filters over 3, 4 and 5 of them, the maximum over the text (arXiv:1408.5882)."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The paper has width 300, from pretrained vectors, and 100 filters of each size."""

        width: int = hparam(64, low=1)
        filters: int = hparam(100, low=1)

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__()
        self.hparams = hparams
        _require_text("TextCNN", input_shape)
        self.num_features = 3 * hparams.filters
        self.featurizer = _Words(hparams.width, hparams.filters)
        self.classifier = nn.Linear(self.num_features, num_outputs)


class _FirstToken(nn.Module):
    """Ids (N, L) to (N, F): what a transformer makes of the first token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        # of a mask that is whole transformers asks nothing; a row of ids it would look through on the host
        seen = (ids != 0)[:, None, None]
        found: Tensor = self.model(input_ids=ids, attention_mask=seen)[0]
        return found[:, 0]


@register("DistilBERT")
class DistilBERT(Network):
    """DistilBERT's last layer at the first token, and a linear classifier (arXiv:1910.01108)."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """With `weights: none` all weights are random."""

        weights: str = hparam("distilbert-base-uncased")
        """A name in the local cache of transformers, a folder of its files, or none. A run's id holds it
        as it is given, a folder by its path."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__()
        self.hparams = hparams
        _require_text("DistilBERT", input_shape)
        if hparams.weights == "none":
            module = transformers()
            model = module.DistilBertModel(module.DistilBertConfig())
        else:
            model = pretrained("DistilBertModel", hparams.weights)
        self.num_features = int(model.config.dim)
        self.featurizer = _FirstToken(model)
        self.classifier = nn.Linear(self.num_features, num_outputs)

    @classmethod
    def check(cls, values: Mapping[str, object]) -> None:
        """Raise UserError if the files of the weights are missing."""
        if values["weights"] != "none":
            pretrained("DistilBertConfig", str(values["weights"]))


def _require_text(name: str, input_shape: tuple[int, ...]) -> None:
    if len(input_shape) != 1:
        raise UserError(
            f"the network {name} takes texts of a fixed length, not inputs of the shape {input_shape}"
        )


class _States(nn.Module):
    """Ids (N, L) to (N, L, F): what a transformer knows before each next token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        seen = torch.ones(1, 1, length, length, dtype=torch.bool, device=ids.device).tril()
        found: Tensor = self.model(input_ids=ids, attention_mask=seen, use_cache=False)[0]
        return found


@register("CodeGPT")
class CodeGPT(Network):
    """GPT-2 trained on source code (arXiv:2102.04664): logits (N, L, C) of the next token.

    The classifier shares its weights with the embedding of the tokens, as GPT-2's does.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The sizes of a network without weights (`weights: none`); the defaults are CodeGPT's."""

        weights: str = hparam(CODEGPT)
        """A name in the local cache of transformers, a folder of its files, or none. A run's id holds it
        as it is given, a folder by its path."""
        layers: int = hparam(12, low=1)
        width: int = hparam(768, low=1)
        heads: int = hparam(12, low=1)
        dropout: float = hparam(0.1, low=0.0, high=0.99)

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        """Raises UserError for inputs that are no tokens, and for weights that cannot be had."""
        super().__init__()
        self.hparams = hparams
        if len(input_shape) != 1:
            raise UserError(
                f"the network CodeGPT takes rows of tokens, not inputs of the shape {input_shape}"
            )
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
                bos_token_id=None,  # a vocabulary may not have GPT-2's
                eos_token_id=None,
                **drop,
            )
            model = module.GPT2Model(config)
        else:
            model = pretrained("GPT2Model", hparams.weights, **drop)
            model.resize_token_embeddings(num_outputs)
        self.num_features = int(model.config.n_embd)
        self.featurizer = _States(model)
        self.classifier = nn.Linear(self.num_features, num_outputs, bias=False)
        self.classifier.weight = model.wte.weight

    @classmethod
    def check(cls, values: Mapping[str, object]) -> None:
        """Raise UserError if the files of the weights are missing."""
        if values["weights"] != "none":
            pretrained("GPT2Config", str(values["weights"]))
