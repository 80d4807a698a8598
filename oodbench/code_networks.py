"""Networks for source code: what comes next after each token."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from oodbench.data.encodings import CODEGPT, pretrained, transformers
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.networks import Network, register


class _States(nn.Module):
    """Ids (N, L) to (N, L, F): what a transformer knows before each next token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=ids, use_cache=False)[0]
        return found


@register("CodeGPT")
class CodeGPT(Network):
    """GPT-2 trained on source code (arXiv:2102.04664): logits (N, L, C) of the next token.

    The classifier shares its weights with the embedding of the tokens, as GPT-2's does.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The sizes count with `weights: none` alone, and are CodeGPT's."""

        weights: str = hparam(CODEGPT)
        """A name in the local cache of transformers, a folder of its files, or none."""
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
        """Whether the weights are there."""
        if values["weights"] != "none":
            pretrained("GPT2Config", str(values["weights"]))
