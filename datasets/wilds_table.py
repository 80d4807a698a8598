"""Tables on the sets of the package `wilds`, which need no data.

Columns are two spaces apart or more. Versions, classes, metrics, groups and licences are those of
`wilds` 2.0.0, networks and settings those of the examples in its repository (configs/datasets.py,
configs/model.py), less what docs/guide/wilds.md lists. Of the examples in `train`, from which the default
number of steps follows, docs/guide/wilds.md says which numbers were looked up.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from oodbench.tasks import Kind

from .wilds_package import Prediction

DATA = """
set             package        version  modality  size   kind        outputs  prediction  metric                          group_by
Camelyon17      camelyon17     1.0      image     96     multiclass  2        classes     acc_avg                         hospital
iWildCam        iwildcam       2.0      image     448    multiclass  182      classes     F1-macro_all                    location
FMoW            fmow           1.1      image     224    multiclass  62       classes     acc_worst_region                year
RxRx1           rxrx1          1.0      image     256    multiclass  1139     classes     acc_avg                         experiment
PovertyMap      poverty        1.1      bands     224    regression  1        values      r_wg                            country
CivilComments   civilcomments  1.0      text      300    multiclass  2        classes     acc_wg                          black, y
Amazon          amazon         2.1      text      512    multiclass  5        classes     10th_percentile_acc             user
Yelp            yelp           1.0      text      512    multiclass  5        classes     acc_avg                         year
Py150           py150          1.0      code      255    tokens      0        tokens      acc                             repo
MolPCBA         ogb-molpcba    1        molecule  332    multilabel  128      scores      ap                              scaffold
GlobalWheat     globalwheat    1.1      image     1024   boxes       100      boxes       detection_acc_avg_dom           session
CelebA          celebA         1.0      image     224    multiclass  2        classes     acc_wg                          male, y
Waterbirds      waterbirds     1.0      image     224    multiclass  2        classes     acc_wg                          background, y
WILDSDomainNet  domainnet      1.0      image     256    multiclass  345      classes     acc_avg                         category
BDD100K         bdd100k        1.0      image     224    multilabel  9        labels      acc_all                         timeofday
SQF             sqf            1.0      table     104    multiclass  2        scores      precision_at_global_recall_all  suspect race
"""

TRAINING = """
set             network      weights                     optimizer  lr    weight_decay  lr_schedule  epochs  batch  groups  each  train
Camelyon17      DenseNet121  none                        sgd        1e-3  1e-2          constant     10      32     2       16    302436
iWildCam        ResNet50     imagenet                    adam       3e-5  0             constant     12      16     2       8     129809
FMoW            DenseNet121  imagenet                    adam       1e-4  0             decay_60     60      32     8       4     76863
RxRx1           ResNet50     imagenet                    adam       1e-3  1e-5          cosine       90      72     9       8     40612
PovertyMap      ResNet18     none                        adam       1e-3  0             decay_200    200     64     8       8     9797
CivilComments   DistilBERT   distilbert-base-uncased     adamw      1e-5  0.01          linear       5       16     0       4     269038
Amazon          DistilBERT   distilbert-base-uncased     adamw      1e-5  0.01          linear       3       8      2       4     245502
Yelp            DistilBERT   distilbert-base-uncased     adamw      2e-6  0.01          linear       3       8      2       4     1000104
Py150           CodeGPT      microsoft/CodeGPT-small-py  adamw      8e-5  0             linear       3       6      2       3     79866
MolPCBA         GIN          -                           adam       1e-3  0             constant     100     32     4       8     350343
GlobalWheat     FasterRCNN   coco                        adam       1e-5  1e-3          constant     12      4      2       2     2943
CelebA          ResNet50     imagenet                    sgd        1e-3  0             constant     200     64     0       16    162770
Waterbirds      ResNet50     imagenet                    sgd        1e-5  1.0           constant     300     128    0       32    4795
WILDSDomainNet  ResNet50     imagenet                    sgd        7e-4  1e-4          constant     25      96     4       24    120906
BDD100K         ResNet50     imagenet                    sgd        1e-3  1e-4          constant     10      32     0       32    36728
SQF             Linear       -                           adam       5e-5  0             constant     4       4      0       4     100000
"""

ABOUT = """
set             family     licence                            shift
Camelyon17      images     CC0                                hospital
iWildCam        images     CDLA-Permissive-1.0                place
FMoW            images     FMoW Challenge Public License      year and region
RxRx1           images     CC BY-NC-SA 4.0                    experiment
PovertyMap      images     public domain (satellites)         country
CivilComments   text       CC0                                groups mentioned
Amazon          text       none (for research)                user
Yelp            text       Yelp Dataset License               year
Py150           text       MIT                                repository
MolPCBA         molecules  MIT                                scaffold
GlobalWheat     images     MIT                                country and stage
CelebA          images     non-commercial research            groups of sex and hair
Waterbirds      images     non-commercial research            groups of bird and place
WILDSDomainNet  images     fair use (research, education)     style
BDD100K         images     BDD100K's (research, non-profit)   time of day
SQF             tabular    public domain (the police's data)  year
"""

FILES = """
set             files
Camelyon17      metadata.csv, patches
iWildCam        metadata.csv, train
FMoW            rgb_metadata.csv, country_code_mapping.csv, images
RxRx1           metadata.csv, images
PovertyMap      dhs_metadata.csv, images
CivilComments   all_data_with_identities.csv
Amazon          reviews.csv, splits/user.csv
Yelp            reviews.csv, splits/time.csv
Py150           metadata/repo_file_names/repo_ids.csv, processed/train_input.json
MolPCBA         raw/edge.csv.gz, raw/edge-feat.csv.gz, raw/node-feat.csv.gz, raw/graph-label.csv.gz, raw/scaffold_group.npy
GlobalWheat     official_train.csv, official_val.csv, official_test.csv, metadata_domain.csv, images
CelebA          list_attr_celeba.csv, list_eval_partition.csv, img_align_celeba
Waterbirds      metadata.csv
WILDSDomainNet  metadata.csv
BDD100K         timeofday_train.csv, timeofday_val.csv, timeofday_test.csv, images
SQF             sqf.csv
"""

STARS = ("1 star", *(f"{n} stars" for n in range(2, 6)))
CLASSES = {
    "Camelyon17": ("no tumour", "tumour"),
    "CivilComments": ("not toxic", "toxic"),
    "Amazon": STARS,
    "Yelp": STARS,
    "CelebA": ("not blond", "blond"),
    "Waterbirds": ("landbird", "waterbird"),
    "SQF": ("no weapon", "weapon"),
    "FMoW": "categories",
    "WILDSDomainNet": "DOMAIN_NET_CATEGORIES",
    "BDD100K": "CATEGORIES",
}
"""The names of the classes, or the name that their list has in the set's module (or its class) in the
package. The package names neither iWildCam's species, RxRx1's RNAs nor MolPCBA's assays."""

YELP = "https://www.yelp.com/dataset, with splits/ as WILDS' preprocessing makes it"
MORE: dict[str, dict[str, Any]] = {
    "Yelp": {"by_hand": YELP},
    "MolPCBA": {"folder": "ogbg_molpcba"},
    "FMoW": {"attribute": "region"},
    "PovertyMap": {"attribute": "urban"},
    "CivilComments": {"attribute": "black"},
    "CelebA": {"attribute": "male"},
    "Waterbirds": {"margin": 256 / 224, "attribute": "background"},
    "WILDSDomainNet": {"settings": {"source_domain": "real", "target_domain": "sketch"}},
    "SQF": {"settings": {"split_scheme": "all_race"}},
}
"""Attributes of `Set` that few sets have, by the set's name."""


@dataclass(frozen=True, kw_only=True)
class Set:
    """A set: a row of each table, by the names of their columns."""

    package: str
    """The set's name in the package."""
    version: str
    modality: Literal["image", "bands", "text", "code", "molecule", "table"]
    size: int
    """The size of an input: pixels of a side, tokens, atoms, features or bases."""
    kind: Kind
    outputs: int
    """The number of outputs; 0: the number of tokens of the package's tokenizer."""
    prediction: Prediction
    metric: str
    """The official metric that the paper reports, or that the examples select by."""
    group_by: tuple[str, ...]
    network: str
    weights: str
    """The weights of the network, unless `from_scratch`; `-` if it takes none."""
    optimizer: str
    lr: float
    weight_decay: float
    lr_schedule: str
    epochs: int
    batch: int
    """The number of examples of a step in the package's example."""
    groups: int
    """The number of groups whose examples a step takes; 0: all."""
    each: int
    """The number of examples of a group in a step."""
    train: int
    """The number of examples in `train`."""
    family: str
    licence: str
    shift: str
    files: tuple[str, ...]
    """The files of the set's folder without which the package cannot start."""
    by_hand: str = ""
    """The address from which to get the dataset, if the package cannot fetch it."""
    folder: str = ""
    """The dataset's folder, if it is not the name and version, such as another package's folder."""
    attribute: str = ""
    """The metadata field that is the examples' attribute."""
    classes: tuple[str, ...] | str = ()
    """The names of the classes, or the name of their list in the package; none if it has no names."""
    margin: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the package's class."""


def _rows(table: str) -> dict[str, dict[str, Any]]:
    header, *lines = (re.split(r" {2,}", line) for line in table.strip().splitlines())
    return {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines}


def _sets() -> dict[str, Set]:
    data, *others = map(_rows, (DATA, TRAINING, ABOUT, FILES))
    sets = {}
    for name, row in data.items():
        for other in others:
            row |= other[name]
        for lists in ("group_by", "files"):
            row[lists] = row[lists].split(", ")
        sets[name] = TypeAdapter(Set).validate_python(
            row | MORE.get(name, {}) | {"classes": CLASSES.get(name, ())}
        )
    return sets


SETS = _sets()
