"""Tests of oodbench.data.audit."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image, ImageOps

from oodbench.data.audit import audit_of, neighbours
from oodbench.data.preparation import inspect
from oodbench.datasets import Dataset, Environment, make, register
from oodbench.errors import UserError
from oodbench.notes import Finding, sentences
from oodbench.sweep.file import validate
from oodbench.sweep.plan import Plan, make_plan
from oodbench.tasks import Task
from oodbench.train.loading import Data, load_data, spec_of_data
from oodbench.train.settings import TrainSettings

SIZE = 90
"""The rows of each environment."""
COUNT = 3 * SIZE


def frame(seed: int = 0) -> pd.DataFrame:
    """A table without any problem: measurements, whole numbers, codes and words in three environments."""
    draw = np.random.default_rng(seed)
    place = np.repeat(np.arange(3), SIZE)
    return pd.DataFrame(
        {
            "age": draw.integers(18, 95, COUNT),
            "income": np.exp(draw.normal(10, 1, COUNT)).round(),
            "year": draw.integers(1990, 2020, COUNT),
            "height": draw.normal(170, 9, COUNT).round(1) + 5 * place,
            "ward": draw.choice([f"ward {i}" for i in range(9)], COUNT),
            "target": draw.choice(["yes", "no"], COUNT),
            "environment": np.array(["A", "B", "C"])[place],
        }
    )


def found(folder: Path, data: pd.DataFrame, **options: Any) -> dict[str, list[Finding]]:
    """The findings on a table by kind."""
    data.to_csv(folder / "t.csv", index=False)
    dataset = make("Table", {"file": "t.csv", **options}, folder)
    by_kind: dict[str, list[Finding]] = {}
    for finding in audit_of(dataset, inspect(dataset)):
        by_kind.setdefault(finding.kind, []).append(finding)
    return by_kind


def only(folder: Path, data: pd.DataFrame, kind_of_finding: str, **options: Any) -> Finding:
    (finding,) = found(folder, data, **options)[kind_of_finding]
    return finding


@pytest.mark.parametrize("seed", range(8))
def test_a_clean_table_raises_no_alarm(tmp_path: Path, seed: int) -> None:
    data = frame(seed)
    assert found(tmp_path, data) == {}
    real = data.assign(target=np.random.default_rng(seed).normal(size=len(data)))
    assert found(tmp_path, real, kind="real") == {}


def test_rows_that_were_copied_are_told_from_rows_that_coincide(tmp_path: Path) -> None:
    data = frame()
    copies = data[data["environment"] == "A"].head(20).assign(environment="C")
    (first, *_) = found(tmp_path, pd.concat([data, copies]))["copies"]
    assert first.environments == ("C", "A")
    assert first.counts == {"examples": 20, "of": SIZE + 20}
    both = pd.concat([data, copies], ignore_index=True)
    kinds = found(tmp_path, both.assign(record_id=100 + np.arange(len(both)) * 7))
    assert kinds["copies"][0].counts["examples"] == 20 and "an identifier" in kinds
    copies["height"] = copies["height"].astype("float32") + 1e-4  # as another program rounds
    again = found(tmp_path, pd.concat([data, copies]))["copies"]
    assert 15 < again[0].counts["examples"] <= 20
    coarse = data[["ward", "year", "target", "environment"]]
    assert set(found(tmp_path, coarse.assign(year=coarse["year"] % 2))) == {"equal inputs"}


def test_groups_in_several_environments(tmp_path: Path) -> None:
    data = frame()
    own = [f"{e}{i}" for i, e in enumerate(data["environment"])]
    assert found(tmp_path, data.assign(patient=own), group="patient") == {}
    own[0], own[-1], own[-2] = "P7", "p7", " P7 "
    shared = data.assign(patient=own)
    of_c = found(tmp_path, shared, group="patient")["shared groups"][0]
    assert (of_c.environments, of_c.example) == (("C", "A"), "P7")
    assert of_c.counts == {"examples": 2, "of": SIZE, "groups": 1, "training examples": 1}
    assert "also in 'A': `group_across: drop`" in of_c.sentence
    kept = found(tmp_path, shared, group="patient", group_across="drop")["separated groups"][0]
    assert "179 of 180 examples are left to train on" in kept.sentence


def test_dropped_groups_are_in_no_split_of_a_training_environment(tmp_path: Path) -> None:
    data = frame().assign(patient=[f"P{i * 7 % 200}" for i in range(COUNT)])
    data.to_csv(tmp_path / "t.csv", index=False)
    patients = {n: data.loc[data["environment"] == n, "patient"].to_numpy() for n in "ABC"}
    options = {"file": "t.csv", "group": "patient", "group_across": "drop"}

    def loaded(held_out: str, trial: int = 0, **changes: str) -> Data:
        about: Any = {"options": options | changes, "test_environments": (held_out,)}
        spec = spec_of_data("Table", trial=trial, **about)
        return load_data(spec, TrainSettings(data_dir=tmp_path))

    for held_out, other in (("C", "A"), ("A", "C")):
        kept, dropped = loaded(held_out, group_across="keep"), loaded(held_out)
        for name, halves in kept.splits.items():
            for half, index in halves.items():
                stays = ~np.isin(patients[name][index], patients[held_out])
                wanted = index if name == held_out else index[torch.from_numpy(stays)]
                assert dropped.splits[name][half].tolist() == wanted.tolist()
        assert len(dropped.splits[other]["in"]) < len(kept.splits[other]["in"])
    shared = data.assign(patient=np.resize(["P1", "P2", "P3"], len(data)))
    shared.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(UserError, match="with C held out, `group_across: drop` leaves nothing of"):
        loaded("C", trial=1)
    with pytest.raises(UserError, match="needs the option `group`"):
        make("Table", {"file": "t.csv", "group_across": "drop"}, tmp_path)


def leaks(data: pd.DataFrame) -> dict[str, Any]:
    """Columns that are made from the target."""
    is_yes = (data["target"] == "yes").to_numpy()
    draw = np.random.default_rng(1)
    return {
        "a threshold": np.where(is_yes, 25_001, 3_000) + draw.integers(0, 20_000, len(data)),
        "a code": np.where(is_yes, 8, 7),
        "words": np.where(is_yes, draw.choice(["aa", "cc"], len(data)), "bb"),
    }


@pytest.mark.parametrize("column", leaks(frame()))
def test_a_column_that_tells_the_class(tmp_path: Path, column: str) -> None:
    data = frame()
    cells = leaks(data)[column]
    finding = only(tmp_path, data.assign(**{column: cells}), "a telling column")
    assert finding.example == column and finding.counts["score"] > 0.99
    assert "alone tells the target" in finding.sentence
    rare = data.assign(target=np.where(np.arange(len(data)) < 5, "yes", "no"))
    assert "a telling column" not in found(tmp_path, rare.assign(**{column: cells}))


@pytest.mark.parametrize("of_target", [np.exp, lambda y: (9 / 5 * y + 32).round(2), np.negative])
def test_a_column_that_tells_a_number(tmp_path: Path, of_target: Any) -> None:
    data = frame().assign(target=np.random.default_rng(0).normal(size=COUNT))
    same = data.assign(same=of_target(data["target"]))
    finding = only(tmp_path, same, "a telling column", kind="real")
    assert finding.example == "same" and finding.counts["score"] > 0.99
    noise = np.random.default_rng(1).normal(size=len(data))
    related = data.assign(same=data["target"] + 0.5 * data["height"] + noise)
    assert found(tmp_path, related, kind="real") == {}


def test_columns_whose_sum_is_the_target(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    parts = {"casual": draw.poisson(20, COUNT), "regular": draw.poisson(50, COUNT)}
    data = frame().assign(**parts, target=parts["casual"] + parts["regular"])
    gaps = data.assign(casual=data["casual"].where(data.index % 9 > 0))
    for each in (data, gaps):
        finding = only(tmp_path, each, "a telling column", kind="real", missing="median")
        assert "the target is a weighted sum of 'casual', 'regular'" in finding.sentence
    few = frame().groupby("environment").head(8)
    noise = {f"noise {i}": draw.normal(size=len(few)) for i in range(20)}
    few = few.assign(**noise, target=draw.normal(size=len(few)))
    assert "a telling column" not in found(tmp_path, few, kind="real")
    rounded = data.assign(target=data["target"] + draw.normal(size=len(data)))
    assert found(tmp_path, rounded, kind="real") == {}


def test_a_line_or_a_curve_tells_a_number_in_few_rows(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    few = frame().groupby("environment").head(40)
    few = few.assign(target=draw.normal(size=len(few)) ** 3)
    line, curve = 3.3 * few["target"] + 0.02 * draw.normal(size=len(few)), np.cbrt(few["target"])
    for each in (few.assign(same=line), few.assign(same=curve)):
        assert only(tmp_path, each, "a telling column", kind="real").example == "same"


def test_columns_whose_product_is_the_target(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    area, price = draw.uniform(30, 200, COUNT).round(1), draw.normal(4000, 700, COUNT).round()
    data = frame().assign(area=area, price=price, target=area * price)
    finding = only(tmp_path, data, "a telling column", kind="real")
    assert "the target is a product of powers of 'area', 'price'" in finding.sentence
    noisy = data.assign(target=data["target"] * np.exp(draw.normal(0, 0.1, COUNT)))
    assert found(tmp_path, noisy, kind="real") == {}


def test_two_columns_whose_order_is_the_target(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    home, away = draw.poisson(3, COUNT), draw.poisson(3, COUNT)
    data = frame().assign(home=home, away=away, target=np.where(home > away, "won", "not"))
    finding = only(tmp_path, data, "a telling column")
    assert "which of 'home' and 'away' is larger tells the target" in finding.sentence
    data.loc[:5, "target"] = "won"
    assert found(tmp_path, data) == {}


def test_two_sparse_columns_that_are_mostly_equal_do_not_tell_the_target(tmp_path: Path) -> None:
    data, few = frame(), np.random.default_rng(0).random(COUNT) < 0.3
    counts = {f"word {name}": 1 * few * (data["target"] == name) for name in ("yes", "no")}
    assert found(tmp_path, data.assign(**counts)) == {}


def test_targets_in_a_small_unit_are_told_by_no_column(tmp_path: Path) -> None:
    small = frame().assign(target=1e-12 * np.random.default_rng(0).normal(size=COUNT))
    assert found(tmp_path, small, kind="real") == {}


def test_few_distinct_rows_are_equal_by_chance(tmp_path: Path) -> None:
    assert {*found(tmp_path, frame()[["ward", "target", "environment"]])} == {"equal inputs"}
    data = pd.concat([frame(), frame(1)]).drop(columns="ward")
    first = data["income"] < data["income"].quantile(0.05)
    data.loc[first, ["age", "income", "year", "height"]] = [30, 100, 2000, 170.0]
    assert {*found(tmp_path, data)} == {"equal inputs"}  # as often as within an environment


def numbered(draw: np.random.Generator, count: int = 60, letters: str = "P") -> list[str]:
    """Texts such as P0012, up to a number."""
    return [f"{letters[n % len(letters)]}{n:04}" for n in draw.integers(0, count, COUNT)]


Cells = dict[str, Callable[[np.random.Generator], Any]]
IDENTIFIERS: Cells = {
    "serial": lambda draw: draw.permutation(COUNT) + 5000,
    "patient_id": lambda draw: draw.integers(0, COUNT // 3, COUNT),
    "number": lambda draw: np.arange(COUNT) // SIZE * 10_000 + draw.integers(0, 400, COUNT),
    "subject_id": lambda draw: draw.integers(1, 13, COUNT),
    "timestamp": lambda draw: 1.67e9 + 1e5 * np.arange(COUNT) + draw.random(COUNT),
    "patient": lambda draw: ["", *numbered(draw)[1:]],
    "Sample ID": lambda draw: ["", *numbered(draw)[1:]],
    "code": lambda draw: ["", *numbered(draw)[1:]],
    "patient_nbr": lambda draw: 37 * draw.integers(0, 90, COUNT),
    "Patienten-Nr.": lambda draw: draw.integers(0, 90, COUNT),
    "hhid": lambda draw: draw.integers(0, 90, COUNT),
    "player": lambda draw: draw.choice([a + b for a in "ABCDE" for b in "abcde"], COUNT),
}


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_a_column_that_looks_like_an_identifier(tmp_path: Path, name: str) -> None:
    cells = IDENTIFIERS[name](np.random.default_rng(0))
    finding = only(tmp_path, frame().assign(**{name: cells}), "an identifier")
    assert finding.example == name and "looks like an identifier" in finding.sentence


def around(means: list[float], spread: float) -> Callable[[np.random.Generator], Any]:
    """Numbers around a mean of each environment."""
    return lambda draw: np.repeat(means, SIZE) + draw.normal(0, spread, COUNT)


MEASUREMENTS: Cells = {
    "balance": lambda draw: np.repeat([1, 1, 9], SIZE) * draw.normal(2, 1, COUNT),
    "response_time": lambda draw: draw.gamma(2, 0.4, COUNT).round(3),
    "subject": lambda draw: draw.choice([*"abcdefghijk"], COUNT),
    "patient": lambda draw: numbered(draw, count=8),
    "diagnosis": lambda draw: numbered(draw, letters="EI"),
    "weight": lambda draw: draw.integers(1, 13, COUNT) + 0.5,
    "altitude": around([300, 483, 760], 9),
    "latitude": around([30, 30, 50], 1),
    "brightness": lambda draw: np.repeat([1, 4, 16], SIZE) * draw.normal(9, 1, COUNT),
    "warmth": around([20, 20, 32], 1),
}


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_measurements_that_look_like_other_things(tmp_path: Path, name: str) -> None:
    cells = MEASUREMENTS[name](np.random.default_rng(0))
    assert found(tmp_path, frame().assign(**{name: cells})) == {}


def test_columns_that_mark_a_class_each_tell_the_target(tmp_path: Path) -> None:
    data = frame().assign(target=np.random.default_rng(1).choice(["r", "g", "b"], COUNT))
    marks = {f"is_{c}": (data["target"] != c).astype(int) for c in "rg"}
    finding = only(tmp_path, data.assign(**marks), "a telling column")
    assert "'is_r', 'is_g' tell the target together" in finding.sentence
    assert not found(tmp_path, data.assign(is_r=marks["is_r"]))


REPEATS = "an environment column"


@pytest.mark.parametrize("values", [["u", "v", "w"], [3, 1, 2]])
def test_a_column_that_repeats_the_environment(tmp_path: Path, values: list[Any]) -> None:
    data = frame()
    kinds = found(tmp_path, data.assign(site=np.repeat(values, SIZE)))
    (finding,) = kinds.pop(REPEATS)
    assert not kinds and "'site' repeats the environment" in finding.sentence
    for other in (np.repeat([*values[:2], values[0]], SIZE), np.roll(np.repeat(values, SIZE), 9)):
        kinds = found(tmp_path, data.assign(site=other))
        assert not kinds.keys() - {"unseen categories"}, other


def test_a_typing_mistake_hides_no_environment_and_an_empty_one_is_none(tmp_path: Path) -> None:
    codes = frame()["environment"].map({"A": 1, "B": 2, "C": 3})
    finding = only(tmp_path, frame().assign(site=codes.where(codes.index != 5, 3)), REPEATS)
    assert finding.example == "site" and "each environment has one" in finding.sentence
    level = frame()["environment"].map({"A": 1.0, "B": 2.0})
    kinds = found(tmp_path, frame().assign(level=level), missing="median")
    assert {*kinds} == {"an empty column"}


def test_dummies_are_found_beside_a_code_of_the_environment(tmp_path: Path) -> None:
    data = frame().join(pd.get_dummies(frame()["environment"], prefix="site").astype(int))
    data = data.assign(code=data["environment"].map({"A": 3, "B": 1, "C": 2}))
    kinds = found(tmp_path, data)[REPEATS]
    assert [of.example for of in kinds] == ["code", "site_A"]
    assert "'site_C' together repeat the environment" in kinds[1].sentence
    copies = data[data["environment"] == "A"].head(20)
    copies = copies.assign(environment="C", code=2, site_A=0, site_C=1)
    assert found(tmp_path, pd.concat([data, copies]))["copies"][0].counts["examples"] == 20


def test_identifiers_alone_are_no_equal_inputs(tmp_path: Path) -> None:
    data = frame().assign(record_id=np.random.default_rng(0).permutation(10**6)[:COUNT])
    assert {*found(tmp_path, data, features=["record_id"])} == {"an identifier"}


def test_categories_that_one_environment_alone_has(tmp_path: Path) -> None:
    data = frame()
    words = np.random.default_rng(0).choice(["male", "female"], len(data))
    sexes = np.where(data["environment"] == "C", np.char.upper(words), words)
    first = found(tmp_path, data.assign(sex=sexes))["unseen categories"][0]
    assert (first.environments, first.example, first.counts) == (("C",), "sex", {"examples": 90})
    assert "'FEMALE', 'MALE' of 'sex', which 90 of the 90 examples of 'C' have" in first.sentence
    few = data.assign(sex=np.where(np.arange(len(data)) > len(data) - 9, "other", words))
    assert found(tmp_path, few) == {}


def test_groups_that_one_side_lacks(tmp_path: Path) -> None:
    sexes = np.where((frame()["environment"] == "C") & (frame()["target"] == "no"), "x", "f")
    data = frame().assign(sex=sexes)
    kinds = found(tmp_path, data, attribute="sex")
    assert "has the group 'no, x', to which" in kinds["unseen group"][0].sentence
    lacking = {of.environments[0]: of.sentence for of in kinds["absent group"]}
    assert "has no example of the group 'no, f': its worst" in lacking["C"]


@pytest.mark.parametrize(
    ("low", "spread", "factor", "offset"),
    [
        *((37, 0.5, 1.8, 32), (67, 3, 2.54, 0), (1.07, 0.33, 88.4, 0), (0.5, 0.12, 100, 0)),
        (15, 6, 1, 273.15),
    ],
)
def test_an_environment_in_other_units(
    tmp_path: Path, low: float, spread: float, factor: float, offset: float
) -> None:
    data = frame()
    there = data["environment"] == "B"
    values = np.abs(np.random.default_rng(0).normal(low, spread, len(data)))
    in_other = data.assign(measured=np.where(there, factor * values + offset, values).round(4))
    finding = only(tmp_path, in_other, "another unit")
    assert finding.example == "measured" and "its unit may be another one there" in finding.sentence
    assert finding.environments[0] == "B"
    assert finding.counts["times"] == pytest.approx(factor + offset / low, rel=0.1)
    shifted = np.where(there, values + 4 * spread, values)
    assert found(tmp_path, data.assign(measured=shifted.round(4))) == {}


def test_skewed_numbers_and_temperatures_in_another_unit(tmp_path: Path) -> None:
    draw, there = np.random.default_rng(0), (frame()["environment"] == "B").to_numpy()
    skewed, degrees = np.exp(draw.normal(3, 1.5, COUNT)), draw.normal(12, 9, COUNT)
    for name, values, other in (
        ("distance", skewed, 1000 * skewed),
        ("index", degrees / 30, degrees * 300),
        ("temperature", degrees, 1.8 * degrees + 32),
        ("concentration", 1e-9 * skewed, 1e-6 * skewed),
    ):
        data = frame().assign(**{name: np.where(there, other, values)})
        assert only(tmp_path, data, "another unit").example == name
        assert found(tmp_path, frame().assign(**{name: np.where(there, 4 * values, values)})) == {}


def test_codes_that_one_environment_numbers_otherwise(tmp_path: Path) -> None:
    data, draw = frame(), np.random.default_rng(0).integers(0, 2, COUNT)
    there = data["environment"] == "B"
    finding = only(tmp_path, data.assign(sex=draw + there), "other codes")
    assert finding.environments == ("B",) and "'sex' is 0 or 1 in most" in finding.sentence
    for usual in (draw, draw * ~there, 2 * draw + there, 2010 + draw + there):
        assert "other codes" not in found(tmp_path, data.assign(code=usual))


def test_environments_that_differ_in_the_same_unit_raise_no_alarm(tmp_path: Path) -> None:
    draw, there = np.random.default_rng(0), (frame()["environment"] == "B").to_numpy()
    animals = [f"{colour} {kind}" for colour in ("red", "grey") for kind in "fox cow hen".split()]
    data = frame().assign(
        temp=np.where(there, draw.normal(26.7, 2.7, COUNT), draw.normal(20, 2, COUNT)),
        tmax=np.where(there, draw.normal(25.4, 2.54, COUNT), draw.normal(10, 1, COUNT)),
        pressure=np.where(there, draw.normal(373.15, 2, COUNT), draw.normal(100, 2, COUNT)),
        index=np.where(there, draw.normal(133, 2.4, COUNT), draw.normal(100, 2, COUNT)),
        population=np.exp(draw.normal(7, 1.2, COUNT) + 3.2 * there),
        noise=draw.normal(size=COUNT) * np.where(there, 30, 1),
        grade=draw.integers(2, 4, COUNT) + there,
        vehicle=draw.poisson(9, COUNT),
        animal=draw.choice([f"{name} of {place}" for name in animals for place in "abcd"], COUNT),
    )
    assert found(tmp_path, data) == {}


def test_smaller_numbers_and_the_target_may_be_in_another_unit(tmp_path: Path) -> None:
    data = frame()
    there = data["environment"] == "B"
    small = data.assign(height=data["height"] / np.where(there, 100, 1))
    unit = only(tmp_path, small, "another unit")
    assert (unit.environments[1], unit.example) == ("B", "height")
    assert 90 < unit.counts["times"] < 110
    target = data.drop(columns="height").assign(target=data["height"] * np.where(there, 100, 1))
    assert only(tmp_path, target, "another unit", kind="real").example == "target"
    wide = data.assign(income=data["income"] * (1 + 9 * there))
    assert "another unit" not in found(tmp_path, wide)


def test_a_column_without_a_cell_in_an_environment(tmp_path: Path) -> None:
    data = frame()
    for place, named in (("B", ["B"]), ("A", ["A", "B"])):
        data.loc[data["environment"] == place, "height"] = np.nan
        kinds = found(tmp_path, data, missing="mean")["an empty column"]
        assert [(f.environments, f.example) for f in kinds] == [((n,), "height") for n in named]


def test_few_examples_of_groups_classes_and_environments(tmp_path: Path) -> None:
    data = frame().assign(sex=np.resize(["f", "m"], COUNT))
    data.loc[SIZE, ["sex", "target"]] = "other", "yes"
    kinds = found(tmp_path, data, attribute="sex")
    (small,) = kinds.pop("small group")
    assert (small.environments, small.counts) == (("B",), {"yes, other": 1})
    assert not kinds
    data.loc[:6, "target"] = "rare"
    data.loc[data.index[-70:], "environment"] = "A"
    kinds = found(tmp_path, data.drop(columns="sex"))
    assert kinds["small class"]
    assert kinds["small environment"][0].sentence.startswith("environment 'C' has 20 examples")


def pictures(
    root: Path, drawn: Callable[[], Image.Image], count: int = 20, ending: str = "png"
) -> None:
    """Pictures of two classes in two environments."""
    for place, name in itertools.product("AB", "xy"):
        (root / place / name).mkdir(parents=True)
        for i in range(count):
            drawn().save(root / place / name / f"{i}.{ending}", quality=92)


def noise(side: int) -> Callable[[], Image.Image]:
    draw = np.random.default_rng(0)
    return lambda: Image.fromarray(draw.integers(0, 255, (side, side, 3)).astype("uint8"))


def of_pictures(root: Path, kind: str) -> list[Finding]:
    dataset = make("ImageFolder", {"root": str(root)})
    return [f for f in audit_of(dataset, inspect(dataset)) if f.kind == kind]


def planned(folder: Path, dataset: dict[str, str], **keys: Any) -> Plan:
    sweep = {"name": "s", "datasets": [dataset], "algorithms": ["ERM"], **keys}
    return make_plan(validate(sweep, "a test"), folder)


def test_plans_say_what_changes_a_number_and_keep_all(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    pictures(root, noise(8))
    for i in range(3):
        (root / "B" / "x" / f"{i}.png").write_bytes((root / "A" / "y" / f"{i}.png").read_bytes())
    dataset = {"name": "ImageFolder", "root": "pictures", "label": "p"}
    for _ in range(2):  # the second plan reads no file
        plan = planned(tmp_path, dataset, network="ConvNet")
        several, copies = plan.findings["p"]
        said = "3 pictures of 'A', 3 pictures of 'B' have other classes"
        assert several.sentence.startswith(said)
        assert copies.counts == {"examples": 3, "of": 40}
        assert {f"p: {each.sentence}" for each in (several, copies)} <= {*plan.notes}


def test_what_splits_do_to_classes_and_groups_is_said_in_plans(tmp_path: Path) -> None:
    data = frame()
    data.loc[:1, "target"] = "rare"
    data.to_csv(tmp_path / "t.csv", index=False)
    plan = planned(tmp_path, {"name": "Table", "file": "t.csv"}, trials=6)
    (lacking,) = [f for f in plan.findings["t"] if f.kind == "lacking class"]
    assert lacking.environments == ("A",) and 1 <= lacking.counts["rare"] <= 6
    assert f"t: {lacking.sentence}" in plan.notes
    data = frame().assign(patient=[f"P{i // 2}" for i in range(COUNT)])
    data.assign(split=np.resize(["in", "out"], COUNT)).to_csv(tmp_path / "t.csv", index=False)
    notes = planned(tmp_path, {"name": "Table", "file": "t.csv", "group": "patient"}).notes
    assert any("45 groups of 'A' are in its in and its out split" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (Image.Image.copy, {"quality": 60}),
        (Image.Image.copy, {"quality": 30}),
        (Image.Image.copy, {"format": "WEBP"}),
        (ImageOps.mirror, {}),
        (ImageOps.flip, {}),
        (lambda picture: picture.rotate(90), {}),
        (lambda picture: picture.convert("L"), {}),
        (ImageOps.invert, {}),
        (lambda picture: ImageOps.invert(picture.convert("L").rotate(90)), {}),
        (lambda picture: ImageOps.mirror(picture.convert("L")), {"format": "PNG"}),
    ],
)
def test_pictures_that_look_alike_are_copies(
    tmp_path: Path, change: Any, again: dict[str, Any]
) -> None:
    shades = noise(6)
    pictures(
        tmp_path, lambda: shades().resize((96, 96), Image.Resampling.BICUBIC), 30, ending="jpg"
    )
    assert not of_pictures(tmp_path, "copies")
    for i in range(9):
        with Image.open(tmp_path / "A/x" / f"{i}.jpg") as picture:
            change(picture).save(tmp_path / "B/y" / f"{i}.jpg", **{"format": "JPEG"} | again)
    (first, _) = of_pictures(tmp_path, "copies")
    assert first.counts["examples"] == 9 and "look like examples of 'A'" in first.sentence


def test_copies_among_pictures_without_skew(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)

    def drawn() -> Image.Image:
        shades = draw.permutation(np.tile([0, 255], 8)).reshape(4, 4).astype("uint8")
        return Image.fromarray(shades.repeat(8, 0).repeat(8, 1))

    pictures(tmp_path, drawn, 12)
    for i in range(9):
        with Image.open(tmp_path / "A/x" / f"{i}.png") as picture:
            picture.resize((64, 64), Image.Resampling.NEAREST).save(tmp_path / "B/y" / f"{i}.png")
    copies = of_pictures(tmp_path, "copies")
    assert len(copies) == 2 and copies[0].counts["examples"] == 9


@pytest.mark.parametrize("change", [{"size": (9, 9)}, {"format": "BMP"}])
def test_a_form_of_files_that_tells_the_class(tmp_path: Path, change: dict[str, Any]) -> None:
    pictures(tmp_path, noise(8))
    assert not of_pictures(tmp_path, "a telling form")
    for file in tmp_path.glob("*/y/*.png"):
        with Image.open(file) as picture:
            other = picture.resize(change.get("size", picture.size))
        other.save(file, format=change.get("format", "PNG"))
    (one,) = of_pictures(tmp_path, "a telling form")
    assert "PNG, 8 x 8 (x)" in one.sentence and "(y)" in one.sentence
    (tmp_path / "A/x/0.png").write_bytes((tmp_path / "A/y/0.png").read_bytes())
    assert not of_pictures(tmp_path, "a telling form")


class Unseeded(Dataset):
    """Other inputs at each load."""

    environments = ("A", "B")
    test_environments = ("B",)
    input_shape = (2,)
    task = Task("binary")

    def load(self, trial: int) -> dict[str, Environment]:
        draw = np.random.default_rng()
        x = {name: torch.from_numpy(draw.normal(size=(40, 2))).float() for name in "AB"}
        return {name: Environment(each, torch.arange(40) % 2.0) for name, each in x.items()}


def test_a_dataset_that_differs_at_each_load_is_said_in_plans(tmp_path: Path) -> None:
    register("Unseeded")(Unseeded)
    plan = planned(tmp_path, {"name": "Unseeded"})
    assert any("'A', 'B' differ each time that they are loaded" in note for note in plan.notes)


def test_of_many_findings_of_a_kind_some_are_shown(tmp_path: Path) -> None:
    data = frame().assign(environment=np.arange(COUNT) // 10)
    (tmp_path / "t.csv").write_text(data.to_csv(index=False))
    dataset = make("Table", {"file": "t.csv"}, tmp_path)
    said = sentences(audit_of(dataset, inspect(dataset)))
    assert len(said) < 20 and "and 21 more (small environment)" in said


def test_neighbours_are_those_of_all_pairs_in_all_ways() -> None:
    pixels = np.random.default_rng(0).normal(size=(200, 4, 4, 3))
    turns = [np.rot90(each, k, (1, 2)) for each in (pixels, pixels[:, ::-1]) for k in range(4)]
    apart = np.min(
        [np.linalg.norm((pixels[:, None] - t).reshape(200, 200, 48), axis=2) for t in turns], 0
    )
    radius = float(np.quantile(apart[~np.eye(200, dtype=bool)], 0.01))
    found = {(min(i, j), max(i, j)) for i, j in neighbours(pixels, radius).tolist()}
    assert found == {(i, j) for i, j in np.argwhere(apart <= radius).tolist() if i < j}


def with_gap_code(data: pd.DataFrame) -> pd.DataFrame:
    level = np.random.default_rng(1).normal(240, 40, len(data)).round()
    return data.assign(level=np.where(data["environment"] == "C", 0.0, level))


def of_patients(data: pd.DataFrame) -> pd.DataFrame:
    return data.assign(id=1000 + 37 * (np.arange(len(data)) % 40))


def halved(data: pd.DataFrame) -> pd.DataFrame:
    """Few rows of coarse columns, one of which follows from another."""
    age = np.random.default_rng(0).integers(20, 60, len(data))
    plain = data[["target", "environment"]].assign(age=age, decade=age // 10)
    return plain.assign(smoker=np.random.default_rng(1).integers(2, size=len(data)))


def resampled(data: pd.DataFrame) -> pd.DataFrame:
    plain = data.drop(columns="environment").sample(3 * len(data), replace=True, random_state=0)
    return plain.assign(environment=np.random.default_rng(0).choice([*"ABC"], len(plain)))


def of_codes(data: pd.DataFrame) -> pd.DataFrame:
    code = np.random.default_rng(2).integers(40, size=len(data))
    names = [f"q{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in code]
    return data.assign(code=names, target=np.where(code % 2, "yes", "no"))


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (with_gap_code, "a constant column", "'level' is 0 in every row of 'C', and from 1"),
        (
            of_patients,
            "an identifier",
            "40 of its 40 values are in several environments: if",
        ),
        (halved, "equal inputs", "share the inputs of examples of 'A', 'B': chance"),
        (resampled, "copies", "share the inputs of examples of 'A', 'B': copies of training"),
        (of_codes, "a telling column", "'code' alone tells the target (100 % of the classes)"),
    ],
)
def test_what_changes_numbers_in_silence_is_found(
    change: Callable[[pd.DataFrame], pd.DataFrame], kind: str, said: str, tmp_path: Path
) -> None:
    (first, *_) = found(tmp_path, change(frame()))[kind]
    assert said in first.sentence


def test_a_number_that_one_environment_never_measured_is_found(tmp_path: Path) -> None:
    data, there = frame(), frame()["environment"] == "B"
    filled = data.assign(height=data["height"].where(~there, 172.3))
    assert only(tmp_path, filled, "a constant column").environments == ("B",)
    rain = np.random.default_rng(0).gamma(1, 9, COUNT) * (np.arange(COUNT) % 3 > 0) * ~there
    assert found(tmp_path, data.assign(rain=rain.round(1))) == {}


def test_a_real_target_that_is_constant_in_an_environment_is_found(tmp_path: Path) -> None:
    data = with_gap_code(frame()).drop(columns="target").rename(columns={"level": "target"})
    (finding,) = found(tmp_path, data, kind="real")["a constant column"]
    assert finding.environments == ("C",)


def test_pictures_of_another_scale_are_found(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for name, scale in (("A", 1), ("B", 1), ("C", 16)):
        for label in ("cat", "dog"):
            (folder := tmp_path / name / label).mkdir(parents=True)
            for i in range(8):
                pixels = draw.integers(256, size=(4, 4, 3)) // scale
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{name}{label}{i}.png")
    dataset = make("ImageFolder", {"root": str(tmp_path)})
    (finding,) = [f for f in audit_of(dataset, inspect(dataset)) if f.kind == "another scale"]
    assert finding.environments[0] == "C"


def test_a_plan_refuses_to_drop_every_training_example(tmp_path: Path) -> None:
    data = frame().assign(person=np.arange(3 * SIZE) % SIZE)
    data.to_csv(tmp_path / "t.csv", index=False)
    entry = {"name": "Table", "file": "t.csv", "group": "person", "group_across": "drop"}
    sweep = validate({"name": "s", "datasets": [entry], "algorithms": ["ERM"], "steps": 1}, "s")
    with pytest.raises(UserError, match=r"drop` leaves nothing of '[AB]' to train on"):
        make_plan(sweep, tmp_path)
