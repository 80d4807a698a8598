"""A run in memory: its data, algorithm, updates and evaluations."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Problem, algorithms, why_skipped
from oodbench.data.preparation import fits, is_discrete, part
from oodbench.data.streams import digest_of
from oodbench.datasets import Dataset, Environment
from oodbench.errors import UserError, wrong_result
from oodbench.hparams import checked
from oodbench.networks.base import build, networks
from oodbench.results.predictions import FITTED, write_examples, write_predictions
from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import Evaluation, RunSpec
from oodbench.seeds import derive
from oodbench.steps import Drawing
from oodbench.train.adapted import adapted_outputs, drawn_batches, with_adaptation
from oodbench.train.averages import make_average
from oodbench.train.batches import Batches
from oodbench.train.evaluate import (
    Scored,
    constant_answer,
    evaluate,
    logits,
    mean_loss,
    whole_metrics,
    with_memorized,
)
from oodbench.train.loading import batches, drawn_index, fit_to_examples, load_data, trained_counts
from oodbench.train.process import (
    AUTOCAST,
    check_precision,
    generator_states,
    seed_process,
    set_generator_states,
)
from oodbench.train.settings import TrainSettings

COUNTED = ("step", "seconds", "waited", "sums", "counts")
"""The attributes of a run that count its updates, as they are in a checkpoint."""


def problem_of(spec: RunSpec, dataset: Dataset, **known: Any) -> Problem:
    """The `Problem` of a run, with what is `known` of its examples."""
    return Problem(
        dataset.input_shape,
        dataset.task,
        dataset.trainable(spec.held_out),
        spec.steps,
        attributes=len(dataset.attributes),
        pretrained=networks.get(spec.network).is_pretrained(spec.network_hparams),
        zero_shot=networks.get(spec.network).is_zero_shot(spec.network_hparams),
        seed=derive("environments", spec.dataset, spec.test_environments, spec.trial),
        autocast=AUTOCAST.get(spec.precision),
        **known,
    )


def build_algorithm(spec: RunSpec, problem: Problem, device: str) -> Algorithm:
    """The algorithm of a run with initial weights, on a device.

    The network's weights depend only on the network, its hyperparameters and (dataset, test environments,
    trial). Weights that the algorithm adds depend on its name, too. Raises UserError if the algorithm
    cannot be run on the problem.
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
    reason = why_skipped(cls, problem, spec.hparams)
    if reason is not None:
        raise UserError(f"{spec.algorithm} cannot be run on {spec.dataset}: {reason}")
    hparams = checked(cls.Hparams, spec.hparams, f"the hyperparameters of {spec.algorithm}")
    seed_process(derive(*shared, spec.algorithm))
    algorithm: Algorithm = cls(network, problem, hparams).to(device)
    has_head = any(p.requires_grad for p in algorithm.network.classifier.parameters())
    if not has_head and any(algorithm.trains_head_only(step) for step in (0, spec.steps - 1)):
        raise UserError(
            f"{spec.algorithm} trains the head alone in some steps, and the network "
            f"{spec.network} has no trained head"
        )
    if spec.channels_last:
        algorithm.network.to(memory_format=torch.channels_last)
    algorithm.optimizers = algorithm.configure()
    return algorithm


def predicted(algorithm: Algorithm, x: Tensor) -> Tensor:
    """The logits that `predict` gives for inputs (N, ...); raises UserError for another shape."""
    logits, wanted = algorithm.predict(x), algorithm.problem.task.shape(len(x))
    if getattr(logits, "shape", None) != wanted:
        form, given = f"logits of the shape {wanted}", getattr(logits, "shape", logits)
        raise wrong_result("predict", type(algorithm).__name__, form, given)
    return logits


def on_host(collected: Sequence[Mapping[str, Tensor]]) -> dict[str, list[Any]]:
    """The metrics of updates by name, in one copy from the device: a value for each update that has one.

    A value is a number or, for metrics (K,) of K runs, a list of numbers.
    """
    names, device = dict.fromkeys(chain(*collected)), collected[0]["loss"].device
    series = {
        name: torch.stack([metrics[name] for metrics in collected if name in metrics])
        for name in names
    }
    values = iter(torch.cat([s.to(device, torch.double) for s in series.values()]).tolist())
    return {name: [*islice(values, len(s))] for name, s in series.items()}


class Run:
    """A run in memory, at a step."""

    def __init__(self, spec: RunSpec, settings: TrainSettings) -> None:
        """Raise UserError if the spec cannot be run on the device of the settings."""
        check_precision(spec.precision, settings.device)
        self.spec = spec
        self.settings = settings
        seed_process(derive("data", spec.dataset, spec.trial))
        self.data = load_data(spec, settings)
        dataset = self.data.dataset
        self.names = dataset.trainable(spec.held_out)
        self.problem = problem_of(
            spec,
            dataset,
            sizes=tuple(len(self.data.splits[name]["in"]) for name in self.names),
            discrete=is_discrete(dataset, self.data.environments),
            counts=trained_counts(self.data, self.names),
        )
        self.algorithm = build_algorithm(spec, self.problem, settings.device)
        fit_to_examples(self.algorithm, self.data, self.names)
        scored = {
            name: environment
            for name, environment in self.data.environments.items()
            if not (dataset.evaluation_environments and name in self.names)
        }
        whole = {"groups": self.data.groups, "whole": whole_metrics(dataset)}
        self.scored = self._scored(scored, self.data.with_mislabeled(), **whole)
        self.average = None
        if (average := spec.average) is not None:
            every = spec.evaluate_every
            self.average = make_average(average, self.algorithm, spec.steps, every)
        by_validation = self.average is not None and self.average.by_validation
        self.validated_on = self._held_out() if by_validation else self._parts({})
        """The examples of the average's validation loss."""
        self.set_aside = self._set_aside()
        """The examples of the method's own validation loss."""
        drawn = partial(batches, spec, self.data, self.names, self.algorithm, settings)
        self._batches: Callable[[Drawing], Batches] = cache(drawn)
        self.batches_at(0)  # raises UserError for an environment without examples
        self.step = 0
        self.seconds = self.waited = 0.0
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    @property
    def context(self) -> dict[str, Any]:
        """Facts about the dataset and the task that tables need in addition to the spec."""
        dataset = self.data.dataset
        read_as = {r.column: f"{r.kind}: {r.why}" for r in dataset.readings}
        about = {"data_notes": list(dataset.notes), "read_as": read_as}
        return {key: value for key, value in about.items() if value} | {
            "dataset_label": self.spec.dataset_label or dataset.label,
            "family": dataset.metadata.family,
            "shift": dataset.metadata.shift,
            "training_environments": self.names,
            "classes": dataset.classes,
            "metric": dataset.metric,
            "higher_is_better": dataset.higher_is_better,
            "constant": constant_answer(self.data, self.names, self.scored.environments),
        }

    def batches_at(self, step: int) -> Batches:
        """The batches from which a step draws."""
        return self._batches(self.algorithm.drawing_at(step))

    def run_steps(self, steps: int) -> int | None:
        """Do `steps` updates; returns the first step whose loss was not finite, or None."""
        start = time.perf_counter()
        self.algorithm.train()
        collected: list[dict[str, Tensor]] = []
        for step in range(self.step, self.step + steps):
            batches = self.batches_at(step)
            waited = batches.waiting_seconds
            collected.append(self.algorithm.train_step(batches[step], step))
            self.waited += batches.waiting_seconds - waited
            if self.average is not None:
                self.average.update(step)
        return self.record_steps(on_host(collected), time.perf_counter() - start)

    def record_steps(self, series: Mapping[str, Sequence[float]], seconds: float) -> int | None:
        """Advance by some updates, given the values of metrics in these updates, and the time taken.

        Returns the first step whose loss was not finite, or None.
        """
        start, losses = self.step, series["loss"]
        self.step += len(losses)
        self.seconds += seconds
        for name, values in series.items():
            self.counts[name] = self.counts.get(name, 0) + len(values)
            for value in values:
                self.sums[name] = self.sums.get(name, 0.0) + value
        return next((start + i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C), in the targets' units, of inputs (N, ...) as an environment holds them."""
        return self.in_units(predicted(self.algorithm, self.data.dataset.transform(x, None)))

    def in_units(self, outputs: Tensor) -> Tensor:
        """The algorithm's outputs (N, C) in the targets' units."""
        return outputs if self.data.units is None else self.data.units.predictions(outputs)

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Within the block, the algorithm has the weights that are scored, selected and kept."""
        return nullcontext() if self.average is None else self.average.in_place()

    @torch.no_grad()
    def evaluate(self) -> list[Evaluation]:
        """All metrics of the evaluated weights.

        A weight average or a method that needs validation losses gets them first.
        """
        method, task = self.algorithm, self.problem.task
        method.eval()
        if self.average is not None and self.average.by_validation:
            self.average.validated(mean_loss(evaluate(self.predict, self.validated_on), task))
        if self.set_aside.environments and method.drawing_at(self.step - 1).held_out:
            method.validated(mean_loss(evaluate(self.predict, self.set_aside), task), self.step)
        with self.evaluated_weights():
            evaluations = evaluate(self.predict, self.scored)
        return self.completed(evaluations)

    def completed(self, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
        """The evaluations, with the share memorized, scores after adaptation, and the dataset's metrics."""
        with self.evaluated_weights():
            outputs = adapted_outputs(self.spec, self.algorithm, self.data, self.scored)
            whole = with_adaptation(outputs, self.data, with_memorized(evaluations))
            return whole + self.own_metrics()

    def _scored(
        self,
        environments: Mapping[str, Environment],
        splits: Mapping[str, Mapping[str, Tensor]],
        **more: Any,
    ) -> Scored:
        drawn = drawn_batches(self.spec, self.algorithm, splits)
        workers = self.settings.loader_workers
        task = self.problem.task
        return Scored(environments, splits, task, batches=drawn, loader_workers=workers, **more)

    def _set_aside(self) -> Scored:
        method, indices = self.algorithm, dict[str, Tensor]()
        if method.overrides("validated"):
            drawing = method.drawing_at(0)._replace(of_held_out=True)
            for name in self.names if drawing.held_out else ():
                indices[name] = drawn_index(self.spec, self.data, name, drawing)
        return self._parts(indices)

    def _held_out(self) -> Scored:
        # the `out` splits of the training environments or, if all are empty, the validation environments
        splits = self.data.splits
        held_out = {name: splits[name].get("out", torch.empty(0)) for name in self.names}
        if not any(map(len, held_out.values())):
            validation = self.spec.validation_environments
            held_out = {name: torch.cat([*splits[name].values()]) for name in validation}
        parts = self._parts({name: index for name, index in held_out.items() if len(index)})
        if not parts.environments:
            raise UserError(f"{self.spec.dataset}: no example is held out for validation")
        return parts

    def _parts(self, indices: Mapping[str, Tensor]) -> Scored:
        parts = {name: part(self.data.environments[name], p) for name, p in indices.items()}
        splits = {n: {"out": torch.arange(len(e.y), device=e.y.device)} for n, e in parts.items()}
        return self._scored(parts, splits)

    @torch.no_grad()
    def own_metrics(self) -> list[Evaluation]:
        """The dataset's metrics of the predictor itself, with the present weights."""

        def predict(x: Tensor) -> Tensor:
            return self.in_units(self.algorithm.predict(x.to(self.settings.device))).cpu()

        found = self.data.dataset.predictor_metrics(predict, self.spec.trial)
        return [Evaluation(None, None, name, value, 1) for name, value in found.items()]

    @torch.no_grad()
    def keep_predictions(self, directory: RunDirectory) -> None:
        """Write every example's logits at this step, and once for a run its targets and splits."""
        self.algorithm.eval()
        with self.evaluated_weights():
            kept = logits(self.predict, self.scored)
            outputs = adapted_outputs(self.spec, self.algorithm, self.data, self.scored)
        for name, of_splits in outputs.items():
            for half, values in of_splits.items():
                kept[name][self.data.splits[name][half].cpu()] = values.cpu()
        write_predictions(directory, self.step, {name: k.numpy() for name, k in kept.items()})
        if (directory.kept / "predictions" / "examples.npz").exists():
            return
        examples, inputs = {}, {}
        for name, environment in self.scored.environments.items():
            inputs[name] = FITTED if fits(self.data.dataset) else digest_of(environment.x)
            out = torch.zeros(len(environment.y), dtype=torch.bool)
            out[self.data.splits[name].get("out", torch.empty(0, dtype=torch.long)).cpu()] = True
            examples[name] = (environment.y.cpu().numpy(), out.numpy())
        kind, classes = self.problem.task.kind, self.data.dataset.classes
        write_examples(directory, kind, examples, classes, inputs)

    def record(self, evaluations: Sequence[Evaluation], seconds: float) -> dict[str, Any]:
        """A line of metrics.jsonl; resets the training means. `seconds` is the evaluation's time."""
        train = {name: total / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        cost = {
            "training_seconds": self.seconds,
            "waiting_seconds": self.waited,
            "evaluation_seconds": seconds,
        }
        if self.settings.device.startswith("cuda"):
            cost["memory_mb"] = torch.cuda.max_memory_allocated(self.settings.device) / 2**20
        return {
            "step": self.step,
            "train": train,
            "cost": cost,
            "evaluations": [vars(e) for e in evaluations],
        }

    def state(self) -> dict[str, Any]:
        """All that is needed to resume from this step, as tensors and plain values."""
        optimizers = {name: o.state_dict() for name, o in self.algorithm.optimizers.items()}
        cuda = self.settings.device.startswith("cuda")
        average = {} if self.average is None else {"average": self.average.state()}
        return average | {
            **{name: vars(self)[name] for name in COUNTED},
            "algorithm": self.algorithm.state_dict(),
            "optimizers": optimizers,
            "rng": torch.get_rng_state(),
            "device_rng": torch.cuda.get_rng_state(self.settings.device) if cuda else None,
            "process_rng": generator_states(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.algorithm.load_state_dict(state["algorithm"])
        for name, optimizer in self.algorithm.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        if self.average is not None:
            self.average.restore(state["average"])
        torch.set_rng_state(state["rng"])
        set_generator_states(state["process_rng"])
        if state["device_rng"] is not None:
            torch.cuda.set_rng_state(state["device_rng"], self.settings.device)
        for name in COUNTED:
            setattr(self, name, state[name])
