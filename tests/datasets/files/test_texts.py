"""A user's texts: the ids that a tokenizer gives, and any model of transformers beside its own outputs."""

from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
import torch

from oodbench.datasets import make
from oodbench.errors import UserError
from oodbench.networks.base import build
from oodbench.sweep.plan import single
from tests.helpers.data.transformers_copies import WORDS
from tests.helpers.results.sweeps import ended

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 40}
GPT: dict[str, Any] = {"bos_token_id": 2, "eos_token_id": 3, "n_embd": 16}
GPT |= {"n_layer": 1, "n_head": 2, "n_positions": 40}
T5: dict[str, Any] = {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8}
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "Bert": (SIZES, "first"),
    "Roberta": (SIZES | {"pad_token_id": 0}, "first"),
    "Electra": (SIZES | {"embedding_size": 16}, "mean"),
    "GPT2": (GPT | {"vocab_size": len(WORDS)}, "last"),
    "T5": (T5 | {"vocab_size": len(WORDS)}, "mean"),
}


def model(name: str, folder: Path) -> Path:
    """Write a model with random weights and a tokenizer of ten words."""
    import transformers

    folder.mkdir()
    config = getattr(transformers, f"{name}Config")(**MODELS[name][0])
    torch.manual_seed(0)
    getattr(transformers, f"{name}Model")(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer: Any = getattr(transformers, "BertTokenizerFast")  # noqa: B009
    tokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def table(folder: Path) -> None:
    """Write texts that say of which class they are, as CSV and as Parquet."""
    rows = [
        {"text": f"the cat sat {word}" + " the" * (k % 5), "target": word, "environment": e}
        for e in ("web", "news", "mail")
        for k, word in enumerate(["kind", "awful"] * 16)
    ]
    frame = pd.DataFrame(rows)
    frame.to_csv(folder / "texts.csv", index=False)
    frame.to_parquet(folder / "texts.parquet", index=False)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.nightly] * (n not in ("Bert", "T5"))) for n in MODELS],
)
def test_a_text_models_features_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    import transformers

    folder, pool = model(name, tmp_path / "model"), MODELS[name][1]
    table(tmp_path)
    dataset = make("Texts", {"file": "texts.csv", "model": str(folder), "size": 12}, tmp_path)
    x = dataset.load(0)["web"].x[:6]
    weights = {"weights": str(folder), "pool": pool}
    network = build("TextModel", weights, dataset.input_shape, 2, seed=0).eval()
    theirs: Any = transformers.AutoModel.from_pretrained(folder).eval()
    theirs = theirs.get_encoder() if theirs.config.is_encoder_decoder else theirs
    for row in x:
        with torch.no_grad():
            states = theirs(input_ids=row[row >= 0][None]).last_hidden_state[0]
            ours = network.featurizer(row[None])[0]
        wanted = {"first": states[0], "last": states[-1], "mean": states.mean(0)}[pool]
        torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=1e-4)


def test_texts_of_csv_and_parquet_are_the_same(tmp_path: Path) -> None:
    table(tmp_path)
    one, other = (
        cast(Any, make("Texts", {"file": f"texts.{f}"}, tmp_path)) for f in ("csv", "parquet")
    )
    assert one.environments == ("mail", "news", "web")
    for e in one.environments:
        assert torch.equal(one.load(0)[e].x, other.load(0)[e].x)
        assert torch.equal(one.read(tmp_path / "texts.csv")[one.places[e]], one.load(0)[e].x)
    assert one.network == "TextCNN" and one.input_shape == (128,)
    with pytest.raises(UserError, match="'words'"):
        make("Texts", {"file": "texts.csv", "text": "words"}, tmp_path)


@pytest.mark.parametrize("with_model", [False, True])
def test_runs_learn_from_texts(with_model: bool, tmp_path: Path) -> None:
    table(tmp_path)
    options: dict[str, Any] = {"file": str(tmp_path / "texts.csv"), "size": 12}
    keys: dict[str, Any] = {"steps": 100, "evaluate_every": 100}
    if with_model:
        options["model"] = str(model("Bert", tmp_path / "model"))
        pooled = {"weights": options["model"], "pool": "mean"}
        keys["network"] = {"name": "TextModel", "hparams": pooled}
    method = {"name": "VREx", "hparams": {"lr": 0.01, "batch_size": 16}}
    spec = single({"name": "Texts", **options}, method, **keys)
    run = ended(spec, tmp_path / "run")
    values = [e["value"] for e in run.records()[-1]["evaluations"] if e["metric"] == "accuracy"]
    assert min(values) > 0.9
