"""DistilBERT in small, under the name of the large one."""

from pathlib import Path

from oodbench.inputs import DISTILBERT, distilbert_tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "star", "kind", "awful"]


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
