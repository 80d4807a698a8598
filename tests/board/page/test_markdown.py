"""The page of a board: every number of it, from the runs themselves."""

import base64
import gzip
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from oodbench.board.page import tables
from oodbench.board.page.contents import Contents, contents
from oodbench.board.page.html import html_page
from oodbench.board.page.markdown import markdown_page
from oodbench.errors import UserError
from oodbench.results.boards import board_names, find_board, part_files
from tests.helpers.made_boards import Means, made_board
from tests.helpers.paths import ROOT

DRAWS, TRIALS = 6, 4
ALL = ("train_val", "val_env", "oracle")
MEANS: Means = {
    "alpha": {
        "ERM": 0.5,
        "A": 0.8,
        "B": 0.5,
        "C": 0.3,
        "D": 0.7,
        "E": None,
        "T": 0.9,
        "ceiling": 0.95,
    },
    "beta": {"ERM": 2.0, "A": 1.0, "B": 2.0, "C": 1.5, "T": 0.5, "ceiling": 0.4},
    "gamma": {"ERM": 0.4, "A": 0.4, "B": 0.4, "C": 0.2, "D": 0.3},
}
"""`E` has the runs of ERM. `beta` is an mse; `gamma` has a test set of two environments, and serves
`val_env` alone."""
CONSTANT = {"alpha": 0.6, "beta": 3.0, "gamma": 0.45}
"""No row is better than that of `gamma`."""
RANKED = ["ERM", "A", "B", "C"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("board") / "made.v1"


@pytest.fixture(scope="module")
def runs(folder: Path) -> pd.DataFrame:
    worst = "val_env:worst_group_accuracy"
    found = made_board(
        folder,
        MEANS,
        DRAWS,
        TRIALS,
        rules={"alpha": (*ALL, worst), "beta": ALL, "gamma": ("val_env",)},
        lower=("beta",),
        constant=CONSTANT,
        grouped=("alpha",),
        sets={"gamma": ("t", "u")},
        ceilings=("ceiling",),
        transductives=("T",),
        alone=("C",),
    )
    return found.assign(value=found[["t", "u"]].mean(axis=1))


@pytest.fixture(scope="module")
def text(folder: Path, runs: pd.DataFrame) -> str:
    return markdown_page(contents(str(folder)))


def part(text: str, title: str) -> str:
    """A section."""
    return re.split(rf"^## {title}$", text, flags=re.MULTILINE)[1].split("\n## ")[0]


def table(text: str, title: str) -> dict[str, dict[str, str]]:
    """The cells of a section's first table by row and column; rows are named without their marks."""
    first = part(text, title).partition("###")[0]
    lines = [line for line in first.splitlines() if line.startswith("| ")]
    header, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row[0].strip("*"): dict(zip(header[1:], row[1:], strict=True)) for row in rows}


def columns(found: dict[str, dict[str, str]]) -> list[str]:
    return list(next(iter(found.values())))


def sentences(text: str) -> list[str]:
    return re.findall("^- (.*)$", part(text, "Findings"), flags=re.MULTILINE)


def chosen(runs: pd.DataFrame, rule: str, draws: int = DRAWS) -> pd.DataFrame:
    """The run of each dataset, label and trial with the best score."""
    own = runs[runs["draw"] < draws].dropna(subset=[rule])
    score = own[rule].where(own["up"], -own[rule])
    if ":" in rule:
        score = own[rule]
    return own.loc[score.groupby([own["dataset"], own["label"], own["trial"]]).idxmax()]


def averages(runs: pd.DataFrame, rule: str = "val_env", draws: int = DRAWS) -> "pd.Series[float]":
    return chosen(runs, rule, draws).groupby(["dataset", "label"])["value"].mean()


def mean_ranks(means: "pd.Series[float]", datasets: list[str]) -> dict[str, float]:
    """The mean over datasets of one more than the number of better rows."""
    found = {}
    for label in RANKED:
        places = []
        for dataset in datasets:
            sign = -1 if dataset == "beta" else 1
            better = [sign * (means[dataset, x] - means[dataset, label]) > 0 for x in RANKED]
            places.append(1 + sum(better))
        found[label] = float(np.mean(places))
    return found


def gains(runs: pd.DataFrame, dataset: str, label: str) -> tuple[float, float, float]:
    """The gain over ERM, paired by trial, and the ends of its interval."""
    own = chosen(runs, "val_env").query("dataset == @dataset").set_index(["label", "trial"])
    difference = own["value"][label] - own["value"]["ERM"]
    difference = -difference if dataset == "beta" else difference
    half = stats.t.ppf(0.975, TRIALS - 1) * difference.std(ddof=1) / math.sqrt(TRIALS)
    return difference.mean(), difference.mean() - half, difference.mean() + half


def signs(runs: pd.DataFrame, label: str) -> set[int]:
    found = set()
    for dataset in (d for d in MEANS if label in MEANS[d]):
        _, low, high = gains(runs, dataset, label)
        found.add(1 if low > 0 else -1 if high < 0 else 0)
    return found


def cell(runs: pd.DataFrame, dataset: str, label: str, rule: str = "val_env") -> str:
    own = chosen(runs, rule).query("dataset == @dataset and label == @label")["value"]
    error = own.std(ddof=1) / math.sqrt(TRIALS)
    if dataset == "beta":
        return f"{own.mean():#.4g} ± {error:.2g}"
    return f"{100 * own.mean():.1f} ± {100 * error:.1f}"


@pytest.mark.parametrize("rule", ["val_env", "train_val"])
def test_results_are_means_of_what_the_rule_chose(runs: pd.DataFrame, text: str, rule: str) -> None:
    found = table(text, f"Results by {rule}")
    datasets = list(MEANS) if rule == "val_env" else ["alpha", "beta"]
    assert columns(found)[: len(datasets)] == datasets and columns(found)[-1] == "mean rank"
    for dataset in datasets:
        for label in MEANS[dataset]:
            assert found[label][dataset].strip("*") == cell(runs, dataset, label, rule)
    ranks = mean_ranks(averages(runs, rule), datasets)
    told = {x: found[x]["mean rank"].strip("*") for x in found}
    assert told == {x: f"{ranks[x]:.2f}" if x in ranks else "-" for x in found}
    assert ("Without gamma" in part(text, f"Results by {rule}")) == (rule == "train_val")


def test_what_is_not_ranked_is_grey(text: str) -> None:
    found = part(text, "Results by val_env")
    assert re.findall(r"^\| \*(\w+)\* ", found, re.MULTILINE) == ["T", "ceiling", "constant"]
    assert "Predictions of T depend on the other test inputs." in found
    assert "T" not in table(text, "Gains over ERM")
    assert "ceiling" not in table(text, "Gains over ERM")


def test_head_room_is_between_the_constant_answer_and_the_ceiling(
    runs: pd.DataFrame, text: str
) -> None:
    found, means = table(text, "Datasets"), averages(runs)
    for dataset in MEANS:
        rows = [x for x in MEANS[dataset] if x not in ("T", "ceiling")]
        pick = min if dataset == "beta" else max
        best = pick(rows, key=lambda x: means[dataset, x])
        assert found[dataset]["best"] == f"{best}: {cell(runs, dataset, best)}"
        assert found[dataset]["ERM"] == cell(runs, dataset, "ERM")
        constant = float(found[dataset]["constant"].split(" ± ")[0])
        assert constant == CONSTANT[dataset] * (1 if dataset == "beta" else 100)
        ceiling = cell(runs, dataset, "ceiling") if "ceiling" in MEANS[dataset] else "-"
        assert found[dataset]["ceiling"] == ceiling
        assert found[dataset]["shift"] == f"shift of {dataset}"
    assert [row["metric"] for row in found.values()] == ["accuracy", "mse", "accuracy"]


def test_gains_are_paired_and_those_beyond_zero_bold(runs: pd.DataFrame, text: str) -> None:
    found = table(text, "Gains over ERM")
    assert columns(found) == ["alpha (points)", "beta (mse)", "gamma (points)"]
    assert sorted(found) == ["A", "B", "C", "D", "E"]
    assert found["E"]["alpha (points)"] == "equal"
    for (dataset, own), column in zip(MEANS.items(), columns(found), strict=True):
        for label in "ABCD":
            if label not in own:
                assert found[label][column] == "-"
                continue
            mean, low, high = gains(runs, dataset, label)
            kind, scale = ("+.3g", 1) if dataset == "beta" else ("+.1f", 100)
            texts = [f"{scale * v:{kind}}" for v in (mean, low, high)]
            expected = f"{texts[0]} [{texts[1]}, {texts[2]}]"
            assert found[label][column].strip("*") == expected
            assert found[label][column].startswith("**") == (low > 0 or high < 0)
    assert "There are 11 intervals" in part(text, "Gains over ERM")


def test_precision_is_the_median_half_width_over_rows(runs: pd.DataFrame, text: str) -> None:
    found = table(text, "Precision")
    assert list(found) == list(MEANS)
    critical = stats.t.ppf(0.975, TRIALS - 1)
    power = optimize.brentq(lambda s: stats.nct.sf(critical, TRIALS - 1, s) - 0.8, 0.1, 50)
    for dataset, own in MEANS.items():
        labels = [label for label in "ABCD" if label in own]
        halves = [(high - low) / 2 for _, low, high in (gains(runs, dataset, x) for x in labels)]
        means = averages(runs)
        both = [float(means[dataset, x]) for x in ("ERM", "ceiling") if x in own]
        room = abs(both[-1] - both[0]) if "ceiling" in own else math.nan
        points, limit = dataset != "beta", 0.05 * room
        scale, kind = (100, ".1f") if points else (1, ".3g")
        row = found[dataset]
        assert row["half-width"] == f"{scale * np.median(halves):{kind}}"
        assert row["detectable"] == f"{scale * np.median(halves) * power / critical:{kind}}"
        if math.isnan(room):
            assert (row["head-room"], row["half-width / head-room"]) == ("-", "-")
        else:
            assert row["head-room"] == f"{scale * room:{kind}}"
            assert row["half-width / head-room"] == f"{100 * np.median(halves) / room:.0f} %"
        narrow = sum(half <= limit or (points and half <= 0.02) for half in halves)
        assert row["narrow rows"] == f"{narrow} of {len(labels)}"


def test_ranks_are_those_of_each_rule_of_fewer_draws_and_without_a_dataset(
    runs: pd.DataFrame, text: str
) -> None:
    found, datasets = table(text, "Ranks"), list(MEANS)
    served = {"val_env": datasets, "train_val": ["alpha", "beta"], "oracle": ["alpha", "beta"]}
    expected = {r: mean_ranks(averages(runs, r), own) for r, own in served.items()}
    for name, count in (("1 draw", 1), ("5 draws", 5)):
        expected[name] = mean_ranks(averages(runs, "val_env", count), datasets)
    title = {n: f"{n} (2 datasets)" if n in ("train_val", "oracle") else n for n in expected}
    assert columns(found) == [*title.values(), "without a dataset"]
    rest = [[d for d in datasets if d != out] for out in datasets]
    without = [mean_ranks(averages(runs), left) for left in rest]
    for label in RANKED:
        for name, ranks in expected.items():
            assert float(found[label][title[name]]) == pytest.approx(ranks[label], abs=0.005)
        own = [ranks[label] for ranks in without]
        assert found[label]["without a dataset"] == f"{min(own):.2f} to {max(own):.2f}"
    assert set(found) == {*RANKED, "Kendall's tau with val_env"}
    row = {name: text.strip("*") for name, text in list(found.values())[-1].items()}
    for name in ("train_val", "oracle", "1 draw", "5 draws"):
        ranks = mean_ranks(averages(runs), served.get(name, datasets))
        tau = stats.kendalltau(*([r[x] for x in RANKED] for r in (ranks, expected[name]))).statistic
        assert row[title[name]] == f"{tau:.2f}"
    own = [expected["val_env"][x] for x in RANKED]
    taus = [stats.kendalltau(own, [ranks[x] for x in RANKED]).statistic for ranks in without]
    assert row["without a dataset"] == f"{min(taus):.2f} to {max(taus):.2f}"
    # 2.569 is q of 4 rows at 5 % (Demšar 2006, table 5)
    for count in (3, 2):
        width = 2.569 * math.sqrt(4 * 5 / (6 * count))
        differ = "datasets differ beyond chance (Nemenyi, 5 %) if they are"
        assert f"4 rows on {count} {differ} {width:.1f}" in text


def test_shares_close_to_the_best_are_of_errors(runs: pd.DataFrame, text: str) -> None:
    found, means = table(text, "Close to the best"), averages(runs)
    ratios: dict[str, list[float]] = {label: [] for label in RANKED}
    for dataset in MEANS:
        own = {x: means[dataset, x] for x in MEANS[dataset] if x not in ("T", "ceiling")}
        errors = own if dataset == "beta" else {x: 1 - mean for x, mean in own.items()}
        for label in RANKED:
            ratios[label].append(errors[label] / min(errors.values()))
    assert sorted(found) == sorted(RANKED)
    for label in RANKED:
        for near in (5, 10, 25, 50):
            share = np.mean([ratio <= 1 + near / 100 for ratio in ratios[label]])
            assert found[label][f"within {near} %"] == f"{share:.2f}"
    assert len({cell for row in found.values() for cell in row.values()}) > 2
    order = [[float(cell) for cell in row.values()] for row in found.values()]
    assert order == sorted(order, reverse=True)


def test_costs_are_beside_those_of_the_baseline(runs: pd.DataFrame, text: str) -> None:
    found = table(text, "Cost")
    seconds = runs.groupby(["label", "dataset"])["seconds"].min()
    for label in ("ERM", "A", "B", "C", "D", "E"):
        ratios = []
        for dataset in MEANS:
            if label not in MEANS[dataset]:
                assert found[label][dataset] == "-"
                continue
            ratios.append(seconds[label, dataset] / seconds["ERM", dataset])
            alone = " alone" if label == "C" else ""
            assert found[label][dataset] == f"{ratios[-1]:.1f}{alone}"
        assert found[label]["median"] == f"{np.median(ratios):.1f}"
    last = [cell.strip("*") for cell in found["ERM, seconds"].values()]
    assert last == [f"{v:.2f}" for v in (seconds["ERM"].median(), *seconds["ERM"][list(MEANS)])]


def test_the_worst_group_is_selected_by_its_own_rule(runs: pd.DataFrame, text: str) -> None:
    found = table(text, "The worst group")
    assert "ceiling" not in found  # the test environment has a smallest group, too
    own = chosen(runs, "val_env:worst_group_accuracy").query("label not in ('T', 'ceiling')")
    for label, worst in own.groupby("label")["worst"]:
        error = worst.std(ddof=1) / math.sqrt(TRIALS)
        told = re.sub("</?u>", "", next(iter(found[str(label)].values()))).strip("*")
        assert told == f"{100 * worst.mean():.1f} ± {100 * error:.1f}"


def test_findings_of_datasets_count_rows_beyond_zero(runs: pd.DataFrame, text: str) -> None:
    for dataset in MEANS:
        labels = [x for x in "ABCDE" if x in MEANS[dataset]]
        found = {label: gains(runs, dataset, label) for label in labels}
        better = sorted((x for x in labels if found[x][1] > 0), key=lambda x: -found[x][0])
        worse = int(sum(found[x][2] < 0 for x in labels))
        (told,) = [s for s in sentences(text) if s.startswith(f"**{dataset}**")]
        equal = [x for x in labels if found[x] == (0, 0, 0)]
        same = f"; exactly ERM's numbers have {', '.join(equal)}" if equal else ""
        assert told.endswith(f"; {worse or 'none'} lose{'s' * (worse < 2)}{same}.")
        if not better:
            assert f"no row of {len(labels)} gains over ERM" in told
            continue
        gain = "gains" if len(better) == 1 else "gain"
        assert f"{len(better)} of {len(labels)} rows {gain} over ERM: " in told
        column = f"{dataset} ({'mse' if dataset == 'beta' else 'points'})"
        number = table(text, "Gains over ERM")[better[0]][column].strip("*")
        assert f": {better[0]} ({number} " in told
        assert (f", then {', '.join(better[1:])};" in told) == (len(better) > 1)


def test_findings_of_rows_that_never_gain_or_never_lose(runs: pd.DataFrame, text: str) -> None:
    own = {label: signs(runs, label) for label in "ABCDE"}
    never = {x for x in own if 1 not in own[x]}
    safe = {x for x in own if 1 in own[x] and -1 not in own[x]}
    assert never and safe and {x for x in own if {1, -1} <= own[x]}
    told = {s.partition(": ")[0]: s.partition(": ")[2].rstrip(".") for s in sentences(text)}
    assert set(told["Rows that gain over ERM on no dataset"].split(", ")) == never
    named = told["Rows that gain somewhere and, where they can be run, lose nowhere"]
    assert set(named.split(", ")) == safe


def test_selection_costs_what_the_oracle_has_more(runs: pd.DataFrame, text: str) -> None:
    oracle = averages(runs, "oracle").xs("alpha").drop(["T", "ceiling"])
    for rule in ("val_env", "train_val"):
        lost = 100 * (oracle - averages(runs, rule).xs("alpha")).mean()
        (told,) = [s for s in sentences(text) if s.startswith(f"Selection by {rule} ")]
        assert f"costs {lost:.1f} points" in told  # alpha alone has accuracies by the oracle
        assert table(text, "What selection costs")[rule] == dict.fromkeys(
            ("alpha", "mean"), f"{lost:z.1f}"
        )


def lost_by_rows(runs: pd.DataFrame) -> "pd.Series[float]":
    """The points that each row has less by `val_env` than by the oracle, on the test environment `t`."""
    runs = runs.assign(value=runs["t"])
    return 100 * (averages(runs, "oracle") - averages(runs, "val_env"))


def test_rows_beyond_the_critical_difference_are_found(tmp_path: Path, text: str) -> None:
    assert (
        "Rows whose mean rank is ahead of ERM's by more than the critical difference: none; "
        in text
    )
    datasets = [f"d{i}" for i in range(12)]
    means: Means = {d: {"ERM": 0.5, "up": 0.8, "down": 0.2} for d in datasets}
    rules = dict.fromkeys(datasets, ("val_env", "oracle"))
    runs = made_board(tmp_path / "b", means, 3, 2, rules=rules)
    found = markdown_page(contents(str(tmp_path / "b")))
    # 2.343 sqrt(3 * 4 / (6 * 12)) = .96 is less than the difference of 1
    assert "by more than the critical difference: up; behind it by more: down." in found
    lost = lost_by_rows(runs).groupby("dataset").mean()
    assert f"most on {lost.idxmax()} ({lost.max():.1f})." in found


def test_what_selection_costs_counts_a_dataset_with_few_rows_as_much(tmp_path: Path) -> None:
    means: Means = {"few": {"ERM": 0.5}, "many": {"ERM": 0.5} | {f"R{i}": 0.6 for i in range(4)}}
    rules = dict.fromkeys(means, ("val_env", "oracle"))
    runs = made_board(tmp_path / "b", means, 3, 2, rules=rules)
    lost = lost_by_rows(runs).groupby("dataset").mean().mean()
    assert round(lost, 1) != round(lost_by_rows(runs).mean(), 1)
    found = markdown_page(contents(str(tmp_path / "b")))
    assert f"Selection by val_env costs {lost:.1f} points" in found
    assert table(found, "What selection costs")["val_env"]["mean"] == f"{lost:z.1f}"


def test_precision_leaves_out_rows_that_diverged(board: Contents) -> None:
    """`D` diverged on alpha."""
    gains = board.gains.items()
    assert math.isnan(board.gains["alpha", "D"].detectable)
    others = replace(board, gains={(d, x): gain for (d, x), gain in gains if x != "D"})
    assert tables.precision(board).rows[0] == tables.precision(others).rows[0]


def test_a_board_whose_rule_cannot_judge_a_dataset_has_no_page(tmp_path: Path) -> None:
    means: Means = {"alpha": {"ERM": 0.5, "A": 0.6}, "beta": {"ERM": 0.5, "A": 0.7}}
    rules = {"alpha": ("val_env",), "beta": ("train_val",)}
    made_board(tmp_path / "mixed.v1", means, 2, 3, rules=rules)
    with pytest.raises(UserError, match=r"cannot judge (alpha|beta): no page"):
        contents(str(tmp_path / "mixed.v1"))


def test_datasets_may_have_other_numbers_of_trials(tmp_path: Path) -> None:
    means: Means = {d: {"ERM": 0.5, "A": 0.6, "ceiling": 0.9} for d in ("few", "many")}
    rules = dict.fromkeys(means, ("val_env",))
    rest: dict[str, Any] = {"ceilings": ("ceiling",), "own_trials": {"many": 9}}
    made_board(tmp_path / "b", means, 2, 4, rules=rules, **rest)
    text = markdown_page(contents(str(tmp_path / "b")))
    assert "2 rows on 2 datasets, 2 of them on all, 2 draws x 4 to 9 trials each: 78 runs." in text
    assert [row["trials"] for row in table(text, "Precision").values()] == ["4", "9"]


def test_many_rows_that_gain_are_counted(tmp_path: Path) -> None:
    means: Means = {"d": {"ERM": 0.3} | {f"R{i}": 0.5 + 0.05 * i for i in range(8)}}
    made_board(tmp_path / "b", means, 1, 5, rules={"d": ("val_env",)})
    (told,) = [
        s for s in sentences(markdown_page(contents(str(tmp_path / "b")))) if s.startswith("**d**")
    ]
    assert "8 of 8 rows gain over ERM: R7 (" in told
    assert told.endswith(", then R6, R5, R4, R3, R2 and 2 more; none loses.")


def test_the_page_says_what_there_is(text: str) -> None:
    assert "7 rows on 3 datasets, 4 of them on all, 6 draws x 4 trials each: 456 runs." in text
    assert "Not frozen yet" not in text


@pytest.mark.slow
def test_committed_pages_are_what_the_boards_say() -> None:
    for name in board_names():
        if any(part_files(find_board(name))):
            board, file = contents(name), ROOT / "docs" / "boards" / f"{name}.md"
            assert file.read_text() == markdown_page(board)
            assert opened(file.with_suffix(".html").read_text()) == opened(html_page(board))


def opened(text: str) -> tuple[str, bytes]:
    """An HTML page, and its runs, which another library may have compressed otherwise."""
    runs = re.search('id="runs">(.*?)</script>', text)
    assert runs
    return text.replace(runs[1], ""), gzip.decompress(base64.b64decode(runs[1]))
