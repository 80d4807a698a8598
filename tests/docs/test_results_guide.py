"""The guide's page on results describes the two tables as they are written, and what reads them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from oodbench.metrics import metrics, of_predictions, values_of_examples
from oodbench.report.comparison import table
from oodbench.results.directory import Directory
from oodbench.results.parquet import JSON, NAMES, RECORDS, REPEATED, RUNS
from oodbench.results.predictions import Predictions
from oodbench.sweep.file import validate
from oodbench.sweep.launch import LaunchOptions, launch
from oodbench.tasks import Task
from tests.helpers.paths import ROOT, blocks
from tests.helpers.results.sweeps import TINY, ended, first

GUIDE = "docs/guide/results_format.md"
PAGE = (ROOT / GUIDE).read_text()
WORDS = {pa.string(): "text", REPEATED: "text", pa.bool_(): "truth"}
WORDS |= {pa.int32(): "integer", pa.float64(): "number", NAMES: "list of texts"}


def described(name: str) -> list[tuple[str, str]]:
    """The columns of a table with their types, as the page lists them."""
    rows = PAGE.partition(f"| {name} | type | meaning |")[2].partition("\n\n")[0].splitlines()[2:]
    found = []
    for row in rows:
        columns, kinds = (cell.split(", ") for cell in row.strip("| ").split(" | ")[:2])
        kinds *= len(columns) if len(kinds) == 1 else 1
        found += [(c.strip("`"), k) for c, k in zip(columns, kinds, strict=True)]
    return found


@pytest.mark.parametrize(("name", "schema"), [("runs", RUNS), ("records", RECORDS)])
def test_it_lists_every_column_with_its_type(name: str, schema: pa.Schema) -> None:
    written = [(f.name, "JSON" if f.name in JSON else WORDS[f.type]) for f in schema]
    assert sorted(described(name)) == sorted(written)


def test_its_metrics_are_recorded_or_of_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_classes", dict(metrics.items()))
    for code in blocks(GUIDE):
        if "@register" in code:
            exec(code, {"__name__": "guide"})
    values = values_of_examples(Task("multiclass", 3), torch.zeros(2, 3), torch.tensor([0, 1]))
    assert values["confidence"].tolist() == pytest.approx([1 / 3, 1 / 3])
    errors = of_predictions("errors")
    predictions = Predictions("multiclass", np.eye(3), np.array([0, 1, 1]), np.zeros(3, dtype=bool))
    assert errors is not None and errors.of_predictions(predictions) == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory, with the results of a sweep in results/mine."""
    root = tmp_path_factory.mktemp("guide")
    options = LaunchOptions(out=root / "results" / "mine", launcher="debug", table=False)
    launch(validate({**TINY, "name": "mine", "hparam_draws": 2, "trials": 3}, "mine"), options)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield root


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_pandas_and_duckdb_make_the_leaderboard() -> None:
    wanted = table("results/mine", rule="train_val").frame
    wanted = wanted[wanted["environment"].eq("mean") & wanted["kind"].eq("method")]
    wanted = wanted.set_index("label")[["mean", "stderr", "n"]].sort_index()
    (code,) = (text for text in blocks(GUIDE) if "leaderboard =" in text)
    names: dict[str, pd.DataFrame] = {}
    exec(code, names)
    (query,) = blocks(GUIDE, "sql")
    relation = duckdb.sql(query)
    assert relation is not None
    by_sql = relation.df().set_index("label")[["mean", "sem", "n"]]
    for found in (names["leaderboard"].droplevel("dataset_label"), by_sql):
        found.columns = wanted.columns
        pd.testing.assert_frame_equal(found.sort_index(), wanted, check_dtype=False, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_pandas_alone_makes_the_mean_ranks() -> None:
    named = ("judge(", "leaderboard =", "mean_ranks =")
    codes = {name: code for code in blocks(GUIDE) for name in named if name in code}
    lines = codes["judge("].splitlines()
    ours: dict[str, Any] = {}
    exec("\n".join([*lines[:-1], f"wanted = {lines[-1]}"]), ours)
    listed = PAGE.partition("Its columns are ")[2].partition(", which `help(")[0]
    assert re.findall(r"`(\w+)`", listed) == list(ours["table"])
    alone: dict[str, Any] = {}
    for name in named[1:]:
        exec(codes[name], alone)
    found = alone["mean_ranks"]
    assert list(found) == sorted(found) and set(found) <= {1.0, 1.5, 2.0}
    assert dict(found) == pytest.approx(dict(ours["wanted"]))


@pytest.mark.slow
def test_lines_of_a_run_are_a_table(folder: Path, tmp_path: Path) -> None:
    run = ended(first(), tmp_path / "runs" / first().id)
    (shown,) = map(json.loads, blocks(GUIDE, "json"))
    lines = pd.read_json(run.path / "metrics.jsonl", lines=True)
    kinds = {re.sub("[/(].*", "", key) for key in map(str, lines)}
    assert kinds >= {"step", "mse", "training_seconds", "loss"}
    assert {re.sub("[/(].*", "", key) for key in shown} >= {"step", "training_seconds", "loss"}
    assert lines["mse/0.2/in"].dtype == float
    stored = {p.name for p in Directory(folder / "results" / "mine").path.iterdir()}
    assert [name for name in stored if name not in PAGE] == []
