"""Small copies of the sets of WILDS that are not images, as they lie on disk."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.helpers.data.wilds_images import start

IDENTITIES = ["male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white"]
OTHER = ["identity_any", "severe_toxicity", "obscene", "threat", "insult", "identity_attack"]
OTHER += ["sexual_explicit"]


def civilcomments(root: Path, count: int = 240) -> None:
    """Comments that say whether they are toxic; each mentions one group."""
    folder, rng = start(root, "civilcomments", "1.0"), np.random.default_rng(0)
    toxic, group = np.arange(count) % 2, np.arange(count) // 2 % 8
    frame = pd.DataFrame({"id": range(count)})
    frame["split"] = np.resize(np.repeat(["train", "train", "val", "test"], 16), count)
    frame["comment_text"] = [
        f"The {IDENTITIES[g]} ones are {'awful, go away' if t else 'kind'}! {i}"
        for i, (t, g) in enumerate(zip(toxic, group, strict=True))
    ]
    frame["toxicity"] = toxic * 0.9
    for k, name in enumerate(IDENTITIES):
        frame[name] = (group == k) * 0.8
    for name in OTHER:
        frame[name] = rng.random(count).round(2)
    frame.to_csv(folder / "all_data_with_identities.csv")


def amazon(root: Path, count: int = 300) -> None:
    """Reviews by users 0 to 4 (trained on), 5 to 9 (`val`) and 10 to 14 (`test`)."""
    folder, users = start(root, "amazon", "2.1"), np.arange(count) % 15
    (folder / "splits").mkdir()
    stars = 1 + np.arange(count) // 15 % 5
    frame = pd.DataFrame({"reviewerID": [f"U{u}" for u in users]})
    frame["asin"] = [f"P{i % 30}" for i in range(count)]
    frame["overall"] = stars
    frame["reviewTime"], frame["unixReviewTime"] = "01 1, 2010", 1262304000
    frame["reviewText"] = [f"I give {'star ' * s}and say {s} of 5." for s in stars]
    frame["summary"], frame["verified"] = "s", True
    frame["category"] = np.resize(["Books", "Toys"], count)
    frame["reviewYear"] = 2010 + np.arange(count) % 9
    frame.to_csv(folder / "reviews.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
    inside = np.where(np.arange(count) % 7 == 6, 2, np.where(np.arange(count) % 7 == 5, 4, 0))
    split = np.where(users < 5, inside, np.where(users < 10, 1, 3))
    split[0] = -1  # not in the set
    pd.DataFrame({"split": split, "clean": 1}).to_csv(folder / "splits" / "user.csv", index=False)


def yelp(root: Path, count: int = 120) -> None:
    """Reviews of 2012 (trained on), 2014 (`val`) and 2015 (`test`)."""
    folder = start(root, "yelp", "1.0")
    (folder / "splits").mkdir()
    stars, part = 1 + np.arange(count) // 3 % 5, np.arange(count) % 3
    frame = pd.DataFrame({"review_id": [f"r{i}" for i in range(count)]})
    frame["user_id"], frame["business_id"] = [f"u{i % 9}" for i in range(count)], "b"
    frame["stars"] = stars
    for name in ("useful", "funny", "cool"):
        frame[name] = 0
    frame["text"] = [f"A place of {'star ' * s}" for s in stars]
    frame["date"] = "2012-01-01"
    frame["year"] = np.array([2012, 2014, 2015])[part]
    frame["city"], frame["state"], frame["categories"] = "c", "s", "x"
    frame.to_csv(folder / "reviews.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
    split = np.array([0, 1, 3])[part]
    pd.DataFrame({"split": split, "clean": 1}).to_csv(folder / "splits" / "time.csv", index=False)


def sqf(root: Path, count: int = 600) -> None:
    """Stops in 2009 to 2012, with as many precincts as make 104 features."""
    folder, rng = start(root, "sqf", "1.0"), np.random.default_rng(0)
    frame = pd.DataFrame({"suspected.crime": ["cpw"] * count})
    races = ["black", "white hispanic", "white"]
    frame["suspect.race"] = np.resize(races, count)
    frame["borough"] = np.resize(["Bronx", "Queens"], count)
    frame["year"] = 2009 + np.arange(count) % 4
    frame["train.period"] = frame["year"] <= 2010
    frame["precinct"] = np.arange(count) % 93
    for name in ("suspect.height", "suspect.weight", "suspect.age", "observation.period"):
        frame[name] = rng.normal(size=count)
    for name in ("inside.outside", "location.housing", "radio.run", "officer.uniform"):
        frame[name] = np.resize(["a", "b", "c"][: 2 + (name == "location.housing")], count)
    for name in ("stopped.bc.object", "stopped.bc.lookout", "additional.report"):
        frame[name] = rng.random(count) < 0.5
    frame["found.weapon"] = rng.random(count) < 0.3 + 0.3 * frame["stopped.bc.object"]
    frame.to_csv(folder / "sqf.csv")


def molpcba(root: Path, count: int = 36) -> None:
    """Chains of atoms in six scaffolds; a third of the 128 labels is not known."""
    folder, rng = root / "ogbg_molpcba", np.random.default_rng(0)
    (folder / "raw").mkdir(parents=True)
    (folder / "split" / "scaffold").mkdir(parents=True)
    (folder / "RELEASE_v1.txt").touch()
    atoms = rng.integers(2, 7, count)
    labels = rng.integers(0, 2, (count, 128)).astype(float)
    labels[rng.random(labels.shape) < 1 / 3] = np.nan
    tables: dict[str, Any] = {
        "raw/num-node-list": atoms,
        "raw/num-edge-list": atoms - 1,
        "raw/edge": [(k, k + 1) for n in atoms for k in range(n - 1)],
        "raw/node-feat": rng.integers(0, 2, (atoms.sum(), 9)),
        "raw/edge-feat": rng.integers(0, 2, ((atoms - 1).sum(), 3)),
        "raw/graph-label": labels,
        "split/scaffold/train": range(24),
        "split/scaffold/valid": range(24, 30),
        "split/scaffold/test": range(30, 36),
    }
    for name, table in tables.items():
        frame = pd.DataFrame(table)
        frame.to_csv(folder / f"{name}.csv.gz", header=False, index=False)
    np.save(folder / "raw" / "scaffold_group.npy", np.arange(count) // 6)


def py150(root: Path, count: int = 12) -> None:
    """Two repositories are trained on; 17 tokens that count up, the first ones never asked for."""
    folder = start(root, "py150", "1.0")
    names = folder / "metadata" / "repo_file_names"
    names.mkdir(parents=True)
    (folder / "processed").mkdir()
    frame = pd.DataFrame({"id": range(4), "repo_name": [f"o/r{k}" for k in range(4)]})
    frame.to_csv(names / "repo_ids.csv", index=False)
    repositories: dict[str, tuple[int, ...]] = {"train": (0, 1), "IDval": (0, 1), "IDtest": (0, 1)}
    repositories |= {"OODval": (2,), "OODtest": (3,)}
    for split, of in repositories.items():
        files = [f"o/r{of[i % len(of)]}/f{i}.py\n" for i in range(count)]
        (names / f"{split}.txt").write_text("".join(files))
        inputs = [[2 + (i + k) % 30 for k in range(17)] for i in range(count)]
        kinds = [[-100, -100, *((k * i) % 7 for k in range(15))] for i in range(count)]
        for name, values in (("input", inputs), ("input_tok_type", kinds)):
            (folder / "processed" / f"{split}_{name}.json").write_text(json.dumps(values))
