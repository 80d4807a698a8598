"""SHOT, LAME, BatchNorm and ARM beside their authors' code: python -m tests.peer.adaptations NAME CHECKOUT.

CHECKOUT is a clone of tim-learn/SHOT (f7d555a), fiveai/LAME (d2e5f63), bethgelab/robustness (0ef82b1) or
henrikmarklund/arm (e4a0ce2). Both codes get the same weights, inputs and order in float64; the largest
difference of a logit, of ARM of a weight after five updates, is printed.
"""

import copy
import importlib
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import oodbench
from oodbench.adaptations import Stream, in_batches
from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.networks import build
from oodbench.tasks import Task

COUNT, SIZE, CLASSES, EPOCHS = 120, 20, 5, 3


def network(outputs: int = CLASSES, channels: int = 2) -> Any:
    """A small network with batch normalisation that has seen other inputs."""
    made: Any = build("ConvNet", {"width": 6, "depth": 2}, (channels, 8, 8), outputs, 0).double()
    for _ in range(20):
        made(torch.randn(40, channels, 8, 8, dtype=torch.float64))
    made.classifier.weight.data *= 4
    return made.eval()


class Pass(list[Any]):
    """The batches of a pass, which is its own iterator, with the `next` of Python 2 as its method."""

    def __iter__(self) -> Any:
        return self

    def next(self) -> Any:
        """Take the first batch; raises IndexError after the last."""
        return self.pop(0)

    __next__ = next


class Batches:
    """A loader of one pass of a stream after the other."""

    def __init__(self, stream: Stream, generator: torch.Generator | None = None) -> None:
        self.stream, self.generator = stream, generator

    def __len__(self) -> int:
        return len(self.stream.batches)

    def __iter__(self) -> Any:
        shuffled = self.stream if self.generator is None else self.stream.shuffled(self.generator)
        return Pass((x, torch.zeros(len(x)), places) for places, x in shuffled)


class Part(nn.Sequential):
    """A part of a network in the place of one that would be loaded from a file."""

    in_features = 0

    def load_state_dict(self, *_: Any, **__: Any) -> Any:
        """Keep the weights."""


def shot(checkout: str, x: Tensor) -> float:
    """Its whole adaptation, at our first weights and in our order."""
    sys.path.insert(0, str(Path(checkout) / "object"))
    sys.modules["cv2"] = mock.MagicMock()  # for pictures of theirs
    code: Any = importlib.import_module("image_target")
    made = network()
    made.classifier.bias.data[1] -= 9  # so that a class is predicted of nothing
    values = {"name": "SHOT", "epochs": EPOCHS, "batch_size": SIZE}
    ours = oodbench.adapt(made, x, values)
    stream = Stream(in_batches(torch.arange(COUNT), SIZE), lambda places: (x[p] for p in places))
    loaders = {"test": Batches(stream), "target": Batches(stream, torch.Generator().manual_seed(0))}
    heads = {"feat_bottleneck": Part(), "feat_classifier": Part(made.classifier)}
    parts = {"ResBase": Part(made.featurizer), **heads}
    args = mock.MagicMock(
        net="res", max_epoch=EPOCHS, interval=EPOCHS, lr=1e-2, lr_decay1=1.0, lr_decay2=1.0,
        class_num=CLASSES, cls_par=0.3, ent_par=1.0, epsilon=1e-5, threshold=0, distance="cosine",
        output_dir_src="", dset="office", issave=False,
    )  # fmt: skip
    here: Any = {"cuda": lambda self: self}
    for name, part in parts.items():
        setattr(code.network, name, lambda part=part, **_: part)
    code.data_load = lambda _: loaders
    with mock.patch.multiple(Tensor, **here), mock.patch.multiple(nn.Module, **here):
        with mock.patch.object(torch, "load"):
            code.train_target(args)
    return float((made.eval()(x) - ours).detach().abs().max())


def lame(checkout: str, x: Tensor) -> float:
    """Its three affinities and its optimisation, batch by batch."""
    package = types.ModuleType("lame_code")
    package.__path__ = [str(Path(checkout) / "src" / "adaptation")]
    registry = mock.MagicMock()
    registry.ADAPTER_REGISTRY.register.return_value = lambda cls: cls
    sys.modules |= {"lame_code": package, "lame_code.build": registry}
    sys.modules["lame_code.non_adaptive"] = mock.MagicMock(NonAdaptiveMethod=object)
    code, made, worst = importlib.import_module("lame_code.lame"), network(), 0.0
    for affinity in ("knn", "rbf", "linear"):
        values = {"name": "LAME", "affinity": affinity, "batch_size": SIZE}
        ours = oodbench.adapt(made, x, values).exp()
        for places in in_batches(torch.arange(COUNT), SIZE):
            features = made.featurizer(x[places])
            shares = made.classifier(features).softmax(1)
            name = {"knn": "kNN"}.get(affinity, affinity)
            kernel = getattr(code, f"{name}_affinity")(sigma=1.0, knn=5)
            pairs = kernel(nn.functional.normalize(features, dim=1)).double()
            theirs = code.laplacian_optimization(-torch.log(shares + 1e-10), pairs)
            worst = max(worst, float((theirs - ours[places]).abs().max()))
    return worst


def batch_norm(checkout: str, x: Tensor) -> float:
    """Its statistics of a batch, whose variance is the sample's, alone and mixed with training's."""
    sys.path.insert(0, str(Path(checkout) / "robusta" / "batchnorm"))
    code, worst, of = importlib.import_module("bn"), 0.0, torch.var_mean
    for prior in (0, 16):
        values = {"name": "BatchNorm", "prior": prior, "batch_size": SIZE}
        with mock.patch.object(torch, "var_mean", lambda x, dims, correction: of(x, dims)):
            ours = oodbench.adapt(network(), x, values)
        theirs = code.adapt_bayesian(network(), prior / (prior + SIZE)).double()
        theirs.train()
        for places in in_batches(torch.arange(COUNT), SIZE):
            worst = max(worst, float((theirs(x[places]) - ours[places]).abs().max()))
    return worst


def arm(checkout: str, x: Tensor) -> float:
    """Five updates of ARM-CML by Adam with weight decay, and predictions of whole support sets."""
    sys.path.insert(0, checkout)
    sys.modules["higher"] = mock.MagicMock()
    code = importlib.import_module("algorithm.algorithm")
    problem = Problem((2, 8, 8), Task("multiclass", CLASSES), ("a", "b", "c"), 5, sizes=(SIZE,) * 3)
    cls: Any = algorithms.get("ARM")
    values = cls.Hparams(batch_size=SIZE, weight_decay=0.1, context_width=8)
    ours = cls(network(), problem, values).double()
    ours.optimizers = ours.configure()
    hparams = {"optimizer": "adam", "learning_rate": 1e-3, "weight_decay": 0.1}
    hparams |= {"support_size": SIZE, "n_context_channels": 1, "adapt_bn": False}
    model, context = copy.deepcopy(ours.network), copy.deepcopy(ours.context)
    theirs = code.ARM_CML(model, nn.CrossEntropyLoss(), "cpu", context, hparams)
    for step in range(5):
        inputs = torch.randn(3, SIZE, 2, 8, 8, dtype=torch.float64)
        y = torch.randint(CLASSES, (3, SIZE))
        ours.train_step(Batch(inputs, y), step)
        theirs.learn(inputs.flatten(0, 1), y.flatten())
    weights = [parameters_to_vector(each.parameters()) for each in (ours, theirs)]
    predicted = [each.eval().predict(x) for each in (ours, theirs)]
    return max(float((a - b).detach().abs().max()) for a, b in (weights, predicted))


SOURCES: dict[str, Callable[[str, Tensor], float]] = {
    "SHOT": shot, "LAME": lame, "BatchNorm": batch_norm, "ARM": arm
}  # fmt: skip


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_grad_enabled(sys.argv[1] in ("SHOT", "ARM"))
    drawn = torch.randn(COUNT, 2, 8, 8, dtype=torch.float64) * math.sqrt(2) + 0.3
    print(f"{sys.argv[1]}: {SOURCES[sys.argv[1]](sys.argv[2], drawn):.0e}")
