"""Imports results of DomainBed (arXiv:2007.01434).

A DomainBed sweep is a folder of runs, each with a `results.jsonl`: one record per checkpoint, with
`args`, `hparams`, `step` and `env{i}_in_acc` and `env{i}_out_acc` of every environment i. Its records
hold no counts of examples (all are 1 here) and no code version.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from pydantic_core import from_json

from oodbench.errors import UserError
from oodbench.results.directory import Directory
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.schemas import SPEC, Count, DamagedFile, parse_json, read_bytes

SPAWRIOUS = ("Test", "SC_group_1", "SC_group_2")
ENVIRONMENTS: Mapping[str, Sequence[str]] = {
    "Debug28": ("0", "1", "2"),
    "Debug224": ("0", "1", "2"),
    "ColoredMNIST": ("+90%", "+80%", "-90%"),
    "RotatedMNIST": ("0", "15", "30", "45", "60", "75"),
    "VLCS": ("C", "L", "S", "V"),
    "PACS": ("A", "C", "P", "S"),
    "OfficeHome": ("A", "C", "P", "R"),
    "TerraIncognita": ("L100", "L38", "L43", "L46"),
    "DomainNet": ("clip", "info", "paint", "quick", "real", "sketch"),
    "SVIRO": (
        *("aclass", "escape", "hilux", "i3", "lexus"),
        *("tesla", "tiguan", "tucson", "x5", "zoe"),
    ),
    "WILDSCamelyon": tuple(f"hospital_{i}" for i in range(5)),
    "WILDSFMoW": tuple(f"region_{i}" for i in range(6)),
    **{
        f"Spawrious{kind}_{level}": SPAWRIOUS
        for kind in ("O2O", "M2M")
        for level in ("easy", "medium", "hard")
    },
}
"""DomainBed's datasets in its order, and what it calls their environments; others are env0, env1, ..."""
ACCURACY = re.compile(r"env(\d+)_(in|out)_acc")
Name = Annotated[str, Field(min_length=1)]


class Args(BaseModel):
    """The arguments of DomainBed's train.py that determine a spec."""

    model_config = ConfigDict(strict=True, extra="allow")
    dataset: Name
    algorithm: Name
    test_envs: Annotated[list[Count], Field(min_length=1)]
    trial_seed: Count
    hparams_seed: Count
    holdout_fraction: Annotated[float, Field(gt=0, lt=1)]
    steps: Count | None = None
    checkpoint_freq: Count | None = None
    seed: int | None = None


class Record(BaseModel):
    """A line of results.jsonl; accuracies and losses are among the further keys."""

    model_config = ConfigDict(strict=True, extra="allow")
    args: Args
    hparams: dict[str, Any]
    step: Count
    step_time: FiniteFloat | None = None
    mem_gb: FiniteFloat | None = None

    @property
    def accuracies(self) -> dict[tuple[int, str], Any]:
        """Recorded accuracies by environment number and split."""
        items = (self.model_extra or {}).items()
        return {(int(m[1]), m[2]): v for k, v in items if (m := ACCURACY.fullmatch(k))}


@dataclass(frozen=True)
class Found:
    """A run in a file of DomainBed."""

    place: str
    """The file, and the line of the run's first record if the file has several runs."""
    records: Sequence[Record]
    done: bool
    spec: RunSpec


def import_sweep(folder: Path, out: Path) -> tuple[int, list[str]]:
    """Convert a DomainBed output folder into a results directory.

    Returns the number of runs, and a sentence for each run that cannot be read or is there twice.
    A file may contain several runs, because train.py appends to it, even from several processes at once;
    the records of a run have equal arguments and increasing steps. A truncated last line is left out. A run
    without the file `done` counts as lost. Of runs with equal specs, the one with most records is taken.
    Raises UserError if there are no runs that can be read, and if `out` is not empty.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; use another --out")
    left_out: list[str] = []
    found: list[Found] = []
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} of DomainBed's runs")
    for file in sorted(folder.rglob("results.jsonl")):
        try:
            several = _runs(file, _records(file))
        except UserError as error:
            left_out.append(str(error))
            continue
        for place, of_run, done in several:
            try:
                found.append(Found(place, of_run, done, _spec(of_run, place)))
            except UserError as error:
                left_out.append(str(error))
    if not found:
        more = f": {'; '.join(left_out)}" if left_out else " (no results.jsonl with a record)"
        raise UserError(f"{folder} holds no results of DomainBed{more}")
    runs: dict[str, Found] = {}
    in_rows = attrgetter("dataset", "algorithm", "test_envs", "trial_seed", "hparams_seed")
    for run in sorted(found, key=lambda run: in_rows(run.records[0].args)):
        # equal for runs with equal arguments, however many records they have
        key = replace(run.spec, evaluate_every=1, steps=run.records[0].args.steps or 1).id
        kept = runs.setdefault(key, run)
        if kept is not run:
            runs[key], other = sorted((kept, run), key=lambda r: -len(r.records))
            left_out.append(f"{other.place} holds the run of {runs[key].place} again")
    results = Directory(out)
    for run in runs.values():
        _write(results, run)
    specs = {run.spec.id: run.spec for run in runs.values()}
    results.write_plan(folder.resolve().name, {"imported": "DomainBed"}, [*specs.values()])
    return len(specs), left_out


def _records(file: Path) -> list[Record]:
    records = []
    lines = (read_bytes(file) or b"").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            from_json(line)
        except ValueError:
            if number == len(lines):
                break  # torn
        record = parse_json(line, Record, place)
        values = [v for v in record.accuracies.values() if v is not None]
        odd = [v for v in values if not isinstance(v, int | float) or v < 0 or v > 1]
        if odd or len(record.accuracies) < 2:
            share = f"an accuracy is {str(odd[0])[:40]}, and they are shares of 1"
            what = share if odd else "it has no accuracies"
            raise DamagedFile(f"{place} is not a record of DomainBed: {what}")
        records.append(record)
    return records


def _runs(file: Path, records: Sequence[Record]) -> Iterator[tuple[str, Sequence[Record], bool]]:
    """Yield the location, the records, and whether it has ended, of each run in a file."""
    runs: list[list[int]] = []  # the places of their records; several jobs may append in turns
    settings = [str((each.args, each.hparams)) for each in records]  # texts, as NaN is in some
    for place, record in enumerate(records):
        for run in reversed(runs):
            if settings[run[-1]] == settings[place] and records[run[-1]].step < record.step:
                run.append(place)
                break
        else:
            runs.append([place])
    ended = (file.parent / "done").exists()
    for start, *later in runs:
        of_run, steps = [records[i] for i in (start, *later)], records[start].args.steps
        is_last = len(records) - 1 in (start, *later)
        whole = is_last or (steps is not None and of_run[-1].step == steps - 1)
        yield f"{file}, line {start + 1}" if start else str(file), of_run, ended and whole


def _environments(record: Record, place: str) -> list[str]:
    numbers = {number for number, _ in record.accuracies}
    count = len(numbers)
    if numbers != set(range(count)) or count < 2:
        listed = ", ".join(map(str, sorted(numbers)))
        raise UserError(f"{place} has accuracies of the environments {listed}, and not from 0 on")
    known = ENVIRONMENTS.get(record.args.dataset, ())
    return list(known) if len(known) == count else [f"env{i}" for i in range(count)]


def _spec(records: Sequence[Record], place: str) -> RunSpec:
    first = records[0]
    args, names = first.args, _environments(first, place)
    if any(record.accuracies.keys() != first.accuracies.keys() for record in records):
        raise UserError(f"{place}: records of one run have different environments")
    tests = args.test_envs
    if len(set(tests)) < len(tests) or max(tests) >= len(names) or len(tests) == len(names):
        raise UserError(f"{place} has test_envs {tests} of {len(names)} environments, from 0 on")
    gaps = [b.step - a.step for a, b in pairwise(records)] or [0]
    spec = RunSpec(
        dataset=args.dataset,
        algorithm=args.algorithm,
        hparams=first.hparams,
        label=args.algorithm,
        network="DomainBed's",
        network_hparams={},
        test_environments=tuple(names[i] for i in tests),
        draw=args.hparams_seed,
        trial=args.trial_seed,
        steps=args.steps or records[-1].step + 1,
        evaluate_every=args.checkpoint_freq or max(1, *gaps),
        holdout=args.holdout_fraction,
    )
    try:
        return parse_json(json.dumps(asdict(spec), allow_nan=False).encode(), SPEC, place)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} cannot be a run: {error}") from error


def _write(results: Directory, run: Found) -> None:
    names = _environments(run.records[0], run.place)
    directory = results.run(run.spec.id)
    directory.path.mkdir(parents=True)
    context = {
        "dataset_label": run.spec.dataset,
        "training_environments": [n for n in names if n not in run.spec.held_out],
        "metric": "accuracy",
        "higher_is_better": True,
    }
    code = {"code": "DomainBed (it records no version)", "seed": run.records[0].args.seed}
    directory.start(run.spec, context, code)
    seconds, last = 0.0, -1
    for record in run.records:
        seconds += (record.step_time or 0.0) * max(record.step - last, 0)
        last = record.step
        cost = {"training_seconds": seconds}
        if record.mem_gb:
            cost["memory_mb"] = record.mem_gb * 1024
        evaluations = [
            {"environment": names[n], "split": s, "metric": "accuracy", "value": v, "count": 1}
            for (n, s), v in record.accuracies.items()
        ]
        more = (record.model_extra or {}).items()
        train = {k: v for k, v in more if type(v) is float and not k.startswith(("env", "epoch"))}
        directory.append({"step": last, "train": train, "cost": cost, "evaluations": evaluations})
    if run.done:
        directory.finish(State.DONE, last)
