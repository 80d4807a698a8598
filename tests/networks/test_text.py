from pathlib import Path
from typing import Any

import pytest
import torch

from oodbench.data.encodings import VOCABULARY, hashed_words, word_pieces
from oodbench.networks.base import build
from tests.helpers.data.transformers_copies import TOKENS, small_codegpt, small_distilbert

IDS = torch.tensor([[5, 6, 7, 8, 9, 0, 0], [8, 9, 5, 6, 7, 3, 0]])


def test_filters_respond_wherever_words_are() -> None:
    network = build("TextCNN", {"width": 6, "filters": 4}, (7,), 3, seed=0).eval()
    features = network.featurizer(IDS)
    assert features.shape == (2, network.num_features) == (2, 12)
    assert network(IDS).shape == (2, 3)
    featurizer: Any = network.featurizer
    words, filters = featurizer.embedding, featurizer.filters[1]
    by_hand = torch.zeros(4)
    padded = torch.cat([torch.zeros(2, 6), words(IDS[0]), torch.zeros(2, 6)])
    for start in range(8):  # four words at a time, two of padding on either side
        window = padded[start : start + 4]
        by_hand = by_hand.maximum(torch.einsum("wc,fcw->f", window, filters.weight) + filters.bias)
    torch.testing.assert_close(features[0, 4:8], by_hand)


def test_hashed_words() -> None:
    ids = hashed_words("The cat, the CAT", 6)
    assert ids.shape == (6,) and ids.dtype == torch.long
    the, cat, comma, *others = ids.tolist()
    assert others == [the, cat, 0]
    assert len({the, cat, comma}) == 3 and 0 < min(ids[:5]) and max(ids) < VOCABULARY
    assert hashed_words("", 6).tolist() == [0] * 6
    long = "a b c d e f g h"
    assert hashed_words(long, 6).tolist() == hashed_words(long, 8).tolist()[:6]


def test_distilbert_is_that_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A working directory has small weights and a tokenizer under DistilBERT's name."""
    from transformers import DistilBertModel

    monkeypatch.chdir(tmp_path)
    distilbert = small_distilbert(tmp_path)
    network = build("DistilBERT", {}, (8,), 3, seed=0).eval()
    prepare = word_pieces(8)
    ids = torch.stack([prepare("the cat sat"), prepare("cat " * 20)])
    assert ids[0].tolist() == [2, 4, 5, 6, 3, 0, 0, 0]  # [CLS] the cat sat [SEP]
    assert ids[1].tolist() == [2, *[5] * 6, 3]
    theirs: Any = DistilBertModel.from_pretrained(distilbert)
    with torch.no_grad():
        alone = theirs(input_ids=ids[:1, :5], attention_mask=torch.ones(1, 5))[0][:, 0]
        features = network.featurizer(ids)
    torch.testing.assert_close(features[:1], alone, atol=1e-5, rtol=1e-4)
    assert network(ids).shape == (2, 3) and network.num_features == 16


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
