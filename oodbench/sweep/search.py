"""Searching hyperparameters with TPE: which draw comes next, given the records of earlier ones.

A study is the search of one (dataset, test environments, algorithm). Its draw k is trained on every
trial, and its values follow from the results of the draws 0 to k - at_a_time alone, so that the
number of workers, their speed and whatever interrupts them change nothing. The disk is the memory:
results are in the runs' records, chosen draws in the study's journal (see `oodbench.results.directory`), to
which whoever ends a run adds what can be chosen then. Imports no torch.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from oodbench.errors import UserError
from oodbench.hparams import Value, distributions, given_ranges, rates_family
from oodbench.results.directory import Journal, Results
from oodbench.results.metrics import is_higher_better
from oodbench.results.run_spec import RunSpec
from oodbench.seeds import derive
from oodbench.sweep.tpe import Space, suggest

STARTUP = 10
"""The number of results that TPE sees before it chooses; earlier draws are random."""

MAX_RUNS = 100_000
"""The most runs of one sweep."""

NETWORK = "network."
"""The prefix of the names of a network's hyperparameters in a study's space."""


class Search(BaseModel):
    """The key `search` of a sweep file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    method: Literal["tpe"] = Field(description="tpe")
    runs: int = Field(ge=1, le=MAX_RUNS, description="a number from 1 on")
    """The most runs of one (dataset, test environments, algorithm), all trials counted."""
    objective: str = Field(default="default", description="the name of a selection rule")
    """The selection rule whose score of the best step is optimised, as a mean over the trials that share
    a draw. `default`: that of `selection.usual_objective`, for each study."""
    at_a_time: int = Field(default=4, ge=1, le=MAX_RUNS, description="a number from 1 on")
    """Draws of a study in training at once; draw k is chosen from the results up to k - this."""
    seed: int = Field(default=0, description="a whole number")

    def draws(self, trials: int) -> int:
        """How many draws a study has; raises UserError if there is none."""
        if self.runs < trials:
            raise UserError(
                f"search: {self.runs} runs are fewer than the {trials} trials of a draw"
            )
        return self.runs // trials

    @property
    def startup(self) -> int:
        """The number of random draws."""
        return STARTUP + self.at_a_time - 1


@dataclass(frozen=True)
class Study:
    """The search of one (dataset, test environments, algorithm), or of one trial of it."""

    search: Search
    """The search, whose objective is the name of a selection rule."""
    specs: tuple[RunSpec, ...]
    """The runs of the random draws, by draw, then trial."""
    trials: int
    """The number of trials that share the values of a draw."""
    space: Space
    per_trial: bool = False
    """Whether the study is of one trial alone, whose draws have values of their own."""

    @property
    def id(self) -> str:
        """The name of the study's journal: the id of its first run."""
        return self.specs[0].id

    @property
    def total(self) -> int:
        """The number of runs that the study ends with."""
        return self.search.draws(self.trials) * self.trials

    def seed(self, draw: int) -> int:
        """The seed of the choice of a draw."""
        first, seed = self.specs[0], self.search.seed
        names = [first.dataset, first.test_environments, first.label, draw]
        return derive("search", seed, *names, *([first.trial] if self.per_trial else []))

    def runs(self, draw: int, values: Mapping[str, Value]) -> tuple[RunSpec, ...]:
        """The runs of a draw with these values, one a trial."""
        ours = {n: v for n, v in values.items() if not n.startswith(NETWORK)}
        network = {n.removeprefix(NETWORK): v for n, v in values.items() if n.startswith(NETWORK)}
        return tuple(
            replace(
                spec,
                draw=draw,
                hparams=spec.hparams | ours,
                network_hparams=spec.network_hparams | network,
            )
            for spec in self.specs[: self.trials]
        )

    def values(self, spec: RunSpec) -> dict[str, Value]:
        """The values of a run in the names of `space`."""
        every = spec.hparams | {NETWORK + n: v for n, v in spec.network_hparams.items()}
        return {name: every[name] for name in self.space}


def make_studies(
    search: Search,
    specs: Sequence[RunSpec],
    dataset: Any,
    fixed: Mapping[str, Any],
    fixed_of_network: Mapping[str, Any],
    per_trial: bool,
) -> list[Study]:
    """The study that starts with the runs `specs`, ordered by draw, then trial, or one for each trial.

    All hyperparameters with a distribution are searched but for the fixed ones; raises UserError if
    that leaves none, or if a fixed one has a list of values, one for each draw.
    """
    from oodbench.algorithms import algorithms
    from oodbench.networks.base import networks
    from oodbench.selection import usual_objective

    if search.objective == "default":
        search = search.model_copy(update={"objective": usual_objective(specs)})
    first = specs[0]
    trials = sum(spec.draw == first.draw for spec in specs)
    network = networks.get(first.network)
    pretrained = network.is_pretrained(first.network_hparams)
    family = rates_family(dataset.metadata.family, pretrained)
    owners: tuple[tuple[str, Any, Mapping[str, Any]], ...] = (
        ("", algorithms.get(first.algorithm), fixed),
        (NETWORK, network, fixed_of_network),
    )
    space = {
        prefix + name: distribution
        for prefix, owner, given in owners
        for name, distribution in distributions(owner.Hparams, family).items()
        if distribution is not None and name not in given
    } | {
        prefix + name: distribution
        for prefix, _, given in owners
        for name, (_, distribution) in given_ranges(given, first.label).items()
    }
    for name, value in {**fixed, **fixed_of_network}.items():
        if isinstance(value, list):
            raise UserError(f"a search takes one value of '{name}' or none, not the list {value}")
    if not space:
        raise UserError(f"{first.label} on {dataset.label} has no hyperparameter left to search")
    if not per_trial:
        return [Study(search, tuple(specs), trials, space)]
    one = search.model_copy(update={"runs": search.draws(trials)})
    return [Study(one, tuple(specs[i::trials]), 1, space, True) for i in range(trials)]


def check(studies: Sequence[Study], test_environments: object) -> None:
    """Raise UserError if optuna is missing or the runs of a study cannot serve its objective."""
    from oodbench.selection import find_rule
    from oodbench.sweep.tpe import optuna

    optuna()
    for study in studies:
        rule = find_rule(study.search.objective)
        if not rule.judges_alone or test_environments == "pairs":
            raise UserError(
                "a search cannot serve leave_one_out and its pairs of test environments: it would "
                "judge a draw by runs of other test environments, whose draws are not the same"
            )
        if rule.judged(study.specs) != {spec.id for spec in study.specs}:
            raise UserError(
                f"search: on {study.specs[0].dataset} the objective {rule.name} needs {rule.needs}"
            )


def objectives(studies: Sequence[Study]) -> str:
    """The names of the rules that the studies of a sweep optimise, joined for people."""
    return " and ".join(dict.fromkeys(study.search.objective for study in studies))


class Searches:
    """The studies of a sweep, as far as its results directory says they are."""

    def __init__(self, results: Results, studies: Sequence[Study]) -> None:
        self.results = results
        self.studies = {study.id: study for study in studies}
        self.costs: dict[tuple[str, int], float] = {}
        """The cost of each draw that has ended, by the study's id and the number of the draw."""
        self.of_run: dict[str, str] = {}
        """The id of the study of each known run."""
        for study in studies:
            chosen = (s for draw in results.journal(study.id).draws() for s in draw)
            self.of_run |= {s.id: study.id for s in (*study.specs, *chosen)}

    def of(self, ids: Collection[str]) -> tuple[Study, ...]:
        """The studies to which these runs belong."""
        wanted = {self.of_run[i] for i in ids if i in self.of_run}
        return tuple(study for i, study in self.studies.items() if i in wanted)

    def advance(self, run_id: str | None = None) -> dict[str, RunSpec]:
        """Choose every draw whose time has come, in the study of a run that has ended or in all.

        Returns all runs that have been chosen in them, by whichever process.
        """
        found: dict[str, RunSpec] = {}
        for study in self.studies.values() if run_id is None else self.of([run_id]):
            journal = self.results.journal(study.id)
            with journal.lock():
                chosen = self._advance(study, journal)
            self.of_run |= dict.fromkeys((spec.id for spec in chosen), study.id)
            found |= {spec.id: spec for spec in chosen}
        return found

    def _advance(self, study: Study, journal: Journal) -> list[RunSpec]:
        """The runs in the study's journal, with those that could be chosen now and were added."""
        n, search = study.trials, study.search
        random = [study.specs[i : i + n] for i in range(0, len(study.specs), n)]
        draws = [*random, *journal.draws()]
        while len(draws) < search.draws(n):
            k = len(draws)
            done = k - search.at_a_time + 1
            costs = self._costs(study, draws[:done])
            if costs is None:
                break
            values = [study.values(draw[0]) for draw in draws]
            seen = list(zip(values, costs, strict=False))
            seed = study.seed(k)
            found = suggest(study.space, seen, values[done:], seed)
            draws.append(study.runs(k, found))
            journal.append(draws[-1])
        return [spec for draw in draws[len(random) :] for spec in draw]

    def _costs(self, study: Study, draws: Sequence[Sequence[RunSpec]]) -> list[float] | None:
        """The cost of each draw, or None if a run of theirs has not ended.

        It is the mean over trials of the best step's score by the objective's rule, negative where
        more is better; NaN if a run has failed, or diverged without a score.
        """
        from oodbench.results.frames import load_frames
        from oodbench.selection import candidates, find_rule

        new = {k: d for k, d in enumerate(draws) if (study.id, k) not in self.costs}
        specs = {spec.id: spec for draw in new.values() for spec in draw}
        states = {i: self.results.run(i).state() for i in specs}
        if not all(state.final for state in states.values()):
            return None
        if specs:
            frames = load_frames(self.results, specs)
            higher = (frames.runs.get("higher_is_better") == True).any()  # noqa: E712
            if (metric := find_rule(study.search.objective).metric) is not None:
                higher = is_higher_better(metric)
            sign = -1 if higher else 1
            table = candidates(frames, study.search.objective).drop_duplicates("id")
            best = (sign * table.set_index("id")["score"]).to_dict()
            for k, draw in new.items():
                costs = [best.get(s.id, math.nan) for s in draw if states[s.id].complete]
                whole = len(costs) == len(draw)
                self.costs[study.id, k] = sum(costs) / len(costs) if whole else math.nan
        return [self.costs[study.id, k] for k in range(len(draws))]
