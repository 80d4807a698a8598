import pandas as pd

from oodbench.results.tables import origins, pretraining


def test_weights_are_named_by_model_or_by_file_and_checksum() -> None:
    rows = [
        ("a", "ERM", {"weights": "none"}, {}),
        ("a", "CLIP", {"weights": "cached", "model": "ViT-B-32"}, {}),
        ("a", "timm", {"weights": "DIR/net.pth", "model": "resnet", "sha256": "0123456789"}, {}),
        ("b", "ERM", {}, {"weights": "cached", "file": "DIR/features.npy"}),
    ]
    runs = pd.DataFrame(rows, columns=["dataset_label", "label", "network_hparams", "options"])
    names = ["", "ViT-B-32", "net.pth (01234567)", "features.npy"]
    runs["dataset"] = "Table"
    assert pretraining(runs) == dict(zip((row[:2] for row in rows), names, strict=True))
    assert pretraining(runs[:1]) == {}


def test_rows_are_of_the_board_of_here_or_of_both() -> None:
    runs = pd.DataFrame({"label": [*"AABC"], "frozen": [True, True, None, True]})
    runs["rerun"] = [False, False, None, True]
    assert origins(runs) == {"A": "board", "B": "here", "C": "board, here"}
    assert origins(runs[2:3]) == {} and origins(runs[2:3].assign(frozen=False)) == {"B": "here"}
