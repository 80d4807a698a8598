"""A run's weights at the steps that selection rules would choose, kept while it is trained."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from oodbench.errors import UserError
from oodbench.files import whole_file
from oodbench.metrics import known_direction
from oodbench.results.directory import LAST
from oodbench.results.run_directory import RunDirectory, kept_weights, weights_path
from oodbench.results.run_spec import RunSpec
from oodbench.train.run import Run

if TYPE_CHECKING:
    from oodbench.selection import Rule


ABOUT = "oodbench"
"""The only key of the files' metadata: the order of several keys, and so the bytes, would be random."""


Seen = tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]
"""The values and the weights of a rule's evidence at a step."""


class Judge:
    """A selection rule that judges the steps of one run by the run's records."""

    def __init__(self, rule: "Rule", run: Run) -> None:
        dataset = run.data.dataset
        self._rule, self.evidence = rule, rule.evidence_of(run.spec, run.names)
        """The (environment, split) pairs by which the rule judges the run; empty if it cannot."""
        self.metric = rule.metric or dataset.metric
        is_main = self.metric == dataset.metric
        self._rises = dataset.higher_is_better if is_main else known_direction(self.metric)
        environments = list(dict.fromkeys(environment for environment, _ in self.evidence))
        self._environments = np.array([environments.index(e) for e, _ in self.evidence])

    def seen(self, evaluations: Iterable[Mapping[str, Any]]) -> Seen | None:
        """The evidence in a step's evaluations; None if the metric is not recorded."""
        from oodbench.selection import shares

        recorded = {
            (e["environment"], e["split"]): (e["value"], e["count"])
            for e in evaluations
            if e["metric"] == self.metric
        }
        if not recorded:
            return None
        found = [recorded.get(split, (None, 1)) for split in self.evidence]
        values = np.array([value for value, _ in found], dtype=float)  # None becomes NaN
        counts = np.array([count for _, count in found])
        return np.where(np.isfinite(values), values, np.nan), shares(counts, self._environments)

    def cost(self, steps: Sequence[Seen]) -> float:
        """The score of the last of the steps: negated if higher is better, infinite if NaN."""
        from oodbench.selection import score_by

        values, weights = map(np.stack, zip(*steps, strict=True))
        score = float(score_by(self._rule, values, weights, self._rises)[-1])
        return math.inf if math.isnan(score) else -score if self._rises else score

    def cost_of(self, evaluations: Iterable[Mapping[str, Any]]) -> float:
        """The cost of a single step's evaluations; infinite if the metric is not recorded."""
        seen = self.seen(evaluations)
        return math.inf if seen is None else self.cost([seen])


class KeptWeights:
    """The files of a run's kept weights: for each rule, of the step that it would choose so far.

    A file from before the last checkpoint is deleted only after a checkpoint that is later than the step
    which supersedes it. Otherwise a run that resumes from the last checkpoint could lack the weights.
    """

    def __init__(self, run: Run, directory: RunDirectory) -> None:
        """Find the files of a run at its checkpoint, and delete files of later steps."""
        self._run, self._directory = run, directory
        self._judges: dict[str, Judge] = {}
        if names := [name for name in run.settings.keep_weights if name != LAST]:
            from oodbench.selection import find_rule

            judges = {name: Judge(find_rule(name), run) for name in names}
            self._judges = {name: judge for name, judge in judges.items() if judge.evidence}
        self._seen: dict[str, list[Seen]] = {name: [] for name in self._judges}
        self._best: dict[str, tuple[float, int]] = {}
        for record in directory.records() if self._judges else ():
            self._improved(record["step"], record["evaluations"])
        self.delete_superseded()

    def _improved(self, step: int, evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
        rules = []
        for name, judge in self._judges.items():
            seen = judge.seen(evaluations)
            if seen is None:
                continue
            self._seen[name].append(seen)
            cost = judge.cost(self._seen[name])
            if name not in self._best or cost < self._best[name][0]:
                self._best[name] = cost, step
                rules.append(name)
        return rules

    def record(self, evaluations: Sequence[Mapping[str, Any]], ends: bool) -> None:
        """Keep the evaluated weights for the rules that would choose them; `ends` marks the last step."""
        rules = self._improved(self._run.step, evaluations)
        if ends and LAST in self._run.settings.keep_weights:
            rules.append(LAST)
        if rules:
            keep_weights(self._run, self._run.spec, self._directory, rules)
            _unlink(self._superseded(self._saved))

    @property
    def wait_for_checkpoint(self) -> bool:
        """Whether a checkpoint is needed before files can be deleted."""
        return self._directory.checkpoint.is_file() and bool(self._superseded())

    def delete_superseded(self) -> None:
        """Delete files that no rule would choose, after a checkpoint or at the end of the run."""
        _unlink(self._superseded())
        self._saved = self._run.step

    def _superseded(self, after: int = -1) -> list[Path]:
        # of steps later than `after`
        return [
            path
            for (rule, step), path in kept_weights(self._directory).items()
            if step > self._run.step or after < step != self._best.get(rule, (0.0, step))[1]
        ]


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def keep_weights(run: Run, spec: RunSpec, directory: RunDirectory, rules: Iterable[str]) -> None:
    """Write a run's evaluated weights in float32 for each rule, into the directory of `spec`'s run."""
    directory.weights.mkdir(parents=True, exist_ok=True)
    with run.evaluated_weights():
        weights = {
            name: (value.float() if value.is_floating_point() else value).cpu().clone().contiguous()
            for name, value in run.algorithm.state_dict().items()
        }
    for rule in rules:
        about = {"id": spec.id, "rule": rule, "step": run.step, "sizes": run.problem.sizes}
        with whole_file(weights_path(directory, rule, run.step)) as file:
            file.write(save(weights, {ABOUT: json.dumps(about)}))


def read_weights(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A file's weights and metadata (`id`, `rule`, `step`, `sizes`); raises UserError if damaged."""
    try:
        with safe_open(file, "pt") as opened:
            about: dict[str, Any] = json.loads((opened.metadata() or {})[ABOUT])
            names: Sequence[str] = opened.keys()
            return {name: opened.get_tensor(name) for name in names}, about
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{file} is no whole file of kept weights ({reason})") from None
