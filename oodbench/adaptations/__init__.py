"""Test-time adaptation of a trained network to unlabelled test inputs: base classes, registry, `adapt`."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oodbench.errors import UserError, names_arguments
from oodbench.hparams import checked, defaults, hparam
from oodbench.networks.base import Network
from oodbench.registry import Registry

adaptations: Registry[type["Adaptation"]] = Registry(
    "adaptation", "oodbench.adaptations.Adaptation"
)


def register(name: str, *, paper: str) -> Callable[[type["Adaptation"]], type["Adaptation"]]:
    """Register an adaptation under `name`, with the paper that published it."""
    return adaptations.add(name, paper)


@dataclass(frozen=True)
class Stream:
    """Unlabelled inputs in order of arrival, in batches; iterating gives (indices, inputs) pairs."""

    batches: Sequence[Tensor]
    """The indices (n,) of each batch's inputs."""
    read: Callable[[Sequence[Tensor]], Iterator[Tensor]]
    """Maps batches of indices (n,) to batches of inputs (n, ...)."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.batches, self.read(self.batches), strict=True)

    def shuffled(self, generator: torch.Generator) -> "Stream":
        """The same inputs in random order, in batches of the same sizes."""
        order = torch.cat([*self.batches])
        order = order[torch.randperm(len(order), generator=generator)]
        sizes = [len(batch) for batch in self.batches]
        return Stream(torch.split(order, sizes), self.read)


class Adaptation(ABC):
    """A classifier that adapts to the unlabelled inputs that it predicts.

    `network` is a copy of the trained network, in evaluation mode, which a subclass may change freely.
    `logits` sees the inputs batch by batch, in the order of the stream. `observe` sees all inputs before
    the first prediction, for adaptations that need several passes.
    """

    needs: ClassVar[str]
    """What the network must have, to complete the error sentence "it needs ..."."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams:
        """Hyperparameters of every adaptation: how test inputs arrive."""

        batch_size: int = hparam(64, low=0)
        """About how many inputs arrive together; batch sizes differ by at most one. 0: all inputs."""
        order: str = hparam("random", options=("random", "stored", "by_class"))
        """The order of arrival: drawn by the trial (`random`), the dataset's (`stored`), or class by class,
        with the classes and each class's examples in random order (`by_class`: successive labels are
        dependent)."""

    def __init__(
        self,
        predict: Callable[[Tensor], Tensor],
        network: nn.Module,
        hparams: Any,
        generator: torch.Generator,
    ) -> None:
        """Raise UserError if the adaptation does not suit `network`.

        `predict` maps inputs to outputs of `network`, a copy that only this adaptation uses. `generator` is
        the only source of random numbers.
        """
        if not self.suits(network):
            name = type(self).__name__
            raise UserError(f"{name} cannot adapt {type(network).__name__}: it needs {self.needs}")
        self._predict, self.network, self.hparams = predict, network, hparams
        self.generator = generator
        self.single = False
        """Whether the network gives one logit for two classes; known after the first prediction."""

    @classmethod
    @abstractmethod
    def suits(cls, network: nn.Module) -> bool:
        """Whether a network has what the adaptation needs."""

    def observe(self, stream: Stream) -> None:  # noqa: B027 (few adaptations need it)
        """See all inputs, any number of times, before the first prediction."""

    def logits(self, x: Tensor) -> Tensor:
        """The logits (n, C) of the next batch of inputs (n, ...), after adapting to it."""
        return self.unadapted(x)

    def unadapted(self, x: Tensor) -> Tensor:
        """The network's current logits (n, C); a single logit z for two classes becomes (-z/2, z/2).

        Raises UserError for outputs that are not (n, C).
        """
        outputs: object = self._predict(x)
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(x):
            form = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise UserError(
                f"an adaptation needs logits ({len(x)}, C) for {len(x)} inputs, not {form}"
            )
        self.single = outputs.shape[1] == 1
        return of_two_classes(outputs)


def of_two_classes(outputs: Tensor) -> Tensor:
    """Logits, weights or biases (n, C); (n, 1) become (n, 2) with the same probabilities."""
    # softmax(-z/2, z/2) is (1 - sigmoid(z), sigmoid(z))
    return outputs if outputs.shape[1] > 1 else torch.cat([-outputs / 2, outputs / 2], 1)


def entropy(logits: Tensor) -> Tensor:
    """The entropy (n,) of the softmax of logits (n, C)."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def head_of(network: nn.Module) -> nn.Linear | None:
    """The linear layer that computes the logits, or None.

    In a `Network` this is the classifier; in other modules, the last linear layer.
    """
    own = next((m for m in network.modules() if isinstance(m, Network)), None)
    if own is not None:
        return own.classifier if isinstance(own.classifier, nn.Linear) else None
    return next((m for m in reversed([*network.modules()]) if isinstance(m, nn.Linear)), None)


class HeadAdaptation(Adaptation):
    """An adaptation that uses the features before a linear head."""

    needs = "a linear head, whose outputs are the logits"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        head = head_of(self.network)
        assert head is not None  # otherwise `suits` would have returned False
        self.head = head

    @classmethod
    def suits(cls, network: nn.Module) -> bool:
        """Whether the network has a linear head."""
        return head_of(network) is not None

    def features_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The head's inputs (n, F) and outputs (n, C); raises UserError if these are not the logits."""
        seen: list[tuple[Tensor, Tensor]] = []
        handle = self.head.register_forward_hook(lambda _, x, z: seen.append((x[0], z)))
        try:
            logits = self.unadapted(x)
        finally:
            handle.remove()
        if not seen or not torch.equal(of_two_classes(seen[-1][1]), logits):
            raise UserError(
                f"{type(self).__name__} needs {self.needs}; the logits are not its last linear layer's"
            )
        return seen[-1][0], logits


@torch.no_grad()
def adapted(
    name: str,
    hparams: Mapping[str, Any],
    module: nn.Module,
    stream: Stream,
    seed: int,
    network: Callable[[Any], nn.Module] = lambda module: module,
    predict: Callable[[Any, Tensor], Tensor] = lambda module, x: module(x),
) -> Tensor:
    """The logits (N, C) of all inputs of a stream, in order of index, from an adapted copy of a module.

    `network` selects the part of the module that has the layers; `predict` maps the module and inputs to
    logits. Raises UserError as `Adaptation` does.
    """
    cls: Any = adaptations.get(name)
    values = checked(cls.Hparams, hparams, f"the hyperparameters of the adaptation {name}")
    # the copy is not trained further, so it has no optimizers, whose moments are large
    moments = getattr(module, "optimizers", None)
    own = copy.deepcopy(module, {} if moments is None else {id(moments): {}}).eval()
    generator = torch.Generator().manual_seed(seed)
    adaptation = cls(lambda x: predict(own, x), network(own), values, generator)
    adaptation.observe(stream)
    arrived = torch.cat([adaptation.logits(x) for _, x in stream])
    indices = torch.cat([*stream.batches]).to(arrived.device)
    if adaptation.single:  # back to the network's single logit
        arrived = arrived[:, 1:] - arrived[:, :1]
    return torch.empty_like(arrived).index_copy(0, indices, arrived)


def in_batches(order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Indices in batches of about `batch_size`, whose sizes differ by at most one; 0: one batch."""
    count = -(-len(order) // batch_size) if batch_size else 1
    return torch.tensor_split(order, max(1, count))


@names_arguments
def adapt(
    module: nn.Module, inputs: Tensor, adaptation: str | Mapping[str, Any], *, seed: int = 0
) -> Tensor:
    """The logits (N, C) of inputs (N, ...) from a copy of a classifier that adapts to them.

    `adaptation` is a name such as `"T3A"`, or a mapping such as `{"name": "T3A", "supports": 5}`, as in a
    sweep's `adapt:`. The module maps inputs to logits (n, C), or (n, 1) for two classes; it does not
    change. Inputs arrive in order unless `order` is `random`; the logits are in the order of the inputs.
    `seed` fixes all random numbers. Raises UserError for unknown names, and if the module lacks what the
    adaptation needs.
    """
    if not isinstance(module, nn.Module) or not isinstance(inputs, Tensor) or not len(inputs):
        raise UserError("`adapt` takes a torch.nn.Module and a tensor of at least one input")
    given = {"name": adaptation} if isinstance(adaptation, str) else dict(adaptation)
    name = str(given.pop("name", None))
    cls = adaptations.get(name)
    hparams: dict[str, Any] = {**defaults(cls.Hparams), "order": "stored", **given}
    if hparams["order"] == "by_class":
        raise UserError("inputs without labels cannot arrive `by_class`")
    device = next((p.device for p in module.parameters()), inputs.device)
    stream = Stream(
        in_batches(torch.arange(len(inputs)), hparams["batch_size"]),
        lambda batches: (inputs[batch.to(inputs.device)].to(device) for batch in batches),
    )
    if hparams["order"] == "random":
        stream = stream.shuffled(torch.Generator().manual_seed(seed))
    return adapted(name, hparams, module, stream, seed)
