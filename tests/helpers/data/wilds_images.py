"""Small copies of the sets of WILDS that are images, as they lie on disk."""

import csv
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from oodbench.datasets.wilds_package import package
from PIL import Image


def start(root: Path, name: str, version: str) -> Path:
    folder = root / f"{name}_v{version}"
    folder.mkdir(parents=True)
    (folder / f"RELEASE_v{version}.txt").touch()
    return folder


def from_package(module: str, name: str) -> Any:
    package()
    return getattr(importlib.import_module(f"wilds.datasets.{module}"), name)


def _image(path: Path, y: float, seed: int, size: tuple[int, int] = (96, 96)) -> None:
    """Noise whose brightness in the red channel is the target's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 100, (size[1], size[0], 3), dtype=np.uint8)
    pixels[..., 0] += np.uint8(min(150, 20 * y))
    Image.fromarray(pixels).save(path)


def camelyon17(root: Path, count: int = 60) -> None:
    """Twelve patches of each hospital, of three slides; every fifth of a hospital held out."""
    folder, rows = start(root, "camelyon17", "1.0"), []
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
    folder, rows = start(root, "iwildcam", "2.0"), []
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
    categories = from_package("fmow_dataset", "categories")
    folder, rows = start(root, "fmow", "1.1"), []
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
    folder, rows = start(root, "rxrx1", "1.0"), []
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
    countries = from_package("poverty_dataset", "DHS_COUNTRIES")
    folder, rng = start(root, "poverty", "1.1"), np.random.default_rng(0)
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


def celeba(root: Path, count: int = 60) -> None:
    """Portraits of 178 x 218 pixels, six of each group in training."""
    folder = start(root, "celebA", "1.0")
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
    folder, i = start(root, "waterbirds", "1.0"), np.arange(count)
    frame = pd.DataFrame({"img_id": i, "img_filename": [f"birds/{k}.jpg" for k in i]})
    frame["y"], frame["place"], frame["split"] = i % 2, i // 2 % 2, i // 16
    frame.to_csv(folder / "metadata.csv", index=False)
    for k in i:
        _image(folder / "birds" / f"{k}.jpg", 5.0 * (k % 2), int(k), (60, 50))


def domainnet(root: Path, count: int = 40) -> None:
    """Photographs (`real`), sketches, and clip art that the split has no use for."""
    categories = from_package("domainnet_dataset", "DOMAIN_NET_CATEGORIES")
    folder, rows = start(root, "domainnet", "1.0"), []
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
    categories = from_package("bdd100k_dataset", "BDD100KDataset").CATEGORIES
    folder = start(root, "bdd100k", "1.0")
    for part, split in enumerate(("train", "val", "test")):
        rng = np.random.default_rng(part)
        frame = pd.DataFrame({"image": [f"{split}{i}.jpg" for i in range(count)]})
        for name in categories:
            frame[name] = rng.integers(0, 2, count)
        frame["group"] = part
        frame.to_csv(folder / f"timeofday_{split}.csv", index=False)
        for i, name in enumerate(frame["image"]):
            _image(folder / "images" / name, 5.0 * frame["bicycle"][i], i, (128, 72))


def globalwheat(root: Path, count: int = 6) -> None:
    """Two sessions are trained on; bright squares in pictures of 128 pixels, told as of 1024."""
    sessions = from_package("globalwheat_dataset", "SESSIONS")
    countries = from_package("globalwheat_dataset", "COUNTRIES")
    folder, rng = start(root, "globalwheat", "1.1"), np.random.default_rng(0)
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
