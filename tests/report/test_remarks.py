import pandas as pd
import pytest

from oodbench.report.remarks import shared


def frames(**changed: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The chosen runs and all runs of ERM and IRM on two trials; `changed` are fields of IRM's last."""
    rows = []
    for label in ("ERM", "IRM"):
        for trial in (0, 1):
            last = label == "IRM" and trial == 1
            rows.append(
                {"dataset_label": "D", "label": label, "test_environments": ("t",), "trial": trial,
                 "id": f"{label}{trial}", "network": "MLP", "network_hparams": {"width": 8},
                 "hparams": {"lr": trial, "batch_size": 32}, "ceiling": False}
                | (changed if last else {})
            )  # fmt: skip
    runs = pd.DataFrame(rows)
    return runs[["dataset_label", "label", "test_environments", "trial", "id"]], runs


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({}, "share data, splits, the network's initial weights and the order of batches."),
        (
            {"network_hparams": {"width": 9}},
            "share data, splits and the order of batches; the network's initial weights in 1 of 2 pairs.",
        ),
        (
            {"network": "Linear", "hparams": {"batch_size": 16}},
            "share data and splits; the network's initial weights in 1 of 2 pairs and the order of "
            "batches in 1 of 2 pairs.",
        ),
        ({"hparams": {"lr": 7, "batch_size": 32}}, "initial weights and the order of batches."),
    ],
)
def test_what_a_pair_shares_is_read_off_the_chosen_specs(
    changed: dict[str, object], sentence: str
) -> None:
    assert shared(*frames(**changed), "ERM").endswith(sentence)


def test_nothing_is_said_where_nothing_is_paired() -> None:
    assert shared(*frames(), "DANN") == ""
