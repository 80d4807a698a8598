from pathlib import Path
from typing import Any

import pytest
import torch

from oodbench.errors import UserError
from oodbench.networks.base import build
from tests.helpers.transformers_copies import TOKENS, small_codegpt

SMALL = {"weights": "none", "layers": 2, "width": 16, "heads": 2}


def gpt(**hparams: object) -> Any:
    return build("CodeGPT", SMALL | hparams, (9,), TOKENS, seed=0).eval()


def test_a_token_is_foretold_from_those_before_it() -> None:
    network = gpt()
    ids = torch.randint(TOKENS, (3, 9), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[:, 5] = (ids[:, 5] + 1) % TOKENS
    first, second = network(ids), network(changed)
    assert first.shape == (3, 9, TOKENS)
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert (first[:, 5:] - second[:, 5:]).abs().amax((0, 2)).gt(1e-4).all()


def test_the_classifier_is_the_embedding() -> None:
    network = gpt()
    assert network.classifier.weight is network.featurizer.model.wte.weight
    named = dict(network.named_parameters())
    assert len(named) == len({id(p) for p in network.parameters()})


def test_weights_from_a_folder_grow_to_the_tokenizer(tmp_path: Path) -> None:
    folder = small_codegpt(tmp_path)
    network = gpt(weights=str(folder))
    assert network.num_features == 16 and network.classifier.weight.shape == (TOKENS, 16)
    assert network(torch.zeros(1, 9, dtype=torch.long)).shape == (1, 9, TOKENS)


def test_what_cannot_be() -> None:
    with pytest.raises(UserError, match="rows of tokens, not inputs of the shape"):
        build("CodeGPT", SMALL, (3, 8, 8), TOKENS, 0)
    with pytest.raises(UserError, match="neither a folder nor in the cache"):
        gpt(weights="nobody/nothing")
