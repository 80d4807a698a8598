"""Many runs trained as one program, in which a run's numbers do not depend on the other runs.

The runs of a bundle differ only in test environments and numbers: trial, draw, and hyperparameters that do
not change shapes. Whether a run is vectorized depends on the run alone (`why_alone`).

On a CPU, a run's bits do not depend on the other runs. Operations over runs are elementwise or batched
products. The last run is repeated until there are at least two runs (batched kernels round a batch of one
differently) and no remainders (`arithmetic.Remainders`). Hyperparameters that can be drawn are tensors in
every program, as Python numbers would round differently. A run stops at the same steps in every program, so
that any program can continue from its checkpoint. On a GPU, kernels are chosen by sizes, and the bits of a
run depend on the number of runs.
"""

import math
import traceback
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from oodbench.networks.base import Network, Perturbation
from oodbench.train.evaluate import whole_metrics
from oodbench.train.run import Run
from oodbench.train.vectorized.optimizers import shared_options
from oodbench.train.vectorized.program import VectorizedProgram as VectorizedProgram

CPU_PRODUCTS = 2**22
"""The most multiplications of a forward pass for which a run is vectorized on a CPU. In larger passes,
arithmetic outweighs the overhead of a step, and batched products are no faster."""
CPU_BYTES = 2**29
"""The most bytes of a vectorized program on a CPU."""
LAYERS = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
"""Layers that may use a weight several times for one input."""
DEVICE_SHARE = 0.8
"""The share of a device's free memory for all vectorized programs on it together."""
PLAIN = (bool, int, float, str, tuple, list, dict, Tensor, np.ndarray)
"""The types of methods' attributes that `program_key` compares by value."""
MODULE = {*vars(nn.Module()), "optimizers"}
"""The attributes of every algorithm, which `program_key` does not compare by value."""
HOOKS = ("prepare", "next_buffers", "objective", "combine", "predict")
"""A method's functions that are called once for all runs."""
LEAF = (
    "takes a gradient by `torch.autograd` with respect to a new tensor, which many runs at once cannot; "
    "with respect to a scale of the logits it is `out.task.scale_gradients(out.logits, out.targets)`"
)
IN_PLACE = "changes a tensor in place: return a buffer's next value from `next_buffers`"
ADVICE = {
    "cannot be empty": "takes gradients by `torch.autograd`, which does not see the "
    "parameters of many runs: call `self.risk_gradients(out)`",
    "requires_grad_()": LEAF,
    "does not require grad": LEAF,
    "data-dependent control flow": "branches in Python on a tensor (`if`, `or`, `max`): write arithmetic "
    "or `torch.where`",
    ".item()": "makes a Python number of a tensor (`.item()`, `float`, functions of `math`): stay with "
    "tensors and torch's functions, and give metrics detached",
    "random operation": "draws random numbers: make them in `noise`, with its generator, and take them "
    "from `batch.noise`",
    "dynamic shape": "picks by values, so that the shape depends on them (a mask as an index, `nonzero`, "
    "`unique`): multiply by the mask or write `torch.where`",
    "OfEachRun": "reads names, sizes or counts of the environments: read them in `__init__`",
    "data pointer": "leaves torch (`.numpy()`, `.tolist()`): stay with tensors",
    "inplace": IN_PLACE,
    "doesn't match the broadcast shape": IN_PLACE,
}
"""Words of torch's message -> what a function did wrong, and what to write instead."""


def why_alone(run: Run) -> str | None:
    """The reason why a run is not vectorized, or None.

    It depends only on the run and its device, so that the run has the same bits with any other runs.
    """
    reason = why_not(run)
    if reason is not None or run.settings.device != "cpu":
        return reason
    weights = sum(p.numel() for p in run.algorithm.parameters() if p.dim() > 1)
    most = CPU_PRODUCTS // _inputs(run)
    if weights > most or _products(run) > most:
        return "its steps are long enough that several at once are no faster"
    return None


def capacity(run: Run) -> int:
    """The number of runs like this one, at least one, that fit into memory; measured on a GPU."""
    settings = run.settings
    if settings.device == "cpu":
        return max(1, CPU_BYTES // _bytes(run))
    torch.cuda.reset_peak_memory_stats(settings.device)
    before = torch.cuda.memory_allocated(settings.device)
    VectorizedProgram([run]).gradients(run.step)
    need = torch.cuda.max_memory_allocated(settings.device) - before
    free, _ = torch.cuda.mem_get_info(settings.device)
    return max(1, int(DEVICE_SHARE * settings.device_share * free / max(1, need)))


def _inputs(run: Run) -> int:
    return len(run.names) * run.batches_at(run.step).batch_size * (1 + run.algorithm.needs.views)


@torch.no_grad()
def _products(run: Run) -> int:
    # the multiplications for an input; a convolution uses each weight many times
    found = [0]
    layers = [m for m in run.algorithm.modules() if isinstance(m, LAYERS)]
    hooks = [
        layer.register_forward_hook(lambda m, x, y: found.append(m.weight[0].numel() * y.numel()))
        for layer in layers
    ]
    # no batch is drawn: of runs with the same data, all but one would keep it unused
    x = run.data.environments[run.names[0]].x
    assert isinstance(x, Tensor)
    run.predict(x[:1])
    for hook in hooks:
        hook.remove()
    return sum(found)


def _bytes(run: Run) -> int:
    trained = sum(p.numel() for p in run.algorithm.parameters())
    combines = run.algorithm.reduction is not None
    copies = 6 + (3 * len(run.names) if combines else 0)
    copies += 0 if run.average is None else run.average.copies
    examples = _inputs(run)
    widths = math.prod(run.problem.input_shape)
    widths += sum(m.out_features for m in run.algorithm.modules() if isinstance(m, nn.Linear))
    return 4 * (copies * trained + 6 * examples * widths)


def why_not(run: Run) -> str | None:
    """The reason why a run cannot be vectorized on any device, or None."""
    algorithm, cls = run.algorithm, type(run.algorithm)
    reduction = algorithm.reduction
    modules = list(algorithm.modules())
    draws_environments = 0 < algorithm.hparams.environments_per_step < len(run.names)
    if cls.overrides("update"):
        return "it overrides `update`"
    main = algorithm.optimizers.get("main")
    if main is None or len(algorithm.optimizers) > 1 or shared_options(main) is None:
        return "its optimizer has no vectorized form"
    if draws_environments and cls.overrides("objective"):
        return "its objective is on environments that are drawn for each run"
    if algorithm.problem.autocast is not None:
        return f"its network runs in {run.spec.precision}"
    if algorithm.hparams.accumulation > 1:
        return "its batches pass through the network in micro-batches"
    if cls.overrides("drawing_at", "trains_head_only"):
        return "it has a stage with other batches, or that trains the head alone"
    if algorithm.hparams.head_only:
        return "at first it trains the head alone"
    if run.batches_at(run.step).stored:
        return "its data are read from disk while it trains"
    if type(algorithm.network).losses is not Network.losses:
        return "its network computes the losses itself"
    if any(isinstance(m, Perturbation) or (isinstance(m, nn.Dropout) and m.p) for m in modules):
        return "its network draws random numbers for dropout or noise"
    if any("." in name for name, _ in algorithm.named_buffers()):
        return "its network has buffers, such as statistics of batch normalisation"
    if whole_metrics(run.data.dataset) is not None:
        return "its dataset computes metrics of whole splits"
    if reduction is not None and reduction.unit == "example":
        return "it combines the gradients of single examples"
    if reduction is not None and not _linear_only(algorithm.network):
        return "it combines gradients of other layers than linear ones"
    return None


def _linear_only(network: nn.Module) -> bool:
    owners = [m for m in network.modules() if any(p.requires_grad for p in m.parameters(False))]
    return all(type(m) is nn.Linear for m in owners)


def program_key(run: Run) -> tuple[object, ...] | None:
    """The properties that the runs of a program share in addition to `RunSpec.bundle_key`.

    These are the shapes of parameters and buffers, the size of batches, the optimizer's options, and the
    method's attributes that are numbers, texts or tensors, as a program reads these from its first run.
    None if the run is not vectorized.
    """
    if why_alone(run) is not None:
        return None
    shapes = tuple((n, p.shape, p.requires_grad) for n, p in run.algorithm.named_parameters())
    shapes += tuple((n, b.shape, False) for n, b in run.algorithm.named_buffers())
    optimizer = shared_options(run.algorithm.optimizers["main"]) or {}
    batch = len(run.names), run.batches_at(run.step).batch_size
    kept = vars(run.algorithm).items()
    plain = tuple(
        (n, repr(v.tolist() if isinstance(v, Tensor | np.ndarray) else v))
        for n, v in kept
        if isinstance(v, PLAIN) and n not in MODULE
    )
    return shapes, batch, tuple(map(str, optimizer.items())), plain


def explained(error: BaseException) -> str | None:
    """What a method does that `vmap` does not allow, where, and what to do instead; else None."""
    text = str(error)
    advice = next((advice for words, advice in ADVICE.items() if words in text), None)
    if advice is None:
        return None
    frames = traceback.extract_tb(error.__traceback__)
    hooks = [i for i, frame in enumerate(frames) if frame.name in HOOKS]
    if not hooks:
        return f"the method {advice}"
    file = frames[hooks[-1]].filename
    last = [frame for frame in frames[hooks[-1] :] if frame.filename == file][-1]
    return f"`{frames[hooks[-1]].name}` ({Path(file).name}, line {last.lineno}) {advice}"
