"""Freeze results as the parts of a board."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from oodbench.board.checks import refuse, wrong_results
from oodbench.board.protocol import protocol_of
from oodbench.errors import UserError
from oodbench.results.boards import PROTOCOL_FILE, dataset_file, lock
from oodbench.results.directory import Results
from oodbench.results.load import load_frames
from oodbench.results.parts import (
    ADAPT,
    COUNT,
    OF_A_RUN,
    OWN_COUNT,
    RUN,
    SCORE,
    VALUE,
    WORST_GROUP,
    About,
    Constant,
    Part,
    PartProvenance,
    escaped,
    kept_metrics,
    known_parts,
    read_file,
    write_parts,
)
from oodbench.results.provenance import method_digest
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.tables import Tables, only, records_of
from oodbench.selection import find_rule, judge, rule_names

MADE_BY = (
    *("oodbench", "commit", "torch", "python"),
    *("machine", "device", "threads", "arithmetic"),
)
"""The fields of its runs' provenance that a part keeps."""
CONTEXT = ("classes", "dataset_label", "family", "higher_is_better", "metric", "shift")
"""The fields of its runs' context that a part keeps."""


def frozen_rules() -> list[str]:
    """Return the rules whose choices are frozen where a dataset serves them, also by worst groups."""
    rules = [rule for rule in map(find_rule, rule_names()) if rule.frozen]
    by_group = [f"{rule.name}:{WORST_GROUP}" for rule in rules if not rule.sees_test]
    return [*(rule.name for rule in rules), *by_group]


@dataclass(frozen=True)
class Frozen:
    """The parts that freezing added or left alone."""

    added: tuple[Part, ...]
    """The parts that are new."""
    there: tuple[Part, ...]
    """The parts that were there, with the same numbers, and were left alone."""


def freeze(results: Path, board: Path, data_dir: Path | None = None) -> Frozen:
    """Freeze all rows of a results directory as parts of a board, whose protocol must be there.

    Raises UserError, and writes nothing, if a run is missing, stale or under another protocol, a row
    was trained by several codes, or a part is frozen already with other numbers.
    """
    if not (board / PROTOCOL_FILE).is_file():
        raise UserError(f"{board} is no board yet: copy its sweep to {board / PROTOCOL_FILE}")
    parts = parts_of(results, board, data_dir)
    added: list[Part] = []
    there: list[Part] = []
    with lock(board):
        frozen = {(part.dataset, part.label): part for part in known_parts(board)}
        for part in parts:
            known = frozen.get((part.dataset, part.label))
            if known is not None and not known.equal_numbers(part):
                raise UserError(
                    f"{part} is frozen with other numbers: what changes a part is a new version of the "
                    "board, under a new name"
                )
            (added if known is None else there).append(part)
        for dataset in dict.fromkeys(part.dataset for part in added):
            path = dataset_file(board, dataset)
            before = read_file(path) if path.is_file() else []
            write_parts([*before, *(part for part in added if part.dataset == dataset)], path)
    return Frozen(tuple(added), tuple(there))


def parts_of(results: Path, board: Path, data_dir: Path | None = None) -> list[Part]:
    """Make the parts of a board from a results directory, but write none; raises UserError as `freeze`."""
    refuse(wrong_results(results, protocol_of(board), data_dir), f"{results} cannot be frozen")
    digests, made = _Digests(data_dir), made_of(load_frames(Results(results)))
    return [part.with_data(digests.of(part.specs().values())) for part in made]


def made_of(frames: Tables) -> list[Part]:
    """Return the part of each row of each dataset, without digests of the data."""
    chosen, made = _chosen(frames), []
    for _, runs in frames.runs.groupby(["dataset_label", "label"], sort=False):
        ids = runs["id"]
        row = Tables(runs, records_of(frames.records, ids))
        made.append(part_of(row, chosen[chosen["id"].isin(ids)], _provenance(runs)))
    return made


def _chosen(frames: Tables) -> pd.DataFrame:
    """Return the `id`, `rule`, `step` and `score` of each run's candidate by each rule that its dataset
    serves.
    """
    tables = []
    for dataset in frames.runs["dataset_label"].unique():
        of_dataset = only(frames, [str(dataset)])
        for rule in frozen_rules():
            with suppress(UserError):
                best = judge(of_dataset, rule).candidates.drop_duplicates("id")
                tables.append(best[["id", "step", "score"]].assign(rule=rule))
    if not tables:
        raise UserError("the runs serve no selection rule: nothing can be chosen")
    return pd.concat(tables, ignore_index=True)


def _provenance(runs: pd.DataFrame) -> PartProvenance:
    """Return the provenance of a row, all of whose runs were trained by one code."""
    made = [p for p in runs["provenance"] if p]
    sources = {digest for p in made if (digest := method_digest(p))}
    days = sorted(str(p["started"])[:10] for p in made if "started" in p)
    known: dict[str, Any] = {
        name: ", ".join(values) if len(values) > 1 else values[0]
        for name in MADE_BY
        if (values := list(dict.fromkeys(p[name] for p in made if p.get(name) is not None)))
    }
    known["dates"] = [days[0], days[-1]] if days else []
    known["source"] = sources.pop() if sources else None
    return cast(PartProvenance, {name: v for name, v in known.items() if v is not None})


def part_of(frames: Tables, chosen: pd.DataFrame, provenance: PartProvenance) -> Part:
    """Make a part from the runs of one row on one dataset, all of which have ended.

    `chosen` has the `id`, `rule`, `step` and `score` of each run's candidate by each rule.
    """
    runs = frames.runs.set_index("id", drop=False)
    first = runs.iloc[0]
    order = {run_id: i for i, run_id in enumerate(runs["id"])}
    table = chosen.assign(there=True).pivot(
        index=["id", "step"], columns="rule", values=["score", "there"]
    )
    table = table.loc[sorted(table.index, key=lambda place: (order[place[0]], place[1]))]
    columns = _run_arrays(runs.loc[table.index.get_level_values("id")], table.index)
    for rule in chosen["rule"].drop_duplicates():
        scores, missing = table["score", rule].to_numpy(float), table["there", rule].isna()
        columns[f"{SCORE}{rule}"] = _floats(scores, missing.to_numpy())
    records = frames.records
    kept = records["metric"].isin(kept_metrics([first["metric"]])) | records["environment"].isna()
    columns |= _value_arrays(Tables(frames.runs, records[kept]), table.index)
    spec = asdict(spec_of(first))
    known = {name: first[name] for name in CONTEXT if name in runs}
    context: Any = {name: _plain(v) for name, v in known.items() if not _is_missing(v)}
    about = About(
        spec={name: value for name, value in spec.items() if name not in OF_A_RUN},
        context=context | {"training_environments": []},
        constants=_constants(frames.runs),
        selection=first.get("selection") or None,
        provenance=provenance,
    )
    return Part(about, pa.table(columns))


def _run_arrays(runs: pd.DataFrame, places: "pd.Index[Any]") -> dict[str, pa.Array]:
    """Return the columns that every part has; row i of `runs` is the run of `places[i]`, an (id, step)."""
    columns: dict[str, Any] = {
        "id": list(runs["id"]),
        **{name: runs[name].astype(int).tolist() for name in ("draw", "trial", "last_step")},
        **{
            name: [list(environments) for environments in runs[name]]
            for name in RUN.names
            if name.endswith("_environments")
        },
        **{
            name: [json.dumps(values, sort_keys=True) for values in runs[name]]
            for name in ("hparams", "network_hparams")
        },
        "vectorized": [bool(p.get("vectorized", False)) for p in runs["provenance"]],
        "diverged": [state == State.DIVERGED for state in runs["state"]],
        "seconds": runs[["training_seconds", "evaluation_seconds"]].astype(float).sum(axis=1),
        "step": places.get_level_values("step").tolist(),
    }
    arrays = {column.name: pa.array(columns[column.name], column.type) for column in RUN}
    if "adapt" in runs and not _is_missing(runs["adapt"].iloc[0]):
        arrays[ADAPT] = pa.array([json.dumps(adapt, sort_keys=True) for adapt in runs["adapt"]])
    return arrays


def _floats(values: "np.ndarray[Any, Any]", missing: "np.ndarray[Any, Any]") -> pa.Array:
    return pa.array(values, pa.float64(), mask=missing, from_pandas=False)  # NaN is a value


def spec_of(run: "pd.Series[Any]") -> RunSpec:
    """Return the spec of a row of `Tables.runs`; a field that an older plan lacks is missing there."""
    return RunSpec.from_json(
        {str(k): _plain(v) for k, v in run.items() if v is None or not _is_missing(v)}
    )


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value.item() if isinstance(value, np.generic) else value


def _value_arrays(frames: Tables, places: "pd.Index[Any]") -> dict[str, pa.Array]:
    """Return the columns of values and counts at these places, each an (id, step)."""
    names = dict.fromkeys(("id", "environment", "split", "metric"), object)
    records = frames.records.astype(names)
    tests = records["id"].map(frames.runs.set_index("id")["test_environments"])
    rows = zip(records["environment"], records["split"], tests, strict=True)
    records = records[[e is None or e != e or (s == "in" and e in test) for e, s, test in rows]]
    records = records.assign(environment=records["environment"].fillna(""))
    most = records.groupby(["id", "step", "environment"])["count"].max()
    columns: dict[str, pa.Array] = {}
    for environment, counts in most.groupby("environment", sort=True):
        columns[f"{COUNT}{environment}"] = _counts(counts.droplevel("environment"), places)
    for (metric, environment), group in records.groupby(["metric", "environment"], sort=True):
        of_metric = group.set_index(["id", "step"])
        place = f"{escaped(metric)}/{environment}"
        values = of_metric["value"].reindex(places).to_numpy(float)
        columns[f"{VALUE}{place}"] = _floats(values, ~places.isin(of_metric.index))
        usual = most.xs(environment, level="environment").reindex(of_metric.index)
        if not of_metric["count"].eq(usual).all():
            columns[f"{OWN_COUNT}{place}"] = _counts(of_metric["count"], places)
    return columns


def _counts(counts: "pd.Series[Any]", places: "pd.Index[Any]") -> pa.Array:
    """Return the counts at these places, null where there are none."""
    values = counts.reindex(places).fillna(0).to_numpy(np.int32)
    return pa.array(values, mask=~places.isin(counts.index))


def _constants(runs: pd.DataFrame) -> list[Constant]:
    """Return the constant answers of the runs, on the `in` splits of their test environments."""
    constants: dict[tuple[tuple[str, ...], int], Constant] = {}
    if "constant" not in runs:
        return []
    columns = (runs[name] for name in ("test_environments", "trial", "constant"))
    for tests, trial, answer in zip(*columns, strict=True):
        if isinstance(answer, Mapping) and answer and (tests, trial) not in constants:
            values = {
                metric: {e: {"in": v["in"]} for e, v in of_metric.items() if e in tests}
                for metric, of_metric in answer.items()
            }
            constants[tests, trial] = Constant(
                test_environments=list(tests), trial=int(trial), values=values
            )
    return list(constants.values())


class _Digests:
    """Digests of the examples of environments, each computed once."""

    def __init__(self, data_dir: Path | None) -> None:
        self.data_dir = data_dir
        self._known: dict[str, dict[str, str]] = {}

    def of(self, specs: Iterable[RunSpec]) -> dict[str, str]:
        """Return the digest of each environment that these runs of a row read, over their trials."""
        runs = list(specs)
        name, options = runs[0].dataset, runs[0].options
        trials = sorted({spec.trial for spec in runs})
        key = repr((name, sorted(options.items()), trials))
        if key not in self._known:
            self._known[key] = data_digests(name, options, trials, self.data_dir)
        return self._known[key]


def data_digests(
    name: str, options: Mapping[str, Any], trials: Iterable[int], data_dir: Path | None
) -> dict[str, str]:
    """Return a digest of the inputs and targets of each environment, over these trials in order.

    Inputs that are not held in memory are represented by the checksums of the dataset's files.
    """
    from oodbench.data.facts import checksums
    from oodbench.data.preparation import load_checked
    from oodbench.datasets import make

    dataset = make(name, options, data_dir)
    hashes: dict[str, Any] = {}
    for trial in trials:
        for environment, data in load_checked(dataset, trial).items():
            digest = hashes.setdefault(environment, hashlib.sha256())
            for tensor in (data.x, data.y):
                if isinstance(tensor, torch.Tensor):
                    digest.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    files = "".join(f"{k}{v}" for k, v in sorted(checksums(dataset).items()))
    for digest in hashes.values():
        digest.update(files.encode())
    return {environment: digest.hexdigest()[:16] for environment, digest in hashes.items()}
