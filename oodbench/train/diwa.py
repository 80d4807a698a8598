"""Weight averages over several runs with the same initial weights (DiWA, arXiv:2205.09739).

The members are the draws of one row, test set and trial of a sweep, with weights that a selection rule
chose and `--keep-weights RULE` kept. A weight average is scored and recorded like a run, in another row of
the same results directory. Statistics of batch normalisation are averaged like weights. The authors' code
takes them from the first member; in their experiments all members have the same statistics, because these
are frozen (`freeze_batch_norm`).
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from oodbench.errors import UserError, unknown
from oodbench.results.directory import Directory
from oodbench.results.parquet import specs_of
from oodbench.results.provenance import begun_by, provenance
from oodbench.results.run_directory import RunDirectory, kept_weights
from oodbench.results.run_spec import DIWA, Evaluation, RunSpec, State
from oodbench.selection import USUAL, find_rule
from oodbench.train.kept_weights import Judge, keep_weights, read_weights
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

CHOICES = {"uniform": "DiWA", "greedy": "DiWA greedy"}
"""The ways to choose members, with their names in tables. `uniform` takes all. `greedy` tries the members
from the best score on, and takes each that does not worsen the average's score (the paper's restricted)."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Member:
    """A run of an average."""

    spec: RunSpec
    directory: RunDirectory
    weights: Path
    step: int
    """The number of updates of the weights."""

    @property
    def evaluations(self) -> Sequence[Mapping[str, Any]]:
        """The evaluations in the record of `step`."""
        records = (r for r in self.directory.records() if r["step"] == self.step)
        return next(records)["evaluations"]  # type: ignore[no-any-return]


def average_runs(
    results: Directory, rule: str | None, choices: Sequence[str], settings: TrainSettings, say: Say
) -> list[str]:
    """Average the runs of every cell of a sweep, record the scores, and return the averages' ids.

    `rule` is the selection rule whose kept weights are averaged, by default `selection.USUAL`. `say` gets
    sentences on runs that are left out. Averages that are recorded already are not made again. Raises
    UserError if nothing can be averaged.
    """
    for choice in choices:
        if choice not in CHOICES:
            raise unknown("way to choose members", choice, CHOICES)
    rule = rule or USUAL
    find_rule(rule)
    plan = results.plan()
    specs = specs_of(plan["rows"])
    several = [members for members in _cells(results, specs, rule) if len(members) > 1]
    if not several:
        raise UserError(
            f"{results.path} has no two draws of one trial that have ended and kept the weights of {rule}: "
            f"launch with `--keep-weights {rule}` and `hparam_draws` above 1"
        )
    cells = [alike for members in several if (alike := _alike(members, settings, say))]
    if not cells:
        raise UserError(
            "nothing can be averaged: give the network's hyperparameters one value each in the sweep"
        )
    made = [
        _average_cell(results, members, choice, rule, settings)
        for members in cells
        for choice in choices
    ]
    replaced = set(map(_cell, made))
    former = [s.id for s in specs if _is_average(s) and _cell(s) in replaced]
    results.write_plan(plan["name"], {}, made, without=former)
    return [spec.id for spec in made]


def _is_average(spec: RunSpec) -> bool:
    return spec.average is not None and spec.average["name"] == DIWA


def _cell(spec: RunSpec) -> tuple[Any, ...]:
    return spec.dataset_name, spec.label, spec.test_environments, spec.trial


def _cells(results: Directory, specs: Sequence[RunSpec], rule: str) -> Iterator[list[Member]]:
    runs = [(s, results.run(s.id)) for s in specs if not _is_average(s)]
    runs.sort(key=lambda run: (*map(str, _cell(run[0])), run[0].draw))
    for _, cell in groupby(runs, key=lambda run: _cell(run[0])):
        members = []
        for spec, directory in cell:
            if directory.end() is State.DONE:
                kept = [(step, p) for (r, step), p in kept_weights(directory).items() if r == rule]
                members += [Member(spec, directory, path, step) for step, path in kept[-1:]]
        yield members


def _alike(members: Sequence[Member], settings: TrainSettings, say: Say) -> list[Member]:
    by_start: dict[str, list[Member]] = {}
    for member in members:
        start = Run(_evaluable(member.spec), settings).algorithm.network.state_dict()
        digest = hashlib.sha256(save({n: w.cpu().contiguous() for n, w in start.items()}))
        by_start.setdefault(digest.hexdigest(), []).append(member)
    largest = max(by_start.values(), key=len)
    left_out = len(members) - len(largest)
    if left_out:
        count = len(members)
        message = f"{left_out} of {count} runs began at other weights and are left out"
        if len(largest) == 1:
            message = f"no two of {count} runs began at the same weights, and there is no average"
        hparams = [m.spec.network_hparams for m in members]
        several = [f"`{n}`" for n in hparams[0] if any(h.get(n) != hparams[0][n] for h in hparams)]
        if several:
            message += f" (they differ in {', '.join(several)} of the network)"
        spec = members[0].spec
        say(f"{spec.row}, trial {spec.trial}: {message}")
    return largest if len(largest) > 1 else []


def _evaluable(spec: RunSpec) -> RunSpec:
    return replace(spec, average=None, precision="float32")


def mean_weights(members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of weights by name; integers, and weights whose shapes differ, are the first member's.

    Shapes differ only in a method's modules outside the network, which do not share initial weights.
    """
    first = members[0]
    return {
        name: torch.stack([weights[name] for weights in members]).mean(0)
        if first[name].is_floating_point() and len({w[name].shape for w in members}) == 1
        else first[name]
        for name in first
    }


def greedy_choice(
    members: Sequence[Member], cost_of: Callable[[Member], float], cost: Callable[..., float]
) -> list[Member]:
    """Greedy soup: the best member, and each further member that does not increase the mean's cost."""
    greedy: list[Member] = []
    least = math.inf
    for member in sorted(members, key=cost_of):
        now = cost([*greedy, member])
        if now <= least or not greedy:
            greedy, least = [*greedy, member], now
    return greedy


def _average_cell(
    results: Directory, members: Sequence[Member], choice: str, rule: str, settings: TrainSettings
) -> RunSpec:
    start = time.perf_counter()
    run = Run(_evaluable(members[0].spec), settings)
    judge = Judge(find_rule(rule), run)

    def evaluated(members: Sequence[Member]) -> list[Evaluation]:
        weights = [read_weights(member.weights)[0] for member in members]
        run.algorithm.load_state_dict(mean_weights(weights))
        return run.evaluate()

    if choice == "greedy":
        members = greedy_choice(
            members,
            lambda member: judge.cost_of(member.evaluations),
            lambda members: judge.cost_of(map(vars, evaluated(members))),
        )
    first = members[0].spec
    shared = [n for n in first.hparams if len({repr(m.spec.hparams.get(n)) for m in members}) == 1]
    spec = replace(
        first,
        label=f"{first.label} + {CHOICES[choice]}",
        hparams={name: first.hparams[name] for name in shared},
        draw=0,
        evaluate_every=first.steps,
        average={"name": DIWA, "rule": rule, "runs": [m.spec.id for m in members]},
    )
    directory = results.run(spec.id)
    if directory.state().complete:
        return spec
    directory.path.mkdir(parents=True, exist_ok=True)
    with directory.lock():
        made_by = provenance(settings.device, settings.threads, settings.plugins)
        made_by = begun_by(made_by, members[0].directory.made_by()) | {"vectorized": False}
        directory.start(spec, run.context, made_by)
        directory.forget_records()
        run.step = spec.steps
        evaluations = evaluated(members)
        keep_weights(run, spec, directory, [rule])
        directory.append(run.record(evaluations, time.perf_counter() - start))
        directory.finish(State.DONE, spec.steps)
    return spec
