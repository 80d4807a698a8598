"""Many runs as one program: parameters are stacked, updates and evaluations run under `vmap`.

The runs of a program differ only in numbers: data, initial weights, batches, and hyperparameters that do
not change shapes. The parameters of each `Run` are views of the program's parameters, so that checkpoints,
kept predictions and the dataset's metrics see the program's updates.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from oodbench.algorithms import Algorithm, Batch
from oodbench.data.streams import to_device
from oodbench.metrics import values_of_examples
from oodbench.optimizers import Rates
from oodbench.results.run_spec import Evaluation
from oodbench.train.evaluate import Scored, evaluations_of, mean_loss, put_chunk
from oodbench.train.loop import Program
from oodbench.train.run import Run, on_host, predicted
from oodbench.train.vectorized.arithmetic import Collector, Remainders, vectorized_linear
from oodbench.train.vectorized.optimizers import VectorizedOptimizer

T = TypeVar("T")
ROWS = 2**16
"""Examples in a forward pass, summed over the runs."""


class VectorizedProgram(Program):
    """K runs at the same step, trained as one program."""

    def __init__(self, runs: Sequence[Run], multiple: int | None = None) -> None:
        """Stack the runs' parameters and optimizer states in matrices.

        The last run is repeated up to a `multiple` of rows, by default one without remainders (see
        `Remainders`).
        """
        super().__init__(runs)
        if multiple is None:
            on_cpu = runs[0].settings.device == "cpu"
            multiple = VectorizedProgram(runs[:1], 1).remainders().multiple if on_cpu else 1
        members = _filled(self.runs, multiple)
        self._algorithms = [run.algorithm for run in members]
        first = runs[0].algorithm
        self._combines = first.reduction is not None
        self._template = _template_of(first)
        self._join()
        self._slots = _slots_of(self._template)
        self._averages = [run.average for run in members if run.average is not None]
        """The rows' weight averages, if weights are averaged."""
        self._averaged = _stacked([average.running for average in self._averages])
        for name, rows in self._averaged.items():
            for average, row in zip(self._averages, rows, strict=True):
                average.running[name] = row
        self._numbers = _varying([a.hparams for a in self._algorithms], self._matrix)
        self._largest = self._matrix.new_tensor([[a.hparams.clip_norm] for a in self._algorithms])
        """The largest norms of gradients, (K, 1); 0: no limit."""
        self._batches = _Batches(members)
        self._multiples: dict[torch.Size, int] = {}
        """The multiples of `_filled` in evaluations, by the shape of a run's inputs."""

    def _join(self) -> None:
        # the trained weights become a matrix, the others stacks; the runs' weights become views of both
        parameters = [dict(algorithm.named_parameters()) for algorithm in self._algorithms]
        shapes = {
            name: p.shape
            for name, p in parameters[0].items()
            if p.requires_grad and (name.startswith("network.") or not self._combines)
        }
        trained = [[of_run[name] for name in shapes] for of_run in parameters]
        self._matrix = torch.stack(
            [torch.cat([p.detach().flatten() for p in ps]) for ps in trained]
        )
        self._optimizer = VectorizedOptimizer(
            [algorithm.optimizers["main"] for algorithm in self._algorithms], trained
        )
        parts = torch.split(self._matrix, [shape.numel() for shape in shapes.values()], 1)
        self._trained = {
            name: torch.unflatten(part, 1, shape).requires_grad_()
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }
        """Views of the matrix, (K, *shape)."""
        fixed = _stacked(
            [{n: p.detach() for n, p in ps.items() if n not in shapes} for ps in parameters]
        )
        self._buffers = _stacked([dict(a.named_buffers(recurse=False)) for a in self._algorithms])
        for k, algorithm in enumerate(self._algorithms):
            for name, rows in self._trained.items():
                parameters[k][name].data = rows.detach()[k]
            for name, rows in self._buffers.items():
                algorithm.get_buffer(name).data = rows[k]
        self._weights = {**self._trained, **fixed, **self._buffers}
        """The rows' parameters and methods' buffers by name, (K, *shape), which updates change in place."""

    def _over_runs(
        self,
        function: Callable[..., Any],
        parameters: Mapping[str, Tensor],
        numbers: dict[str, Tensor],
        *values: Any,
    ) -> Any:
        # `function(algorithm, *values)` of every run; all values but integers are stacked
        plain: Any = self._template.hparams
        slots = [self._slots[name] for name in parameters]
        of_template = [holder[key] for holder, key in slots]

        def one(given: list[Tensor], numbers: dict[str, Tensor], *values: Any) -> Any:
            self._template.hparams = replace(plain, **numbers)
            for (holder, key), p in zip(slots, given, strict=True):
                holder[key] = p
            return function(self._template, *values)

        dims = (0, 0, *(None if isinstance(v, int) else 0 for v in values))
        try:
            return vmap(one, in_dims=dims)([*parameters.values()], numbers, *values)
        finally:
            self._template.hparams = plain
            for (holder, key), p in zip(slots, of_template, strict=True):
                holder[key] = p

    def run_steps(self, steps: int) -> list[int | None]:
        """Do `steps` updates of every run; returns each run's first step whose loss was not finite."""
        start = time.perf_counter()
        self._template.train()
        updates = range(self.runs[0].step, self.runs[0].step + steps)
        rates = [[algorithm.rates(step) for algorithm in self._algorithms] for step in updates]
        shares: Any = [None] * steps
        if self._averages:
            rows = [[[average.share(step)] for average in self._averages] for step in updates]
            shares = to_device(torch.tensor(rows, dtype=self._matrix.dtype), self._matrix.device)
        every = zip(updates, rates, self._optimizer.numbers(rates), shares, strict=True)
        series = on_host([self._update(*of_step) for of_step in every])
        seconds = (time.perf_counter() - start) / len(self.runs)
        return [
            run.record_steps({n: [v[k] for v in values] for n, values in series.items()}, seconds)
            for k, run in enumerate(self.runs)
        ]

    def _update(
        self, step: int, rates: Sequence[Rates], numbers: Mapping[str, Tensor], shares: Any
    ) -> dict[str, Tensor]:
        if self._template.overrides("start_stage"):
            self._start_stages(step)
        for k, of_run in enumerate(rates):
            if of_run.restart:
                self._optimizer.restart(k)
        metrics, gradients, buffers = self.gradients(step)
        with torch.no_grad():
            for name, value in buffers.items():
                self._buffers[name].copy_(value)
            reduction = self._template.reduction
            if reduction is not None and reduction.observe is not None:
                metrics |= self._observed(gradients, reduction.observe)
            flat = torch.cat([gradients[name].flatten(1) for name in self._trained], 1)
            if any(algorithm.hparams.clip_norm for algorithm in self._algorithms):
                largest, norm = self._largest, torch.linalg.vector_norm(flat, dim=1, keepdim=True)
                share = (largest / (norm + 1e-6)).clamp(max=1.0)
                flat = flat * torch.where(largest > 0, share, 1.0)
            self._optimizer.step(self._matrix, flat, numbers)
            for name, averaged in self._averaged.items():
                share = shares.view(-1, *[1] * (averaged.dim() - 1)).to(averaged.dtype)
                averaged.lerp_(self._weights[name], share)
        return metrics

    @torch.no_grad()
    def _start_stages(self, step: int) -> None:
        last = len(self.runs) - 1
        for algorithm in self._algorithms[: last + 1]:
            algorithm.start_stage(step)
        for rows in (self._matrix, *self._buffers.values()):
            rows[last:-1] = rows[-1:]  # of a repeated run, the weights are views of its last row

    def gradients(
        self, step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """The metrics, (K,) each, and by name the gradients and the next buffers, (K, *shape) each."""
        return self._gradients_of(*self._batches[step], step)

    def remainders(self) -> Remainders:
        """The remainders of an update, without doing the update."""
        step = self.runs[0].step
        batch, noise = self._batches[step]
        found = Remainders(len(self._algorithms))
        with found:
            self._gradients_of(batch, noise, step)
        return found

    def _gradients_of(
        self, batch: dict[str, Tensor], noise: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        collector = None
        if self._combines:
            anchor = torch.zeros((), device=self._matrix.device, requires_grad=True)
            combine = partial(self._over_runs, lambda a, g: a.combine(g), {}, self._numbers)
            collector = Collector(batch["x"].shape[1], combine, anchor)
        with vectorized_linear(self._template.network, collector):
            totals, losses, metrics, buffers = self._over_runs(
                _risks, self._weights, self._numbers, batch, noise, step
            )
            if collector is None:
                found = torch.autograd.grad(totals.sum(), list(self._trained.values()))
                gradients = dict(zip(self._trained, found, strict=True))
            else:
                totals.sum().backward()
                names: dict[Tensor, str] = {p: n for n, p in self._template.named_parameters()}
                gradients = {names[p]: g for p, g in collector.combined().items()}
        return {"loss": losses.detach(), **metrics}, gradients, buffers

    def _observed(
        self,
        gradients: Mapping[str, Tensor],
        observe: Callable[[Tensor, Tensor], dict[str, Tensor]],
    ) -> dict[str, Tensor]:
        weights = [p.flatten(1).square().sum(1) for p in self._trained.values()]
        kept = [gradients[name].flatten(1).sign().square().sum(1) for name in self._trained]
        result: dict[str, Tensor] = vmap(observe)(torch.stack(weights, 1), torch.stack(kept, 1))
        return result

    @torch.no_grad()
    def evaluate(self, which: Sequence[int]) -> list[list[Evaluation]]:
        """All metrics of the evaluated weights of some runs, by index."""
        self._template.eval()
        weights = self._weights
        if self._averages:
            if self._averages[0].by_validation:
                losses = self._evaluations(which, lambda run: run.validated_on, weights)
                task = self.runs[0].problem.task
                for k, scores in losses.items():
                    self._averages[k].validated(mean_loss(scores, task))
            weights = weights | _stacked([average.evaluated for average in self._averages])
        found = self._evaluations(which, lambda run: run.scored, weights)
        return [self.runs[k].completed(found[k]) for k in which]

    def _evaluations(
        self,
        which: Sequence[int],
        scored: Callable[[Run], Scored],
        weights: Mapping[str, Tensor],
    ) -> dict[int, list[Evaluation]]:
        alike: dict[object, list[int]] = {}
        for k in which:
            alike.setdefault(_shapes(scored(self.runs[k])), []).append(k)
        found: dict[int, list[Evaluation]] = {}
        with vectorized_linear(self._template.network):
            for indices in alike.values():
                members = _filled(indices)
                predict = partial(self._predict, weights, members)
                of_members = [scored(self.runs[k]) for k in members]
                found |= zip(indices, evaluate_vectorized(predict, of_members), strict=False)
        return found

    def _predict(
        self, weights: Mapping[str, Tensor], members: list[int], x: Tensor, part: slice
    ) -> Tensor:
        # the logits (R, N, C) of inputs (R, N, ...) of the R runs members[part]
        runs, kind = members[part], x.shape[1:]
        if kind not in self._multiples:
            self._multiples[kind] = 1
            if x.device.type == "cpu":
                with Remainders(len(_filled(runs))) as watched:
                    self._predict(weights, members, x, part)
                self._multiples[kind] = watched.multiple
        filled = _filled([*range(len(runs))], self._multiples[kind])
        if len(filled) > len(runs):
            x = x[filled]
        rows = to_device(torch.tensor([runs[i] for i in filled]), self._matrix.device)
        of_rows = {name: p[rows] for name, p in weights.items()}
        numbers = {name: value[rows] for name, value in self._numbers.items()}
        transform = self.runs[0].data.dataset.transform
        logits: Tensor = self._over_runs(
            lambda algorithm, x: predicted(algorithm, transform(x, None)), of_rows, numbers, x
        )
        if self.runs[0].data.units is None:
            return logits[: len(runs)]
        pairs = zip(runs, logits, strict=False)
        return torch.stack([self.runs[k].in_units(of_run) for k, of_run in pairs])

    def sync_to_runs(self) -> None:
        """Write the optimizer's state into the runs; their weights are views of the program's anyway."""
        self._optimizer.sync_to_runs()


def _template_of(algorithm: Algorithm) -> Algorithm:
    # stands for every run in `vmap`, without what differs between runs
    template = copy.deepcopy(algorithm)
    template.optimizers = {}
    problem = algorithm.problem
    own: Any = {n: OfEachRun(getattr(problem, n)) for n in ("environments", "sizes", "counts")}
    template.problem = replace(problem, **own)
    return template


def _slots_of(template: Algorithm) -> dict[str, tuple[dict[str, Any], str]]:
    # the dictionary and the key in which the template holds each weight
    slots: dict[str, tuple[dict[str, Any], str]] = {
        f"{prefix}.{name}" if prefix else name: (module._parameters, name)
        for prefix, module in template.named_modules()
        for name in module._parameters
    }
    return slots | {name: (template._buffers, name) for name in template._buffers}


def _filled(items: list[T], multiple: int = 1) -> list[T]:
    # the last item is repeated up to a multiple. There are at least two: batched kernels round a batch of
    # one differently, and a run's bits must not depend on the number of runs
    count = max(2, -(-len(items) // multiple) * multiple)
    return items + items[-1:] * (count - len(items))


def _risks(
    algorithm: Algorithm, batch: dict[str, Tensor], noise: dict[str, Tensor], step: int
) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    out = algorithm.outputs(algorithm.prepare(Batch(**batch, noise=noise)), step)
    buffers = algorithm.next_buffers(out)
    out.buffers.update(buffers)
    detached = {name: value.detach() for name, value in buffers.items()}
    if algorithm.reduction is None:
        loss = algorithm.minimised(out)
        return loss, loss, out.metrics, detached
    return out.risks.sum(), out.risks.mean(), out.metrics, detached


def _stacked(weights: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    names = weights[0] if weights else ()
    return {name: torch.stack([w[name] for w in weights]) for name in names}


def _shapes(scored: Scored) -> tuple[object, ...]:
    return tuple(
        (name, e.x.shape, e.y.shape, *((s, len(i)) for s, i in scored.splits[name].items()))
        for name, e in scored.environments.items()
    )


def evaluate_vectorized(
    predict: Callable[[Tensor, slice], Tensor], scored: Sequence[Scored]
) -> list[list[Evaluation]]:
    """The evaluations of K predictors, each on other examples, as `evaluate` would return them.

    All examples are in memory, and their shapes and the sizes of their splits are equal. `predict` maps the
    inputs (R, N, ...) of R consecutive predictors, and their slice, to logits (R, N, C).
    """
    task, collected = scored[0].task, dict[str, dict[str, Tensor]]()
    for name, first in scored[0].environments.items():
        data, collected[name] = [each.environments[name] for each in scored], {}
        for rows in zip(*(each.chunks(name) for each in scored), strict=True):
            x, y = zip(*((e.x[r], e.y[r]) for e, r in zip(data, rows, strict=True)), strict=True)
            size = max(2, ROWS // max(1, len(y[0])))
            logits = [
                predict(torch.stack(x[i : i + size]), slice(i, i + size))
                for i in range(0, len(data), size)
            ]
            found = values_of_examples(task, torch.cat(logits), torch.stack(y))
            put_chunk(collected[name], [*rows], found, len(first.y))
    return evaluations_of(collected, scored)


def _varying(hparams: Sequence[Any], like: Tensor) -> dict[str, Tensor]:
    # the hyperparameters, as tensors (K,), that differ or can be drawn; even if all runs agree, as a run's
    # bits must not depend on the other runs
    varying = {}
    for f in fields(hparams[0]):
        values = [getattr(h, f.name) for h in hparams]
        distributions = [d for _, d in f.metadata.get("by_family", {}).values()]
        drawn = any(d is not None for d in (f.metadata.get("distribution"), *distributions))
        types = {type(value) for value in values}
        if types <= {int, float} and (drawn or len(set(values)) > 1):
            dtype = like.dtype if float in types else torch.long
            varying[f.name] = torch.tensor(values, dtype=dtype, device=like.device)
    return varying


class OfEachRun:
    """A field of `Problem` that differs between the runs of a program; only its length can be read."""

    def __init__(self, values: Sequence[object]) -> None:
        self._length = len(values)

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        raise TypeError("an OfEachRun equals nothing")

    __hash__ = None  # type: ignore[assignment]


class _Batches:
    """The stacked batches of all runs; runs with the same data share batches, but not noise."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._algorithms = [run.algorithm for run in runs]
        keys = [run.spec.data_key for run in runs]
        distinct = list(dict.fromkeys(keys))
        self._feeds = [runs[keys.index(key)].batches_at(0) for key in distinct]
        self._indices = [distinct.index(key) for key in keys]
        self._last: list[Batch] = []
        self._made: dict[str, Tensor]

    def __getitem__(self, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A step's tensors of `Batch`, and noise, (K, ...) each; input vectors are columns in memory."""
        batches = [feed[step] for feed in self._feeds]
        if not self._last or any(a is not b for a, b in zip(batches, self._last, strict=True)):
            self._last = batches
            shape = batches[0].x.shape
            inputs = [b.x for b in batches]
            if len(shape) == 3:
                inputs = [x.flatten(0, 1).mT.contiguous() for x in inputs]
            x = torch.stack([inputs[index] for index in self._indices])
            given = {f.name: [getattr(b, f.name) for b in batches] for f in fields(Batch)}
            self._made = {
                name: torch.stack([values[index] for index in self._indices])
                for name, values in given.items()
                if name != "x" and isinstance(values[0], Tensor)
            }
            self._made["x"] = torch.unflatten(x.mT, 1, shape[:2]) if len(shape) == 3 else x
        of_runs = [
            algorithm.noise_at(batches[index], step)
            for algorithm, index in zip(self._algorithms, self._indices, strict=True)
        ]
        device = batches[0].x.device
        names = of_runs[0]
        noise = {n: to_device(torch.stack([each[n] for each in of_runs]), device) for n in names}
        return self._made, noise
