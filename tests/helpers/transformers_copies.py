"""Models of the package transformers in small, under the names of the large ones."""

import json
from pathlib import Path

from oodbench.data.encodings import CODEGPT, DISTILBERT, distilbert_tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "star", "kind", "awful"]
TOKENS = 32


def small_distilbert(folder: Path) -> Path:
    """Write random weights of 16 features and a tokenizer that knows ten words."""
    from transformers import DistilBertConfig, DistilBertModel

    distilbert_tokenizer.cache_clear()
    target = folder / DISTILBERT
    target.mkdir()
    (target / "vocab.txt").write_text("\n".join(WORDS))
    config = DistilBertConfig(
        vocab_size=len(WORDS),
        dim=16,
        hidden_dim=32,
        n_layers=1,
        n_heads=2,
        max_position_embeddings=32,
    )
    DistilBertModel(config).save_pretrained(target)
    return target


def small_codegpt(folder: Path) -> Path:
    """Write random weights of 16 features and a tokenizer of TOKENS tokens."""
    from transformers import GPT2Config, GPT2Model

    target = folder / CODEGPT
    target.mkdir(parents=True)
    tokens = {"<|endoftext|>": 0} | {chr(64 + k): k for k in range(1, TOKENS)}
    (target / "vocab.json").write_text(json.dumps(tokens))
    (target / "merges.txt").write_text("#version: 0.2\n")
    config = GPT2Config(vocab_size=TOKENS - 2, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    config.bos_token_id = config.eos_token_id = None
    GPT2Model(config).save_pretrained(target)
    return target
