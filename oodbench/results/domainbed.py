"""Results of DomainBed (arXiv:2007.01434) as results of ours.

A DomainBed sweep is a folder of runs, each with a `results.jsonl`: a record a checkpoint, with
`args`, `hparams`, `step` and `env{i}_in_acc` and `env{i}_out_acc` of every environment i. Its records
hold no counts of examples (all are 1 here) and no code version.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from oodbench.errors import UserError
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.schemas import read_bytes

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


def import_sweep(folder: Path, out: Path) -> int:
    """Turn a DomainBed output folder into a results directory; returns the number of runs.

    Raises UserError if there is no run, for a line that is no record of DomainBed, for two folders of
    one run, and if `out` is not empty. A torn last line is left out; a run without the file `done`
    counts as lost.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; use another --out")
    folders = {file.parent: _records(file) for file in sorted(folder.glob("*/results.jsonl"))}
    runs = {path: records for path, records in folders.items() if records}
    if not runs:
        raise UserError(
            f"{folder} holds no results of DomainBed (no */results.jsonl with a record)"
        )
    order = sorted(runs, key=lambda path: _order(runs[path][0]["args"]))
    specs: dict[str, RunSpec] = {}
    places: dict[str, Path] = {}
    for path in order:
        spec = _spec(runs[path])
        if spec.id in specs:
            raise UserError(f"{places[spec.id]} and {path} hold the same run; take one away")
        specs[spec.id], places[spec.id] = spec, path
    results = Results(out)
    for run_id, spec in specs.items():
        _write(results, spec, runs[places[run_id]], (places[run_id] / "done").exists())
    results.write_plan(folder.resolve().name, {"imported": "DomainBed"}, specs)
    return len(specs)


def _order(args: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = ("dataset", "algorithm", "test_envs", "trial_seed", "hparams_seed")
    return tuple(args[key] for key in keys)


def _records(file: Path) -> list[dict[str, Any]]:
    """Return the records of a run in the order of the file."""
    records = []
    lines = (read_bytes(file) or b"").decode(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            _order(record["args"]), record["hparams"], record["args"]["holdout_fraction"]
            whole = isinstance(record["step"], int) and len(_environments(record)) > 1
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break  # torn
            whole = False
        if not whole:
            raise UserError(f"{file}: line {number} is no record of DomainBed")
        records.append(record)
    return records


def _environments(record: Mapping[str, Any]) -> list[str]:
    count = len({m[1] for key in record if (m := ACCURACY.fullmatch(key))})
    known = ENVIRONMENTS.get(record["args"]["dataset"], ())
    return list(known) if len(known) == count else [f"env{i}" for i in range(count)]


def _spec(records: Sequence[Mapping[str, Any]]) -> RunSpec:
    args, names = records[0]["args"], _environments(records[0])
    steps = [int(record["step"]) for record in records]
    gaps = [b - a for a, b in pairwise(steps)] or [0]
    return RunSpec(
        dataset=args["dataset"],
        algorithm=args["algorithm"],
        hparams=records[0]["hparams"],
        label=args["algorithm"],
        network="DomainBed's",
        network_hparams={},
        test_environments=tuple(names[i] for i in args["test_envs"]),
        draw=args["hparams_seed"],
        trial=args["trial_seed"],
        steps=args.get("steps") or max(steps) + 1,
        evaluate_every=args.get("checkpoint_freq") or max(gaps),
        holdout=args["holdout_fraction"],
    )


def _write(
    results: Results, spec: RunSpec, records: Sequence[Mapping[str, Any]], done: bool
) -> None:
    """Write the files of a run."""
    names = _environments(records[0])
    directory = results.run(spec.id)
    directory.path.mkdir(parents=True)
    held = set(spec.test_environments)
    context = {
        "dataset_label": spec.dataset,
        "training_environments": [name for name in names if name not in held],
        "metric": "accuracy",
        "higher_is_better": True,
    }
    code = {"code": "DomainBed (it records no version)", "seed": records[0]["args"].get("seed")}
    directory.start(spec, context, code)
    seconds, last = 0.0, -1
    for record in records:
        step = int(record["step"])
        seconds += float(record.get("step_time") or 0.0) * max(step - last, 0)
        last = step
        cost: dict[str, float] = {"training_seconds": seconds}
        if record.get("mem_gb"):
            cost["memory_mb"] = record["mem_gb"] * 1024
        evaluations = [
            {
                "environment": names[int(match[1])],
                "split": match[2],
                "metric": "accuracy",
                "value": float(value) if value is not None else math.nan,
                "count": 1,
            }
            for key, value in record.items()
            if (match := ACCURACY.fullmatch(key))
        ]
        train = {k: v for k, v in record.items() if isinstance(v, float) and k != "epoch"}
        train = {k: v for k, v in train.items() if not k.startswith("env")}
        directory.append({"step": step, "train": train, "cost": cost, "evaluations": evaluations})
    if done:
        directory.finish(State.DONE, last, seconds)
