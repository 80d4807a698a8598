"""One run from its spec to its records; checkpoint and resume."""

import os
import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from filelock import Timeout
from torch import Tensor

from oodbench.algorithms import Algorithm, Problem, algorithms
from oodbench.allocator import keep_freed_memory
from oodbench.datasets import Dataset
from oodbench.errors import UserError
from oodbench.evaluate import evaluate, logits
from oodbench.hparams import checked
from oodbench.job import Interrupts as Interrupts
from oodbench.job import Settings as Settings
from oodbench.loading import batches, load_data
from oodbench.networks import build
from oodbench.predictions import keep, keep_examples
from oodbench.provenance import provenance
from oodbench.records import Evaluation, RunDirectory, RunSpec
from oodbench.seeds import derive

CHECK_EVERY = 50
"""Steps between two looks at the losses, at the clock and at the progress bar."""
BEAT_SECONDS = 5.0
CHECKPOINT_SECONDS = 10.0
EVALUATION_CHECKPOINT_SECONDS = 1.0
"""A checkpoint is due after so long, the shorter of the two at an evaluation."""


def build_algorithm(spec: RunSpec, problem: Problem, device: str) -> Algorithm:
    """The algorithm of a run with its initial weights, on its device.

    The network's weights depend on (dataset, test environments, trial) alone; what the algorithm
    adds to it depends on its name too.
    """
    shared = ("init", spec.dataset, spec.test_environments, spec.trial)
    network = build(
        spec.network,
        spec.network_hparams,
        problem.input_shape,
        problem.task.num_outputs,
        derive(*shared),
    )
    cls: Any = algorithms.get(spec.algorithm)
    reason = cls.skip(problem)
    if reason is not None:
        raise UserError(f"{spec.algorithm} cannot be run on {spec.dataset}: {reason}")
    hparams = checked(cls.Hparams, spec.hparams, f"the hyperparameters of {spec.algorithm}")
    torch.manual_seed(derive(*shared, spec.algorithm))
    algorithm: Algorithm = cls(network, problem, hparams).to(device)
    algorithm.optimizers = algorithm.configure()
    return algorithm


class Run:
    """A run in memory: its algorithm, its batches and how far it is."""

    def __init__(self, spec: RunSpec, settings: Settings) -> None:
        self.spec = spec
        self.settings = settings
        self.data = load_data(spec, settings)
        dataset = self.data.dataset
        self.names = dataset.trained_on({*spec.test_environments, *spec.validation_environments})
        seed = derive("environments", spec.dataset, spec.test_environments, spec.trial)
        self.problem = Problem(dataset.input_shape, dataset.task, self.names, spec.steps, seed)
        self.scored = {
            name: environment
            for name, environment in self.data.environments.items()
            if not (dataset.evaluation_environments and name in self.names)
        }
        self.algorithm = build_algorithm(spec, self.problem, settings.device)
        self.batches = batches(spec, self.data, self.names, self.algorithm, settings)
        self.loader_workers = settings.loader_workers or 0
        self.step = 0
        self.seconds = self.waited = 0.0
        self.sums: dict[str, float] = {}
        self.counted = 0

    @property
    def context(self) -> dict[str, Any]:
        """What tables need to know beyond the spec."""
        dataset = self.data.dataset
        return {
            "dataset_label": dataset.label,
            "family": dataset.metadata.family,
            "shift": dataset.metadata.shift,
            "training_environments": self.names,
            "metric": dataset.metric,
            "higher_is_better": dataset.higher_is_better,
        }

    def advance(self, steps: int) -> int | None:
        """Do `steps` updates; returns the first step whose loss was not finite, or None."""
        start, waited = time.perf_counter(), self.batches.waiting_seconds
        self.algorithm.train()
        collected: list[dict[str, Tensor]] = []
        for step in range(self.step, self.step + steps):
            collected.append(self.algorithm.update(self.batches[step], step))
        for name in collected[0]:
            values = torch.stack([metrics[name] for metrics in collected]).double()
            if name == "loss" and not values.isfinite().all():
                return self.step + int(values.isfinite().logical_not().nonzero()[0])
            for value in values.tolist():
                self.sums[name] = self.sums.get(name, 0.0) + value
        self.step += steps
        self.counted += steps
        self.seconds += time.perf_counter() - start
        self.waited += self.batches.waiting_seconds - waited
        return None

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, ...) as an environment holds them."""
        return self.algorithm.predict(self.data.dataset.transform(x, None))

    @torch.no_grad()
    def evaluate(self) -> list[Evaluation]:
        """All metrics of the predictor as it is now."""
        self.algorithm.eval()
        dataset, task, device = self.data.dataset, self.problem.task, self.settings.device
        plain = type(dataset).split_metrics is Dataset.split_metrics
        whole = None if plain else dataset.split_metrics
        workers = self.loader_workers
        found = evaluate(self.predict, self.scored, self.data.splits, task, workers, whole)
        own = dataset.predictor_metrics(
            lambda x: self.algorithm.predict(x.to(device)).cpu(), self.spec.trial
        )
        return found + [Evaluation(None, None, name, value, 1) for name, value in own.items()]

    @torch.no_grad()
    def keep_predictions(self, directory: RunDirectory) -> None:
        """Keep the logits of every example as they are now, and once what they are compared with."""
        self.algorithm.eval()
        found = logits(self.predict, self.scored, self.problem.task, self.loader_workers)
        keep(directory, self.step, {name: values.numpy() for name, values in found.items()})
        examples = {}
        for name, environment in self.scored.items():
            out = torch.zeros(len(environment.y), dtype=torch.bool)
            out[self.data.splits[name].get("out", torch.empty(0, dtype=torch.long)).cpu()] = True
            examples[name] = (environment.y.cpu().numpy(), out.numpy())
        keep_examples(directory, self.problem.task.kind, examples)

    def record(self) -> dict[str, Any]:
        """One line of metrics.jsonl; `train` holds means since the last record."""
        start = time.perf_counter()
        evaluations = [asdict(e) for e in self.evaluate()]
        train = {name: total / self.counted for name, total in self.sums.items()}
        self.sums, self.counted = {}, 0
        cost = {
            "training_seconds": self.seconds,
            "waiting_seconds": self.waited,
            "evaluation_seconds": time.perf_counter() - start,
        }
        if self.settings.device.startswith("cuda"):
            cost["memory_mb"] = torch.cuda.max_memory_allocated(self.settings.device) / 2**20
        return {"step": self.step, "train": train, "cost": cost, "evaluations": evaluations}

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        optimizers = {name: o.state_dict() for name, o in self.algorithm.optimizers.items()}
        cuda = self.settings.device.startswith("cuda")
        return {
            "step": self.step,
            "seconds": self.seconds,
            "waited": self.waited,
            "sums": self.sums,
            "counted": self.counted,
            "algorithm": self.algorithm.state_dict(),
            "optimizers": optimizers,
            "rng": torch.get_rng_state(),
            "device_rng": torch.cuda.get_rng_state(self.settings.device) if cuda else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.algorithm.load_state_dict(state["algorithm"])
        for name, optimizer in self.algorithm.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        torch.set_rng_state(state["rng"])
        if state["device_rng"] is not None:
            torch.cuda.set_rng_state(state["device_rng"], self.settings.device)
        self.sums, self.counted = state["sums"], state["counted"]
        self.step, self.seconds, self.waited = state["step"], state["seconds"], state["waited"]


def save_checkpoint(run: Run, path: Path) -> None:
    """Write a checkpoint so that it is there whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    torch.save(run.state(), part)
    part.replace(path)


def start_or_resume(spec: RunSpec, directory: RunDirectory, settings: Settings) -> Run:
    """The run at its last whole checkpoint, with the records up to there; else from the start."""
    run = Run(spec, settings)
    if directory.checkpoint.exists():
        try:
            state = torch.load(
                directory.checkpoint, map_location=settings.device, weights_only=True
            )
            run.restore(state)
        except (RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError, OSError):
            run = Run(spec, settings)  # half-written, or of another version of the method
    directory.truncate(run.step)
    return run


def train(
    spec: RunSpec,
    directory: RunDirectory,
    settings: Settings,
    progress: Callable[[int], None] = lambda step: None,
    interrupts: Interrupts | None = None,
) -> str:
    """Train a run to its end, from its last checkpoint on; returns `done` or `diverged`.

    If `interrupts` ask to stop before, it returns `interrupted`, with a checkpoint of the last
    step. `progress` is told the number of steps done, several times a second where steps are that fast.
    The caller holds the run's lock. Raises UserError for a spec that cannot be run.
    """
    keep_freed_memory()
    torch.set_num_threads(settings.threads)
    interrupts = interrupts or Interrupts()
    directory.beat(0)
    run = start_or_resume(spec, directory, settings)
    directory.start(
        spec, run.context, provenance(settings.device, settings.threads, settings.plugins)
    )
    directory.beat(run.step)
    last_beat = last_checkpoint = time.monotonic()
    while run.step < spec.steps:
        ends = (
            spec.steps,
            run.step // spec.evaluate_every * spec.evaluate_every + spec.evaluate_every,
            run.step // CHECK_EVERY * CHECK_EVERY + CHECK_EVERY,
        )
        diverged = run.advance(min(ends) - run.step)
        if diverged is not None:
            run.step = diverged
            directory.append(_record(run, directory) | {"train": {}})
            directory.finish("diverged", diverged, run.seconds)
            return "diverged"
        evaluated = run.step % spec.evaluate_every == 0 or run.step == spec.steps
        if evaluated:
            directory.append(_record(run, directory))
        now = time.monotonic()
        if now - last_beat > BEAT_SECONDS:
            directory.beat(run.step)
            last_beat = now
        due = EVALUATION_CHECKPOINT_SECONDS if evaluated else CHECKPOINT_SECONDS
        stop = interrupts.stop
        if interrupts.save or stop or now - last_checkpoint > due or run.step == spec.steps:
            interrupts.save = False
            save_checkpoint(run, directory.checkpoint)
            last_checkpoint = time.monotonic()
        progress(run.step)
        if stop and run.step < spec.steps:
            directory.rest()
            return "interrupted"
    directory.finish("done", run.step, run.seconds)
    return "done"


def _record(run: Run, directory: RunDirectory) -> dict[str, Any]:
    """The run's record; its predictions are there before it is."""
    if run.settings.keep_predictions:
        run.keep_predictions(directory)
    return run.record()


def execute(
    spec: RunSpec,
    directory: RunDirectory,
    settings: Settings,
    progress: Callable[[int], None] = lambda step: None,
    interrupts: Interrupts | None = None,
) -> tuple[str, str]:
    """Train a run unless it has ended or another process trains it; never raises for its errors.

    Returns the state (`done`, `diverged`, `failed`, `interrupted`, or `elsewhere` while another
    process holds the run) and, for a failure, one sentence; the traceback is in failed.json.
    """
    try:
        lock = directory.lock()
        lock.acquire()
    except Timeout:
        return "elsewhere", ""
    except OSError as error:  # a full disk, or one that is not there
        return "failed", f"{type(error).__name__}: {error}"
    try:
        end = directory.end()
        if end is not None:
            return str(end["status"]), ""
        return train(spec, directory, settings, progress, interrupts), ""
    except Exception as error:
        message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        try:
            directory.fail(message, traceback.format_exc())
        except OSError:  # a full disk: the log is all that can tell
            traceback.print_exc()
        return "failed", message
    finally:
        lock.release()
