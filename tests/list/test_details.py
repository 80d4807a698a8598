from typing import Any

from oodbench.list.details import details


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in rows}


def test_an_algorithm_has_its_hyperparameters() -> None:
    found = details("MMREx")
    assert (found["kind"], found["paper"]) == ("algorithm", "arXiv:2003.00688")
    rows = by_name(found["hparams"])
    of_linear = {"default": 1e-2, "range": "log_uniform(0.001, 0.1)"}
    assert rows["lr"]["by_family"]["linear"] == of_linear
    assert rows["lr"]["bounds"] == "at least 0.0"
    assert rows["optimizer"]["bounds"] == "one of adam, adamw, sgd"
    assert rows["weight_decay"]["meaning"].startswith("Added to the gradient as weight_decay *")


def test_a_dataset_has_its_options_and_environments() -> None:
    found = details("Spirals")
    assert found["environments"] == [*map(str, range(16)), "test"]
    assert found["test_environments"] == ["test"]
    assert (found["network"], found["licence"]) == ("MLP", "generated") and "files" not in found
    assert "MNIST/raw/train-images-idx3-ubyte" in details("ColoredMNIST")["files"]
    assert details("PACS")["files"] == ["PACS/"]
    assert by_name(found["options"])["num_environments"]["default"] == 16


def test_an_algorithm_says_what_it_changes_and_what_it_cannot_do() -> None:
    found = details("CutMix")
    assert found["changes"] == "the batch that is trained on (kind: batch)"
    assert "vectors (it cuts rectangles out of images)" in found["cannot"]
    assert "transductive" not in found and "ranked apart" in details("MTL")["transductive"]
    found = details("MLDG")
    assert "one training environment (" in found["cannot"]
    assert "many runs as one program (its step is its own)" in found["cannot"]
    assert "regression" in details("LISA")["cannot"]
    assert "cannot" not in details("ERM")
