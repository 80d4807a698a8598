"""What is known of the sets of the package `wilds` without reading them: the table behind `wilds`.

Sizes, networks, metrics and settings are those of the package and of its examples (configs/ in its
repository); the numbers of training examples are arXiv:2012.07421's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from oodbench.official import Prediction


@dataclass(frozen=True, kw_only=True)
class Set:
    """A row of the table."""

    package: str
    """Its name in the package."""
    version: str
    summary: str
    licence: str
    shift: str
    files: tuple[str, ...]
    """Of its folder, without which the package cannot start."""
    by_hand: str = ""
    """Where it is to be had, if the package cannot fetch it."""
    folder: str = ""
    """If it is not the name and version, as where another package than `wilds` keeps the data."""
    modality: Literal["image", "bands", "text", "molecule", "table"] = "image"
    size: int
    """Pixels of a side, tokens, atoms or features."""
    margin: float = 1.0
    kind: Literal["multiclass", "multilabel", "regression"] = "multiclass"
    outputs: int
    prediction: Prediction = "classes"
    metric: str
    """The official one that the paper reports."""
    group_by: tuple[str, ...]
    network: str
    pretrained: bool = True
    """Whether its weights are, unless `from_scratch`."""
    family: str = "images"
    train: int
    """Examples in `train`."""
    epochs: int
    batch: int
    """Examples a step, of `groups` groups; 0: of all."""
    groups: int = 0
    hparams: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the package's class."""


ADAM = {"optimizer": "adam"}
SGD = {"optimizer": "sgd", "momentum": 0.9}
ADAMW = {"optimizer": "adamw", "weight_decay": 0.01, "lr_schedule": "linear"}

SETS = {
    "Camelyon17": Set(
        package="camelyon17",
        version="1.0",
        summary="Tumours in patches of lymph nodes from hospitals that were not trained on.",
        licence="CC0",
        shift="hospital",
        files=("metadata.csv", "patches"),
        size=96,
        outputs=2,
        metric="acc_avg",
        group_by=("hospital",),
        network="DenseNet121",
        pretrained=False,
        train=302_436,
        epochs=10,
        batch=32,
        groups=2,
        hparams=SGD | {"lr": 1e-3, "weight_decay": 1e-2},
    ),
    "iWildCam": Set(
        package="iwildcam",
        version="2.0",
        summary="Animals before camera traps at places that were not trained on.",
        licence="CDLA-Permissive-1.0",
        shift="place",
        files=("metadata.csv", "train"),
        size=448,
        outputs=182,
        metric="F1-macro_all",
        group_by=("location",),
        network="ResNet50",
        train=129_809,
        epochs=12,
        batch=16,
        groups=2,
        hparams=ADAM | {"lr": 3e-5, "weight_decay": 0.0},
    ),
    "FMoW": Set(
        package="fmow",
        version="1.1",
        summary="What land is used for, from satellites in later years; by the worst region.",
        licence="FMoW Challenge Public License",
        shift="year and region",
        files=("rgb_metadata.csv", "country_code_mapping.csv", "images"),
        size=224,
        outputs=62,
        metric="acc_worst_region",
        group_by=("year",),
        network="DenseNet121",
        train=76_863,
        epochs=60,
        batch=32,
        groups=8,
        hparams=ADAM | {"lr": 1e-4, "weight_decay": 0.0, "lr_schedule": "decay_60"},
    ),
    "RxRx1": Set(
        package="rxrx1",
        version="1.0",
        summary="Which RNA was silenced in cells, in experiments that were not trained on.",
        licence="CC BY-NC-SA 4.0",
        shift="experiment",
        files=("metadata.csv", "images"),
        size=256,
        outputs=1139,
        metric="acc_avg",
        group_by=("experiment",),
        network="ResNet50",
        train=40_612,
        epochs=90,
        batch=72,
        groups=9,
        hparams=ADAM | {"lr": 1e-3, "weight_decay": 1e-5, "lr_schedule": "cosine"},
    ),
    "PovertyMap": Set(
        package="poverty",
        version="1.1",
        summary="Wealth of villages from satellites in other countries; by the worse of town and land.",
        licence="public domain (images)",
        shift="country",
        files=("dhs_metadata.csv", "images"),
        modality="bands",
        size=224,
        kind="regression",
        outputs=1,
        prediction="values",
        metric="r_wg",
        group_by=("country",),
        network="ResNet18",
        pretrained=False,
        train=9_797,
        epochs=200,
        batch=64,
        groups=8,
        hparams=ADAM | {"lr": 1e-3, "weight_decay": 0.0, "lr_schedule": "decay_200"},
    ),
    "CivilComments": Set(
        package="civilcomments",
        version="1.0",
        summary="Toxic comments; by the worst of the groups that they mention.",
        licence="CC0",
        shift="groups mentioned",
        files=("all_data_with_identities.csv",),
        modality="text",
        size=300,
        outputs=2,
        metric="acc_wg",
        group_by=("black", "y"),
        network="DistilBERT",
        family="text",
        train=269_038,
        epochs=5,
        batch=16,
        hparams=ADAMW | {"lr": 1e-5, "batch_size": 4},
    ),
    "Amazon": Set(
        package="amazon",
        version="2.1",
        summary="Stars of reviews by users that were not trained on; by the 10th percentile of users.",
        licence="for research (no licence given)",
        shift="user",
        files=("reviews.csv", "splits/user.csv"),
        modality="text",
        size=512,
        outputs=5,
        metric="10th_percentile_acc",
        group_by=("user",),
        network="DistilBERT",
        family="text",
        train=245_502,
        epochs=3,
        batch=8,
        groups=2,
        hparams=ADAMW | {"lr": 1e-5},
    ),
    "MolPCBA": Set(
        package="ogb-molpcba",
        version="1",
        summary="Which of 128 assays molecules are active in, with scaffolds that were not trained on.",
        licence="MIT",
        shift="scaffold",
        folder="ogbg_molpcba",
        files=tuple(
            f"raw/{name}"
            for name in (
                *("edge.csv.gz", "edge-feat.csv.gz", "node-feat.csv.gz", "graph-label.csv.gz"),
                *("num-edge-list.csv.gz", "num-node-list.csv.gz", "scaffold_group.npy"),
            )
        ),
        modality="molecule",
        size=332,
        kind="multilabel",
        outputs=128,
        prediction="scores",
        metric="ap",
        group_by=("scaffold",),
        network="GIN",
        pretrained=False,
        family="molecules",
        train=350_343,
        epochs=100,
        batch=32,
        groups=4,
        hparams=ADAM | {"lr": 1e-3, "weight_decay": 0.0},
    ),
    "Yelp": Set(
        package="yelp",
        version="1.0",
        summary="Stars of reviews in later years.",
        licence="Yelp dataset licence",
        shift="year",
        files=("reviews.csv", "splits/time.csv"),
        by_hand="https://www.yelp.com/dataset, with splits/ as WILDS' preprocessing makes it",
        modality="text",
        size=512,
        outputs=5,
        metric="acc_avg",
        group_by=("year",),
        network="DistilBERT",
        family="text",
        train=1_000_104,
        epochs=3,
        batch=8,
        groups=2,
        hparams=ADAMW | {"lr": 2e-6},
    ),
    "CelebA": Set(
        package="celebA",
        version="1.0",
        summary="Blond hair on portraits; by the worst of the groups of sex and hair.",
        licence="non-commercial research",
        shift="groups of sex and hair",
        files=("list_attr_celeba.csv", "list_eval_partition.csv", "img_align_celeba"),
        size=224,
        outputs=2,
        metric="acc_wg",
        group_by=("male", "y"),
        network="ResNet50",
        train=162_770,
        epochs=200,
        batch=64,
        hparams=SGD | {"lr": 1e-3, "weight_decay": 0.0, "batch_size": 16},
    ),
    "Waterbirds": Set(
        package="waterbirds",
        version="1.0",
        summary="Birds of land and water before either; by the worst of the four groups.",
        licence="non-commercial research",
        shift="groups of bird and background",
        files=("metadata.csv",),
        size=224,
        margin=256 / 224,
        outputs=2,
        metric="acc_wg",
        group_by=("background", "y"),
        network="ResNet50",
        train=4_795,
        epochs=300,
        batch=128,
        hparams=SGD | {"lr": 1e-5, "weight_decay": 1.0, "batch_size": 32},
    ),
    "WILDSDomainNet": Set(
        package="domainnet",
        version="1.0",
        summary="Photographs to sketches: DomainNet as WILDS 2.0 splits it.",
        licence="fair use (DomainNet)",
        shift="style",
        files=("metadata.csv",),
        size=256,
        outputs=345,
        metric="acc_avg",
        group_by=("category",),
        network="ResNet50",
        train=120_906,
        epochs=25,
        batch=96,
        groups=4,
        hparams=SGD | {"lr": 7e-4, "weight_decay": 1e-4},
        settings={"source_domain": "real", "target_domain": "sketch"},
    ),
    "BDD100K": Set(
        package="bdd100k",
        version="1.0",
        summary="Which of nine things a driver sees at other times of the day.",
        licence="BDD100K licence",
        shift="time of day",
        files=("timeofday_train.csv", "timeofday_val.csv", "timeofday_test.csv", "images"),
        size=224,
        kind="multilabel",
        outputs=9,
        prediction="labels",
        metric="acc_all",
        group_by=("timeofday",),
        network="ResNet50",
        train=36_728,
        epochs=10,
        batch=32,
        hparams=SGD | {"lr": 1e-3, "weight_decay": 1e-4, "batch_size": 32},
    ),
    "SQF": Set(
        package="sqf",
        version="1.0",
        summary="Weapons found by stops in New York; by the precision at a recall of 60 %.",
        licence="public domain (original)",
        shift="year",
        files=("sqf.csv",),
        modality="table",
        size=104,
        outputs=2,
        prediction="scores",
        metric="precision_at_global_recall_all",
        group_by=("suspect race",),
        network="Linear",
        family="tabular",
        train=100_000,  # an estimate: the package does not say
        epochs=4,
        batch=4,
        hparams=ADAM | {"lr": 5e-5, "weight_decay": 0.0, "batch_size": 4},
        settings={"split_scheme": "all_race"},
    ),
}
