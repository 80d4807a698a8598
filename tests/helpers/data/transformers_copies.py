"""Models of the package transformers in small, under the names of the large ones."""

import json
from pathlib import Path
from typing import Any

import torch

from oodbench.data.encodings import CODEGPT, DISTILBERT

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "star", "kind", "awful"]
TOKENS = 32


def small_distilbert(folder: Path) -> Path:
    """Write random weights of 16 features and a tokenizer that knows ten words."""
    from transformers import DistilBertConfig, DistilBertModel

    target = folder / DISTILBERT
    target.mkdir()
    (target / "vocab.txt").write_text("\n".join(WORDS))
    sizes: Any = {"dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2}
    config = DistilBertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)
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


def small_clip(folder: Path) -> Path:
    """Write random weights of CLIP, of 12 features, and a tokenizer of single letters."""
    from transformers import CLIPConfig, CLIPModel

    folder.mkdir(exist_ok=True)
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + ["."]
    tokens = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{c}</w>" for c in letters)]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    shared = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = CLIPConfig(
        text_config={**shared, **ends, "vocab_size": len(tokens), "num_hidden_layers": 1},
        vision_config={**shared, "num_hidden_layers": 2, "image_size": 16, "patch_size": 8},
        projection_dim=12,
    )
    torch.manual_seed(0)
    CLIPModel(config).save_pretrained(folder)
    return folder
