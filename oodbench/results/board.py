"""A board on disk: the frozen results of a protocol, part by part. Imports no torch.

BOARD/protocol.yaml             the sweep, with every row that may be a part
BOARD/parts/DATASET/ROW.parquet a part: all runs of one row of a table on one dataset

A part is a Parquet file with a row for each step of a run that a selection rule chooses, by run, then
step. A rule never chooses among a run's steps again: of the rows of a run, the one with a score of
the rule is its candidate. The columns:

id, draw, trial                          the run; `id` is that of its spec
test_environments, validation_environments, training_environments   lists of names
hparams, network_hparams                 the run's values as JSON
vectorized, diverged, last_step, seconds how it was trained; the seconds of training and evaluation
step                                     the step of this row
score/RULE                               the validation score of the rule; null where another rule chose
value/METRIC/ENVIRONMENT                 the value on the `in` split of a test environment, null for
                                         another one; without an environment, of the predictor itself
count/ENVIRONMENT                        the number of examples behind these values

What all runs of a part share is JSON in the metadata of the file, under the key `oodbench`: see `About`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from oodbench.errors import UserError, unknown
from oodbench.files import whole_file
from oodbench.registry import checkout
from oodbench.results.frames import Frames
from oodbench.results.parse import COSTS
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.schemas import Context, DamagedFile, parse_json
from oodbench.yaml_values import read_yaml

SCHEMA = 1
PROTOCOL_FILE = "protocol.yaml"
OF_A_RUN = (
    *("draw", "trial", "test_environments", "validation_environments"),
    *("hparams", "network_hparams"),
)
"""The fields of a spec in which the runs of a part differ; they share the others."""
NAMES = pa.list_(pa.string())
RUN = pa.schema(
    [
        ("id", pa.string()),
        ("draw", pa.int32()),
        ("trial", pa.int32()),
        ("test_environments", NAMES),
        ("validation_environments", NAMES),
        ("training_environments", NAMES),
        ("hparams", pa.string()),
        ("network_hparams", pa.string()),
        ("vectorized", pa.bool_()),
        ("diverged", pa.bool_()),
        ("last_step", pa.int32()),
        ("seconds", pa.float32()),
        ("step", pa.int32()),
    ]
)
"""The columns that every part has."""
SCORE, VALUE, COUNT = "score/", "value/", "count/"


class PartProvenance(TypedDict, total=False):
    """Which code, libraries and machine trained the runs of a part, and from what."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    oodbench: str
    commit: str | None
    torch: str
    machine: str
    device: str
    threads: int
    dates: list[str]
    """The first and the last day on which a run was started."""
    source: str
    """A digest of the file that defines the method."""
    data: dict[str, str]
    """A digest of each environment's examples over the trials of the part."""


class Constant(TypedDict):
    """The constant answer's values in one trial of one test set."""

    test_environments: list[str]
    trial: int
    values: dict[str, dict[str, dict[str, float | None]]]
    """By metric, environment and split."""


class About(BaseModel):
    """What all runs of a part share."""

    model_config = ConfigDict(strict=True, frozen=True)

    schema_: Annotated[int, Field(alias="schema", ge=SCHEMA, le=SCHEMA)] = SCHEMA
    spec: dict[str, Any]
    """The fields of the specs but for `OF_A_RUN`."""
    context: Context
    constants: list[Constant]
    selection: str | None
    """The selection rule that the protocol names."""
    provenance: PartProvenance


@dataclass(frozen=True)
class Part:
    """One row of one dataset of a board."""

    about: About
    table: pa.Table
    """The columns of `RUN`, then the scores, values and counts."""

    @property
    def dataset(self) -> str:
        """The dataset as tables call it."""
        return str(self.about.spec["dataset_label"])

    @property
    def label(self) -> str:
        """The row of the table."""
        return str(self.about.spec["label"])

    @property
    def rules(self) -> tuple[str, ...]:
        """The selection rules that have scores."""
        names = self.table.column_names
        return tuple(n.removeprefix(SCORE) for n in names if n.startswith(SCORE))

    def specs(self) -> dict[str, RunSpec]:
        """The runs' specs by id; raises DamagedFile if a spec has another id."""
        found = {}
        for row in self.runs().to_dict(orient="records"):
            values = self.about.spec | {name: row[name] for name in OF_A_RUN}
            spec = RunSpec.from_json(values)
            if spec.id != row["id"]:
                raise DamagedFile(
                    f"run {row['id']} of {self.label} on {self.dataset} has the spec of {spec.id}"
                )
            found[spec.id] = spec
        return found

    def runs(self) -> pd.DataFrame:
        """The columns of `RUN` but `step`, a run a row; hyperparameters as mappings, names as tuples."""
        return pd.DataFrame(self.run_columns())

    def run_columns(self) -> dict[str, list[Any]]:
        """The same as lists."""
        ids = self.table["id"].to_numpy()
        first = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]][: len(ids)])
        table = self.table.select(RUN.names[:-1]).take(pa.array(first))
        found: dict[str, list[Any]] = {n: table[n].to_pylist() for n in table.column_names}
        for name in ("hparams", "network_hparams"):
            values = {text: json.loads(text) for text in dict.fromkeys(found[name])}
            found[name] = [values[text] for text in found[name]]
        for name in ("test_environments", "validation_environments", "training_environments"):
            found[name] = [tuple(names) for names in found[name]]
        return found

    def equal_numbers(self, other: "Part") -> bool:
        """Whether the other part has the same runs, scores and values, bit for bit."""
        unlike = ("seconds", "vectorized")
        own, theirs = (part.table.drop_columns(unlike).to_pandas() for part in (self, other))
        return self.about.spec == other.about.spec and own.equals(theirs)


def find_board(name: str) -> Path:
    """The folder of a board, given by its name or as a path; raises UserError."""
    path = Path(name)
    if path.is_dir() and (path / PROTOCOL_FILE).is_file():
        return path
    known = board_names()
    if any((folder / "reported.csv").is_file() for folder in (path, frozen_folder() / name)):
        raise UserError(f"{name} is a board of reported numbers: only `board show` takes it")
    if name not in known:
        raise unknown("board", name, known)
    return frozen_folder() / name


def frozen_folder() -> Path:
    """The folder of the boards that the package has."""
    return checkout() / "oodbench" / "board" / "frozen"


def board_names() -> list[str]:
    """The boards that the package has."""
    return sorted(path.parent.name for path in frozen_folder().glob(f"*/{PROTOCOL_FILE}"))


def part_path(board: Path, dataset: str, label: str) -> Path:
    """Where a part of a board is."""
    return board / "parts" / _file_name(dataset) / f"{_file_name(label)}.parquet"


def _file_name(name: str) -> str:
    """A name without what file systems do not take: such characters are %-escapes."""
    kept = "".join(c if c.isalnum() or c in "-_.+ =,()" else f"%{ord(c):02x}" for c in name)
    return kept if kept.strip(".") else f"%{ord(kept[0]):02x}{kept[1:]}"


def part_files(board: Path) -> Iterator[Path]:
    """The files of a board's parts."""
    yield from sorted((board / "parts").glob("*/*.parquet"))


def write_part(part: Part, path: Path) -> None:
    """Write a part whole."""
    about = part.about.model_dump_json(by_alias=True)
    table = part.table.replace_schema_metadata({"oodbench": about})
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        pq.write_table(
            table, file, compression="zstd", compression_level=19, write_statistics=False
        )


def read_part(path: Path) -> Part:
    """The part in a file; raises DamagedFile for one that is torn, foreign or of another schema."""
    try:
        table = pq.read_table(path, use_threads=False, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise DamagedFile(f"{path} is torn or no Parquet file") from error
    text = (table.schema.metadata or {}).get(b"oodbench")
    if text is None:
        raise DamagedFile(f"{path} is no part of a board: it has no metadata of oodbench")
    about = parse_json(text, About, f"the metadata of {path}")
    try:
        known = table.select(RUN.names).cast(RUN)
    except (KeyError, pa.ArrowException) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error
    for name in table.column_names:
        if name not in RUN.names:
            known = known.append_column(name, table[name])
    return Part(about, known)


def read_parts(board: Path) -> list[Part]:
    """The parts of a board; raises DamagedFile, and UserError if it has none."""
    parts = [read_part(path) for path in part_files(board)]
    if not parts:
        raise UserError(f"the board {board.name} has no part yet")
    return parts


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
    for (metric, environment), group in found.groupby(["metric", "environment"], sort=True):
        values = group.set_index(["id", "step"])["value"]
        missing = ~index.isin(values.index)
        column = pa.array(
            values.reindex(index).to_numpy(float), pa.float64(), mask=missing, from_pandas=False
        )
        yield f"{VALUE}{metric}/{environment}", column
    for environment, group in found.groupby("environment", sort=True):
        counts = group.drop_duplicates(["id", "step"]).set_index(["id", "step"])["count"]
        missing = ~index.isin(counts.index)
        filled = counts.reindex(index).fillna(0).to_numpy(np.int32)
        yield f"{COUNT}{environment}", pa.array(filled, pa.int32(), mask=missing)


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
        for name in part.table.column_names:
            kind, _, rest = name.partition("/")
            rows = np.flatnonzero(pc.is_valid(part.table[name]).to_numpy())
            value = part.table[name].to_numpy()[rows]
            if kind + "/" == SCORE:
                scores.add(run[rows], step[rows], value, rule=rest)
            elif kind + "/" == VALUE:
                metric, _, environment = rest.partition("/")
                split = "in" if environment else ""
                count = part.table[f"{COUNT}{environment}"].to_numpy()[rows].astype(np.int32)
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
        "search_draws": None,
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
