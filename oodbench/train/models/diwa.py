"""Averages of the weights of several runs that began at the same weights (DiWA, arXiv:2205.09739).

The members are the draws of one row, test set and trial of a sweep, each with the weights that a
selection rule chose of it, which `--keep-weights RULE` keeps. What is averaged is scored like a run, and
recorded as one: in the same results directory, in a row of its own.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from oodbench.errors import UserError, unknown
from oodbench.results.directory import Results, RunDirectory
from oodbench.results.provenance import provenance
from oodbench.results.run_spec import DIWA, Evaluation, RunSpec, State
from oodbench.results.weights import kept_weights
from oodbench.selection import USUAL, find_rule
from oodbench.train.kept_weights import Judge, keep_weights
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

KINDS = {"uniform": "DiWA", "greedy": "DiWA greedy"}
"""The ways to choose the members, and what tables call them. `uniform`: all; `greedy`: from the best
on by the rule's score, each that does not lower the score of the average (the paper's restricted)."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Member:
    """A run whose weights are averaged."""

    spec: RunSpec
    directory: RunDirectory
    weights: Path
    step: int
    """The step that the weights are of."""


def average_runs(
    results: Results, rule: str | None, kinds: Sequence[str], settings: TrainSettings, say: Say
) -> list[str]:
    """Average the runs of every cell of a sweep, record what that gives, and return the new runs' ids.

    `rule` is the selection rule by which their weights are kept, `selection.USUAL` if there is none.
    `say` is told which runs that kept weights are left out, and why. A cell that is averaged already
    stays as it is. Raises UserError if nothing can be averaged.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise unknown("way to choose members", kind, KINDS)
    rule = rule or USUAL
    find_rule(rule)
    plan = results.plan()
    specs = {i: RunSpec.from_json(s) for i, s in plan["runs"].items()}
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
    made: dict[str, RunSpec] = {}
    for members in cells:
        for kind in kinds:
            spec = _average_cell(results, members, kind, rule, settings)
            made[spec.id] = spec
    replaced = {_place(spec) for spec in made.values()}
    kept = {i: s for i, s in specs.items() if not (_is_average(s) and _place(s) in replaced)}
    results.write_plan(plan["name"], plan["settings"], kept | made)
    return list(made)


def _is_average(spec: RunSpec) -> bool:
    return spec.average is not None and spec.average["name"] == DIWA


def _place(spec: RunSpec) -> tuple[Any, ...]:
    """Where a table shows a run."""
    return spec.dataset_name, spec.label, spec.test_environments, spec.trial


def _cells(results: Results, specs: Mapping[str, RunSpec], rule: str) -> Iterator[list[Member]]:
    """The runs of each cell that have ended, with their kept weights, by draw."""
    runs = [(s, results.run(i)) for i, s in specs.items() if not _is_average(s)]
    runs.sort(key=lambda run: (*map(str, _place(run[0])), run[0].draw))
    for _, cell in groupby(runs, key=lambda run: _place(run[0])):
        found = []
        for spec, directory in cell:
            end = directory.end()
            if end is not None and end.status is State.DONE:
                kept = [(step, p) for (r, step), p in kept_weights(directory).items() if r == rule]
                found += [Member(spec, directory, path, step) for step, path in kept[-1:]]
        yield found


def _alike(members: Sequence[Member], settings: TrainSettings, say: Say) -> list[Member]:
    """The most members that began at the same weights, or none if no two did; `say` is told of others."""
    groups: list[tuple[dict[str, Tensor], list[Member]]] = []
    for member in members:
        start = _start(member, settings)
        for weights, group in groups:
            if _equal(weights, start):
                group.append(member)
                break
        else:
            groups.append((start, [member]))
    largest = max((group for _, group in groups), key=len)
    if len(largest) < len(members):
        spec, out = members[0].spec, len(members) - len(largest)
        values = [m.spec.network_hparams for m in members]
        several = [f"`{n}`" for n in values[0] if any(v.get(n) != values[0][n] for v in values)]
        told = (
            f"{out} of {len(members)} runs began at other weights than the rest, and are left out"
        )
        if len(largest) == 1:
            told = (
                f"no two of {len(members)} runs began at the same weights, and there is no average"
            )
        if several:
            told += f" (they differ in {', '.join(several)} of the network)"
        say(f"{spec.label} on {spec.dataset_name}, trial {spec.trial}: {told}")
    return largest if len(largest) > 1 else []


def _start(member: Member, settings: TrainSettings) -> dict[str, Tensor]:
    """The initial weights of a run's network."""
    return dict(Run(_evaluable(member.spec), settings).algorithm.network.state_dict())


def _evaluable(spec: RunSpec) -> RunSpec:
    """The spec of a run with the same network and data, whose last weights are evaluated."""
    return replace(spec, average=None, precision="float32")


def _equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class _Average:
    """The mean weights of some members, which it can score by a rule."""

    def __init__(self, members: Sequence[Member], rule: str, settings: TrainSettings) -> None:
        first = members[0].spec
        self.run = Run(_evaluable(first), settings)
        judge = find_rule(rule)
        evidence = judge.evidence_of(first, self.run.names)
        self._judge = Judge(judge, evidence, self.run.data.dataset)

    def cost_of(self, member: Member) -> float:
        """What the member's own score costs, negative where more is better."""
        records = (r for r in member.directory.records() if r["step"] == member.step)
        return self._cost(next(records)["evaluations"])

    def cost(self, members: Sequence[Member]) -> float:
        """What the score of the members' mean costs."""
        return self._cost([vars(e) for e in self.evaluate(members)])

    def _cost(self, evaluations: Sequence[Mapping[str, Any]]) -> float:
        cost = self._judge.cost(evaluations)
        return math.inf if cost is None else cost

    def evaluate(self, members: Sequence[Member]) -> list[Evaluation]:
        """All metrics of the members' mean."""
        self.run.algorithm.load_state_dict(mean_weights([load_file(m.weights) for m in members]))
        return self.run.evaluate()


def mean_weights(members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of weights by their names; where it is of no real numbers or of several shapes, the first.

    The latter are parts of a method beside its network, which began at the members' own.
    """
    first = members[0]
    return {
        name: torch.stack([weights[name] for weights in members]).mean(0)
        if first[name].is_floating_point() and len({w[name].shape for w in members}) == 1
        else first[name]
        for name in first
    }


def chosen(
    members: Sequence[Member], cost_of: Callable[[Member], float], cost: Callable[..., float]
) -> list[Member]:
    """The greedy choice: from the best on, each member that does not make the mean worse."""
    found: list[Member] = []
    best = math.inf
    for member in sorted(members, key=cost_of):
        now = cost([*found, member])
        if now <= best or not found:
            found, best = [*found, member], now
    return found


def _average_cell(
    results: Results, members: Sequence[Member], kind: str, rule: str, settings: TrainSettings
) -> RunSpec:
    """Record the average of a cell's members, unless it is there; returns its spec."""
    start = time.perf_counter()
    average = _Average(members, rule, settings)
    if kind == "greedy":
        members = chosen(members, average.cost_of, average.cost)
    first = members[0].spec
    shared = [n for n in first.hparams if len({repr(m.spec.hparams.get(n)) for m in members}) == 1]
    spec = replace(
        first,
        label=f"{first.label} + {KINDS[kind]}",
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
        directory.start(spec, average.run.context, made_by | {"vectorized": False})
        directory.forget_records()
        average.run.step = spec.steps
        evaluations = average.evaluate(members)
        keep_weights(average.run, spec, directory, [rule])
        seconds = time.perf_counter() - start
        directory.append(average.run.record(evaluations, seconds))
        directory.finish(State.DONE, spec.steps, seconds)
    return spec
