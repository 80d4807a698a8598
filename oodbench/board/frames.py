"""Parts of a board from the frames of a results directory, and frames from parts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from oodbench.board.files import PROTOCOL_FILE
from oodbench.board.parts import (
    COUNT,
    OF_A_RUN,
    OWN_COUNT,
    RUN,
    SCORE,
    VALUE,
    About,
    Constant,
    Part,
    PartProvenance,
)
from oodbench.results.frames import Frames
from oodbench.results.parse import COSTS
from oodbench.results.run_spec import RunSpec, State
from oodbench.yaml_values import read_yaml


def part_of(frames: Frames, chosen: pd.DataFrame, provenance: PartProvenance) -> Part:
    """The part of runs of one row on one dataset, all of which have ended.

    `chosen` has the `id`, `rule`, `step` and `score` of each run's candidate by each rule.
    """
    runs = frames.runs.set_index("id", drop=False)
    first = runs.iloc[0]
    rules = list(chosen["rule"].drop_duplicates())
    scores = chosen.pivot(index=["id", "step"], columns="rule", values="score")
    there = chosen.assign(there=True).pivot(index=["id", "step"], columns="rule", values="there")
    order = {run_id: i for i, run_id in enumerate(runs["id"])}
    rows = sorted(scores.index, key=lambda row: (order[row[0]], row[1]))
    of_row = runs.loc[[run_id for run_id, _ in rows]]
    columns: dict[str, Any] = {
        "id": list(of_row["id"]),
        **{name: of_row[name].astype(int).tolist() for name in ("draw", "trial", "last_step")},
        **{
            f"{kind}_environments": [list(names) for names in of_row[f"{kind}_environments"]]
            for kind in ("test", "validation", "training")
        },
        **{
            name: [json.dumps(values, sort_keys=True) for values in of_row[name]]
            for name in ("hparams", "network_hparams")
        },
        "vectorized": [bool(p.get("vectorized", False)) for p in of_row["provenance"]],
        "diverged": [state == State.DIVERGED for state in of_row["state"]],
        "seconds": of_row[["training_seconds", "evaluation_seconds"]].astype(float).sum(axis=1),
        "step": [step for _, step in rows],
    }
    table = pa.table({name: pa.array(columns[name], RUN.field(name).type) for name in RUN.names})
    for rule in rules:
        known = there.reindex(rows)[rule].isna().to_numpy()
        values = scores.reindex(rows)[rule].to_numpy(float)
        column = pa.array(values, pa.float64(), mask=known, from_pandas=False)
        table = table.append_column(f"{SCORE}{rule}", column)
    for name, column in _value_columns(frames, rows):
        table = table.append_column(name, column)
    spec = spec_of(first)
    shared = {name: value for name, value in asdict(spec).items() if name not in OF_A_RUN}
    known_of_run = {"dataset_label", "metric", "higher_is_better", "family", "shift", "classes"}
    context = {
        name: _plain(first[name]) for name in sorted(known_of_run & set(runs)) if _told(first[name])
    }
    about = About(
        spec=shared,
        context=context | {"training_environments": []},  # type: ignore[arg-type]
        constants=_constants(frames.runs),
        selection=first.get("selection") or None,
        provenance=provenance,
    )
    return Part(about, table)


def spec_of(run: "pd.Series[Any]") -> RunSpec:
    """The spec of a row of `Frames.runs`; a field that an older plan lacks is missing there."""
    return RunSpec.from_json({str(k): _plain(v) for k, v in run.items() if not _is_missing(v)})


def _is_missing(value: object) -> bool:
    return isinstance(value, float) and np.isnan(value)


def _told(value: object) -> bool:
    return value is not None and not _is_missing(value)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value.item() if isinstance(value, np.generic) else value


def _value_columns(
    frames: Frames, rows: Sequence[tuple[str, int]]
) -> Iterator[tuple[str, pa.Array]]:
    """The columns of values and counts at these runs and steps."""
    names = dict.fromkeys(("id", "environment", "split", "metric"), object)
    found = frames.metrics.astype(names)
    tests = frames.runs.set_index("id")["test_environments"]
    places = zip(found["split"], found["environment"], found["id"].map(tests), strict=True)
    kept = [e is None or e != e or (s == "in" and e in names) for s, e, names in places]
    found = found[kept]
    found = found.assign(environment=found["environment"].fillna(""))
    index = pd.MultiIndex.from_tuples(rows)
    most = found.groupby(["id", "step", "environment"])["count"].max()
    for environment, counts in most.groupby("environment", sort=True):
        yield f"{COUNT}{environment}", _counts(counts.droplevel("environment"), index)
    for (metric, environment), group in found.groupby(["metric", "environment"], sort=True):
        of_metric = group.set_index(["id", "step"])
        missing = ~index.isin(of_metric.index)
        values = of_metric["value"].reindex(index).to_numpy(float)
        place = f"{_escaped(metric)}/{environment}"
        yield f"{VALUE}{place}", pa.array(values, pa.float64(), mask=missing, from_pandas=False)
        whole = most.xs(environment, level="environment").reindex(of_metric.index)
        if not of_metric["count"].eq(whole).all():
            yield f"{OWN_COUNT}{place}", _counts(of_metric["count"], index)


def _counts(counts: "pd.Series[Any]", index: pd.MultiIndex) -> pa.Array:
    """The counts at these runs and steps, null where there are none."""
    missing = ~index.isin(counts.index)
    return pa.array(counts.reindex(index).fillna(0).to_numpy(np.int32), mask=missing)


def _escaped(metric: str) -> str:
    """A metric's name without slashes, which part it from the environment in the name of a column."""
    return metric.replace("%", "%25").replace("/", "%2f")


def _constants(runs: pd.DataFrame) -> list[Constant]:
    """The constant answers of the runs, on the `in` splits of their test environments."""
    found: dict[tuple[tuple[str, ...], int], Constant] = {}
    if "constant" not in runs:
        return []
    for tests, trial, constant in runs[["test_environments", "trial", "constant"]].itertuples(
        index=False
    ):
        if isinstance(constant, Mapping) and constant and (tests, trial) not in found:
            values = {
                metric: {e: {"in": v["in"]} for e, v in of_metric.items() if e in tests}
                for metric, of_metric in constant.items()
            }
            found[tests, trial] = {
                "test_environments": list(tests),
                "trial": int(trial),
                "values": values,
            }
    return list(found.values())


def board_frames(parts: Sequence[Part]) -> Frames:
    """The runs of parts as `oodbench.results.frames` has those of a results directory.

    The records are those of the chosen steps on the test environments; `Frames.scores` has what the
    selection rules need of the others. The runs have a column `frozen` (true).
    """
    columns, records, scores = [], _Pieces(), _Pieces()
    before = 0
    for part in parts:
        columns.append(_run_columns(part))
        step = part.table["step"].to_numpy()
        run = before + pd.factorize(part.table["id"].to_numpy())[0]
        there = set(part.table.column_names)
        for name in part.table.column_names:
            kind, _, rest = name.partition("/")
            rows = np.flatnonzero(pc.is_valid(part.table[name]).to_numpy())
            value = part.table[name].to_numpy()[rows]
            if kind + "/" == SCORE:
                scores.add(run[rows], step[rows], value, rule=rest)
            elif kind + "/" == VALUE:
                metric, _, environment = rest.partition("/")
                split = "in" if environment else ""
                own = f"{OWN_COUNT}{rest}"
                counts = part.table[own if own in there else f"{COUNT}{environment}"]
                count = counts.to_numpy()[rows].astype(np.int32)
                metric = metric.replace("%2f", "/").replace("%25", "%")
                names = {"environment": environment, "split": split, "metric": metric}
                records.add(run[rows], step[rows], value, count, **names)
        before += len(columns[-1]["id"])
    known = dict.fromkeys(name for of_part in columns for name in of_part)
    nothing = [[None] * len(of_part["id"]) for of_part in columns]
    runs = pd.DataFrame(
        {
            name: [
                value
                for of_part, missing in zip(columns, nothing, strict=True)
                for value in of_part.get(name, missing)
            ]
            for name in known
        }
    )
    ids = pd.Index(runs["id"])
    metrics = records.frame(ids)[list(Frames.METRIC_COLUMNS)]
    judged = scores.frame(ids).rename(columns={"value": "score"})
    judged = judged.astype({"id": object, "rule": object})
    return Frames(runs, metrics, judged[["id", "rule", "step", "score"]])


class _Pieces:
    """Columns of numbers that share their names, to be put under each other."""

    def __init__(self) -> None:
        self.numbers: list[tuple[Any, ...]] = []
        self.names: list[dict[str, str]] = []

    def add(self, *numbers: Any, **names: str) -> None:
        """Add run, step, value and perhaps count, arrays of one length, under these names."""
        self.numbers.append(numbers)
        self.names.append(names)

    def frame(self, ids: "pd.Index[str]") -> pd.DataFrame:
        """All pieces; `id` and the names are categorical, an empty name is missing."""
        run, *numbers = (np.concatenate(column) for column in zip(*self.numbers, strict=True))
        columns: dict[str, Any] = {"id": pd.Categorical.from_codes(run, ids)}
        sizes = [len(piece[0]) for piece in self.numbers]
        for name in self.names[0]:
            code, known = pd.factorize(np.array([names[name] or None for names in self.names]))
            columns[name] = pd.Categorical.from_codes(np.repeat(code, sizes), pd.Index(known))
        columns |= dict(zip(("step", "value", "count"), numbers, strict=False))
        return pd.DataFrame(columns)


def _run_columns(part: Part) -> dict[str, list[Any]]:
    """The columns of `Frames.runs` for a part."""
    about, runs = part.about, part.run_columns()
    vectorized, diverged, seconds = (runs.pop(n) for n in ("vectorized", "diverged", "seconds"))
    shared: dict[str, Any] = {
        **about.spec,
        **about.context,
        **dict.fromkeys(COSTS),
        "dataset_label": part.dataset,
        "error": "",
        "search": "random",
        "selection": about.selection,
        "frozen": True,
    }
    constants = {(tuple(c["test_environments"]), c["trial"]): c["values"] for c in about.constants}
    provenances = {v: dict(about.provenance) | {"vectorized": v} for v in (False, True)}
    places = zip(runs["test_environments"], runs["trial"], strict=True)
    return {
        **{name: [value] * len(diverged) for name, value in shared.items()},
        **runs,
        "state": [State.DIVERGED if d else State.DONE for d in diverged],
        "provenance": [provenances[v] for v in vectorized],
        "constant": [constants.get(place) for place in places],
        "training_seconds": seconds,
    }


def in_order(parts: Sequence[Part], board: Path) -> list[Part]:
    """The parts in the order of the board's protocol; those that it does not list are the last."""
    protocol = read_yaml(board / PROTOCOL_FILE)
    datasets, rows = protocol.get("datasets", []), protocol.get("algorithms", [])

    def place(part: Part) -> tuple[int, int, str, str]:
        dataset = next((i for i, d in enumerate(datasets) if _names(d, part)), len(datasets))
        labels = [r.get("label") or r.get("name") if isinstance(r, dict) else r for r in rows]
        row = labels.index(part.label) if part.label in labels else len(labels)
        return dataset, row, part.dataset, part.label

    return sorted(parts, key=place)


def _names(dataset: str | Mapping[str, Any], part: Part) -> bool:
    """Whether an entry of a protocol's datasets is that of a part."""
    options = {"name": dataset} if isinstance(dataset, str) else dict(dataset)
    name, label = options.pop("name", None), options.pop("label", None)
    if label is not None:
        return bool(label == part.dataset)
    own = part.about.spec["options"]
    return name == part.about.spec["dataset"] and all(
        own.get(k, v) == v for k, v in options.items()
    )
