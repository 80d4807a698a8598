"""Small copies of the sets of WILDS, as they lie on disk once the package has fetched them."""

import csv
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from oodbench.official import package

IDENTITIES = ["male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white"]
OTHER = ["identity_any", "severe_toxicity", "obscene", "threat", "insult", "identity_attack"]
OTHER += ["sexual_explicit"]


def _folder(root: Path, name: str, version: str) -> Path:
    folder = root / f"{name}_v{version}"
    folder.mkdir(parents=True)
    (folder / f"RELEASE_v{version}.txt").touch()
    return folder


def _image(path: Path, y: float, seed: int, size: tuple[int, int] = (96, 96)) -> None:
    """Noise whose brightness in the red channel is the target's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 100, (size[1], size[0], 3), dtype=np.uint8)
    pixels[..., 0] += np.uint8(min(150, 20 * y))
    Image.fromarray(pixels).save(path)


def _from_package(module: str, name: str) -> Any:
    package()
    return getattr(importlib.import_module(f"wilds.datasets.{module}"), name)


def camelyon17(root: Path, count: int = 60) -> None:
    """Twelve patches of each hospital, of three slides; every fifth of a hospital held out."""
    folder, rows = _folder(root, "camelyon17", "1.0"), []
    for i in range(count):
        center, k = i % 5, i // 5
        row = {"patient": f"{center * 20:03d}", "node": k % 3, "x_coord": i, "y_coord": 7}
        row |= {"tumor": k % 2, "slide": center * 3 + k % 3, "center": center}
        rows.append(row | {"split": int(k % 5 == 4)})
        part = f"patient_{row['patient']}_node_{row['node']}"
        _image(folder / "patches" / part / f"patch_{part}_x_{i}_y_7.png", 5 * (k % 2), i)
    pd.DataFrame(rows).to_csv(folder / "metadata.csv")


def iwildcam(root: Path, count: int = 60) -> None:
    """Places 0, 1, 2 are trained on (and `id_val`, `id_test`), 3 is in `val`, 4 in `test`."""
    folder, rows = _folder(root, "iwildcam", "2.0"), []
    for i in range(count):
        place, k = i % 5, i // 5
        split = ["train", "train", "id_val", "id_test"][k % 4] if place < 3 else ""
        split = split or {3: "val", 4: "test"}[place]
        rows.append({"filename": f"{i}.jpg", "y": k % 4, "split": split})
        rows[-1] |= {"location_remapped": place, "sequence_remapped": i}
        rows[-1]["datetime"] = "2013-06-05 05:44:19.000"
        _image(folder / "train" / f"{i}.jpg", k % 4, i, (64, 48))
    pd.DataFrame(rows).to_csv(folder / "metadata.csv", index=False)


def fmow(root: Path, count: int = 240) -> None:
    """Years from 2002 to 2017, five regions, the first eight kinds of land, and the sequestered."""
    categories = _from_package("fmow_dataset", "categories")
    folder, rows = _folder(root, "fmow", "1.1"), []
    codes = {"USA": "Americas", "FRA": "Europe", "NGA": "Africa", "CHN": "Asia", "AUS": "Oceania"}
    for i in range(count):
        split = ["train", "train", "val", "test", "seq"][i % 5]
        stamp = f"{2002 + (i // 5) % 16}-03-04T05:06:07Z"
        rows.append({"split": split, "timestamp": stamp, "category": categories[i % 8]})
        rows[-1]["country_code"] = list(codes)[(i // 3) % 5]
        if split != "seq":
            _image(folder / "images" / f"rgb_img_{i}.png", i % 8, i, (32, 32))
    pd.DataFrame(rows).to_csv(folder / "rgb_metadata.csv", index=False)
    mapping = pd.DataFrame({"alpha-3": list(codes), "region": list(codes.values())})
    mapping.to_csv(folder / "country_code_mapping.csv", index=False)


def rxrx1(root: Path, count: int = 80) -> None:
    """Four cell types in an experiment of each split, two sites, five RNAs."""
    folder, rows = _folder(root, "rxrx1", "1.0"), []
    for i in range(count):
        split, kind = ["train", "train", "val", "test"][i % 4], ["HEPG2", "HUVEC"][(i // 4) % 2]
        number = {"train": 1 + (i // 8) % 2, "val": 3, "test": 4}[split]
        row = {"cell_type": kind, "experiment": f"{kind}-{number:02d}", "plate": 1 + i % 4}
        row |= {"well": f"B{i:02d}", "site": 1 + i % 2, "well_type": "treatment", "dataset": split}
        rows.append(row | {"sirna_id": (i // 16) % 5})
        name = f"{row['well']}_s{row['site']}.png"
        place = folder / "images" / str(row["experiment"]) / f"Plate{row['plate']}"
        _image(place / name, (i // 16) % 5, i, (40, 40))
    pd.DataFrame(rows).to_csv(folder / "metadata.csv", index=False)


def poverty(root: Path, count: int = 4600) -> None:
    """2,000 villages go to `id_val` and `id_test`; the images are the same few ones, linked."""
    countries = _from_package("poverty_dataset", "DHS_COUNTRIES")
    folder, rng = _folder(root, "poverty", "1.1"), np.random.default_rng(0)
    level = np.arange(count) // 23 % 4
    frame = pd.DataFrame({"country": np.resize(countries, count)})
    frame["urban"] = np.arange(count) // 92 % 2 == 1
    frame["wealthpooled"] = level + 0.1 * rng.normal(size=count)
    frame.to_csv(folder / "dhs_metadata.csv", index=False)
    (folder / "images").mkdir()
    for k in range(4):
        x = rng.normal(size=(8, 224, 224)).astype(np.float32) + k
        np.savez_compressed(folder / "images" / f"{k}.npz", x=x)
    for i in range(count):
        link = folder / "images" / f"landsat_poverty_img_{i}.npz"
        link.symlink_to(folder / "images" / f"{level[i]}.npz")


def civilcomments(root: Path, count: int = 240) -> None:
    """Comments that say whether they are toxic; each mentions one group."""
    folder, rng = _folder(root, "civilcomments", "1.0"), np.random.default_rng(0)
    toxic, group = np.arange(count) % 2, np.arange(count) // 2 % 8
    frame = pd.DataFrame(
        {"id": range(count), "split": np.resize(["train"] * 4 + ["val", "test"], count)}
    )
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
    folder, users = _folder(root, "amazon", "2.1"), np.arange(count) % 15
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
    folder = _folder(root, "yelp", "1.0")
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


def celeba(root: Path, count: int = 60) -> None:
    """Portraits of 178 x 218 pixels, six of each group in training."""
    folder = _folder(root, "celebA", "1.0")
    names = [f"{i + 1:06d}.jpg" for i in range(count)]
    male, blond = np.arange(count) % 2, np.arange(count) // 2 % 2
    frame = pd.DataFrame({"image_id": names, "Blond_Hair": 2 * blond - 1, "Male": 2 * male - 1})
    frame.to_csv(folder / "list_attr_celeba.csv", index=False)
    partition = np.resize(np.repeat([0, 0, 1, 2], 4), count)
    frame = pd.DataFrame({"image_id": names, "partition": partition})
    frame.to_csv(folder / "list_eval_partition.csv", index=False)
    for i, name in enumerate(names):
        _image(folder / "img_align_celeba" / name, 5.0 * blond[i], i, (178, 218))


def waterbirds(root: Path, count: int = 48) -> None:
    """Four of each group in each split."""
    folder, i = _folder(root, "waterbirds", "1.0"), np.arange(count)
    frame = pd.DataFrame({"img_id": i, "img_filename": [f"birds/{k}.jpg" for k in i]})
    frame["y"], frame["place"], frame["split"] = i % 2, i // 2 % 2, i // 16
    frame.to_csv(folder / "metadata.csv", index=False)
    for k in i:
        _image(folder / "birds" / f"{k}.jpg", 5.0 * (k % 2), int(k), (60, 50))


def domainnet(root: Path, count: int = 40) -> None:
    """Photographs (`real`), sketches, and clip art that the split has no use for."""
    categories = _from_package("domainnet_dataset", "DOMAIN_NET_CATEGORIES")
    folder, rows = _folder(root, "domainnet", "1.0"), []
    for i in range(count):
        domain, y = ["real", "sketch", "clipart", "real", "sketch"][i % 5], i // 10
        path = f"{domain}/{i}.jpg"
        row = {"image_path": path, "domain": domain, "split": ["train", "test"][i // 5 % 2]}
        rows.append(row | {"category": categories[y], "y": str(y)})
        _image(folder / path, y, i, (50, 40))
    frame = pd.DataFrame(rows).astype({"y": int})
    frame.to_csv(folder / "metadata.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)


def bdd100k(root: Path, count: int = 20) -> None:
    """Wide images in daylight (trained on), at night and at dawn; nine labels."""
    categories = _from_package("bdd100k_dataset", "BDD100KDataset").CATEGORIES
    folder = _folder(root, "bdd100k", "1.0")
    for part, split in enumerate(("train", "val", "test")):
        rng = np.random.default_rng(part)
        frame = pd.DataFrame({"image": [f"{split}{i}.jpg" for i in range(count)]})
        for name in categories:
            frame[name] = rng.integers(0, 2, count)
        frame["group"] = part
        frame.to_csv(folder / f"timeofday_{split}.csv", index=False)
        for i, name in enumerate(frame["image"]):
            _image(folder / "images" / name, 5.0 * frame["bicycle"][i], i, (128, 72))


def sqf(root: Path, count: int = 600) -> None:
    """Stops in 2009 to 2012, with as many precincts as make 104 features."""
    folder, rng = _folder(root, "sqf", "1.0"), np.random.default_rng(0)
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


def globalwheat(root: Path, count: int = 6) -> None:
    """Two sessions are trained on; bright squares in pictures of 128 pixels, told as of 1024."""
    sessions = _from_package("globalwheat_dataset", "SESSIONS")
    countries = _from_package("globalwheat_dataset", "COUNTRIES")
    folder, rng = _folder(root, "globalwheat", "1.1"), np.random.default_rng(0)
    (folder / "images").mkdir()
    splits: dict[str, tuple[int, ...]] = {
        "official_train": (0, 12),
        "official_val": (20,),
        "official_test": (30, 31),
    }
    splits |= {"fixed_train_val": (0, 12), "fixed_train_test": (0, 12)}
    for split, of in splits.items():
        rows = []
        for i in range(count):
            pixels = rng.integers(0, 60, (128, 128, 3), dtype=np.uint8)
            corners = [(8, 8), (8, 72), (72, 8), (72, 72)][: i % 4]
            for x, y in corners:
                pixels[y : y + 40, x : x + 40] += 150
            name = f"{split}{i}.png"
            Image.fromarray(pixels).save(folder / "images" / name)
            boxes = [f"{8 * x} {8 * y} {8 * x + 320} {8 * y + 320}" for x, y in corners]
            text = ";".join(boxes) or "no_box"
            rows.append({"image_name": name, "BoxesString": text, "domain": of[i % len(of)]})
        pd.DataFrame(rows).to_csv(folder / f"{split}.csv", index=False)
    frame = pd.DataFrame({"name": sessions, "country": np.resize(countries, len(sessions))})
    frame["location"], frame["development_stage"] = "Kyoto", "Ripening"
    frame.to_csv(folder / "metadata_domain.csv", sep=";", index=False)


def py150(root: Path, count: int = 12) -> None:
    """Two repositories are trained on; 17 tokens that count up, the first ones never asked for."""
    folder = _folder(root, "py150", "1.0")
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


def encode(root: Path, starts: int = 6) -> None:
    """Chromosomes of 20,000 bases; what is bound follows the openness of the kind of cell."""
    import pyBigWig

    folder, rng = _folder(root, "encode", "1.0"), np.random.default_rng(0)
    chromosomes = [f"chr{k}" for k in (*range(1, 23), "X")]
    cells = ["H1-hESC", "HCT116", "HeLa-S3", "K562", "A549", "GM12878", "HepG2", "liver"]
    bases = rng.integers(0, 4, (len(chromosomes), 20_000))
    sequences = {c: np.eye(4, dtype=np.uint8)[b] for c, b in zip(chromosomes, bases, strict=True)}
    np.savez(folder / "sequence.npz", allow_pickle=False, **sequences)
    rows, targets = [], []
    for cell in cells:
        np.save(folder / f"qn.{cell}.npy", np.sort(rng.random(20)))
        track = pyBigWig.open(str(folder / f"DNase.MAX.{cell}.official.bigwig"), "w")
        track.addHeader([(c, 20_000) for c in chromosomes])
        for chromosome in chromosomes:
            open_ = rng.integers(0, 2, 400).astype(float)
            at = list(range(0, 20_000, 50))
            ends = [place + 50 for place in at]
            track.addEntries([chromosome] * 400, at, ends=ends, values=open_.tolist())
            for start in range(3200, 3200 + 400 * starts, 400):
                rows.append((chromosome, start, start + 6400, cell))
                targets.append(open_[start // 50 : start // 50 + 128])
        track.close()
    labels = folder / "labels" / "MAX"
    labels.mkdir(parents=True)
    pd.DataFrame(rows).to_csv(labels / "metadata_df.bed", sep="\t", header=False, index=False)
    y = np.array(targets)
    y[rng.random(y.shape) < 0.1] = 0.5  # cannot be told
    np.save(labels / "metadata_y.npy", y)


COPIES: dict[str, Callable[[Path], None]] = {
    "Camelyon17": camelyon17,
    "iWildCam": iwildcam,
    "FMoW": fmow,
    "RxRx1": rxrx1,
    "PovertyMap": poverty,
    "CivilComments": civilcomments,
    "Amazon": amazon,
    "Yelp": yelp,
    "CelebA": celeba,
    "Waterbirds": waterbirds,
    "WILDSDomainNet": domainnet,
    "BDD100K": bdd100k,
    "SQF": sqf,
    "MolPCBA": molpcba,
    "GlobalWheat": globalwheat,
    "Py150": py150,
    "ENCODE": encode,
}
