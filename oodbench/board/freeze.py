"""Results into the parts of a board."""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch

from oodbench.board.files import PROTOCOL_FILE, part_path
from oodbench.board.frames import part_of, spec_of
from oodbench.board.parts import Part, PartProvenance, read_part, write_part
from oodbench.board.protocol import read_protocol
from oodbench.board.validate import refuse, wrong_results
from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.results.directory import Results
from oodbench.results.frames import Frames, load_frames
from oodbench.results.join import only_dataset, records_of
from oodbench.results.provenance import code, source
from oodbench.results.run_spec import RunSpec
from oodbench.selection import candidates, find_rule, rule_names


def frozen_rules() -> list[str]:
    """The rules whose choices are frozen where a dataset serves them, also by worst groups."""
    rules = [rule for rule in map(find_rule, rule_names()) if rule.frozen]
    by_group = [f"{rule.name}:worst_group_accuracy" for rule in rules if not rule.sees_test]
    return [*(rule.name for rule in rules), *by_group]


@dataclass(frozen=True)
class Frozen:
    """What freezing did."""

    added: tuple[Path, ...]
    """The files that are new."""
    there: tuple[Path, ...]
    """The files that were there, with the same numbers, and were left alone."""


def freeze(results: Path, board: Path, protocol: Path, data_dir: Path | None = None) -> Frozen:
    """Freeze all rows of a results directory as parts of a board, which is made if it is not there.

    `protocol` is the file of the sweep of a new board. Raises UserError, and writes nothing, if a run
    is missing or under another protocol, a row was trained by several codes, or a part is frozen
    already with other numbers.
    """
    stored = board / PROTOCOL_FILE
    text = protocol.read_text()
    if stored.is_file() and stored.read_text() != text:
        raise UserError(f"{board} has another protocol than {protocol}: give the board a new name")
    sweep = read_protocol(protocol)
    frames = load_frames(Results(results))
    refuse(wrong_results(frames, sweep, data_dir), f"{results} cannot be frozen")
    digests = _Digests(data_dir)
    new: list[tuple[Path, Part]] = []
    there: list[Path] = []
    for part in _parts(frames, digests):
        path = part_path(board, part.dataset, part.label)
        if not path.is_file():
            new.append((path, part))
        elif read_part(path).equal_numbers(part):
            there.append(path)
        else:
            raise UserError(
                f"{path} is frozen with other numbers: what changes a part is a new version of the "
                "board, under a new name"
            )
    board.mkdir(parents=True, exist_ok=True)
    if not stored.is_file():
        write_whole(stored, text)
    for path, part in new:
        write_part(part, path)
    return Frozen(tuple(path for path, _ in new), tuple(there))


def _parts(frames: Frames, digests: "_Digests") -> Iterable[Part]:
    """The part of each row of each dataset."""
    from oodbench.algorithms import algorithms

    chosen = _chosen(frames)
    for (dataset, label), runs in frames.runs.groupby(["dataset_label", "label"], sort=False):
        ids = runs["id"]
        row = Frames(runs, records_of(frames.metrics, ids))
        cls = algorithms.get(str(runs["algorithm"].iloc[0]))
        provenance = _provenance(runs, cls, f"{label} on {dataset}")
        provenance["data"] = digests.of([spec_of(run) for _, run in runs.iterrows()])
        yield part_of(row, chosen[chosen["id"].isin(ids)], provenance)


def _chosen(frames: Frames) -> pd.DataFrame:
    """The `id`, `rule`, `step` and `score` of each run's candidate by each rule that its dataset serves."""
    found = []
    for dataset in frames.runs["dataset_label"].unique():
        own = only_dataset(frames, str(dataset))
        for rule in frozen_rules():
            with suppress(UserError):
                best = candidates(own, rule).drop_duplicates("id")
                found.append(best[["id", "step", "score"]].assign(rule=rule))
    if not found:
        raise UserError("the runs serve no selection rule: nothing can be chosen")
    return pd.concat(found, ignore_index=True)


def _provenance(runs: pd.DataFrame, cls: type, row: str) -> PartProvenance:
    """What trained a row; raises UserError if that were several codes."""
    made = [p for p in runs["provenance"] if p]
    several = {code(p) for p in made}
    if len(several) > 1:
        raise UserError(f"{row} was trained by several codes: {', '.join(sorted(several))}")
    sources = {p["source"] for p in made if p.get("source")}
    if len(sources) > 1:
        raise UserError(f"{row} was trained by several versions of the method's file")
    days = sorted(str(p["started"])[:10] for p in made if "started" in p)
    found: dict[str, Any] = {
        name: ", ".join(values) if len(values) > 1 else values[0]
        for name in ("oodbench", "commit", "torch", "python", "machine", "device", "threads")
        if (values := list(dict.fromkeys(p[name] for p in made if p.get(name) is not None)))
    }
    found["dates"] = [days[0], days[-1]] if days else []
    found["source"] = sources.pop() if sources else source(cls)
    told = {name: value for name, value in found.items() if value is not None}
    return cast(PartProvenance, told)


class _Digests:
    """Digests of the examples of environments, each worked out once."""

    def __init__(self, data_dir: Path | None) -> None:
        self.data_dir = data_dir
        self._known: dict[str, dict[str, str]] = {}

    def of(self, specs: Iterable[RunSpec]) -> dict[str, str]:
        """The digest of each environment that these runs of a row read, over their trials."""
        found = list(specs)
        trials = sorted({spec.trial for spec in found})
        key = repr((found[0].dataset, sorted(found[0].options.items()), trials))
        if key not in self._known:
            self._known[key] = data_digests(
                found[0].dataset, found[0].options, trials, self.data_dir
            )
        return self._known[key]


def data_digests(
    name: str, options: Mapping[str, Any], trials: Iterable[int], data_dir: Path | None
) -> dict[str, str]:
    """A digest of the inputs and targets of each environment, over these trials in order.

    Inputs that are not in memory stand for themselves by the checksums of the dataset's files.
    """
    from oodbench.data.facts import checksums
    from oodbench.data.preparation import load_checked
    from oodbench.datasets import make

    dataset = make(name, options, data_dir)
    hashes: dict[str, Any] = {}
    for trial in trials:
        for environment, data in load_checked(dataset, trial).items():
            found = hashes.setdefault(environment, hashlib.sha256())
            for tensor in (data.x, data.y):
                if isinstance(tensor, torch.Tensor):
                    found.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    files = "".join(f"{k}{v}" for k, v in sorted(checksums(dataset).items()))
    for found in hashes.values():
        found.update(files.encode())
    return {environment: found.hexdigest()[:16] for environment, found in hashes.items()}
