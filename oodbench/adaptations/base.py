"""The base class of adaptations, the inputs that they see, and their registry; `adapt` for any module."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oodbench.errors import UserError, names_arguments
from oodbench.hparams import checked, defaults, hparam, neutral_values
from oodbench.networks.base import Network
from oodbench.registry import Registry

adaptations: Registry[type["Adaptation"]] = Registry("adaptation", "oodbench.adaptations")


def register(name: str, *, paper: str) -> Callable[[type["Adaptation"]], type["Adaptation"]]:
    """Register an adaptation under `name`; `paper` is where it was published."""
    return adaptations.add(name, paper)


@dataclass(frozen=True)
class Stream:
    """Unlabelled inputs in the order and the batches in which they arrive."""

    batches: Sequence[Tensor]
    """The places of each batch's inputs among all."""
    read: Callable[[Sequence[Tensor]], Iterator[Tensor]]
    """Reads the inputs (n, ...) at each of some places (n,), one batch after the other."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.batches, self.read(self.batches), strict=True)

    def shuffled(self, generator: torch.Generator) -> "Stream":
        """The same inputs in another order, in batches of the same sizes."""
        order = torch.cat([*self.batches])
        order = order[torch.randperm(len(order), generator=generator)]
        sizes = [len(batch) for batch in self.batches]
        return Stream(torch.split(order, sizes), self.read)


class Adaptation(ABC):
    """A predictor of classes that adapts to the unlabelled inputs that it predicts.

    It holds a copy of the trained network, in evaluation mode, and may change it as it likes; the
    network itself stays as it is. `observe` sees all inputs before the first is predicted, for
    adaptations that need several passes; `logits` sees them batch by batch, in the order of the stream.
    """

    needs: ClassVar[str]
    """The requirement on the network, as the end of "it needs ..."."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams:
        """Hyperparameters of every adaptation: how test inputs arrive."""

        batch_size: int = hparam(64, low=0)
        """About how many inputs arrive together: batches differ in size by at most one; 0: all."""
        order: str = hparam("random", options=("random", "stored", "by_class"))
        """The order in which they arrive: drawn by the trial, as the dataset holds them, or class by class,
        classes and the examples of each in random order (a stream whose labels depend on each other)."""

    def __init__(
        self,
        predict: Callable[[Tensor], Tensor],
        network: nn.Module,
        hparams: Any,
        generator: torch.Generator,
    ) -> None:
        """Take `predict`, which maps inputs to logits by `network`, a copy that is the adaptation's own.

        Random numbers come from the generator. Raises UserError for a network that it cannot adapt.
        """
        if not self.suits(network):
            name = type(self).__name__
            raise UserError(f"{name} cannot adapt {type(network).__name__}: it needs {self.needs}")
        self._predict, self.network, self.hparams = predict, network, hparams
        self.generator = generator
        self.single = False
        """Whether the network gives one logit for two classes, as was seen when it last predicted."""

    @classmethod
    @abstractmethod
    def suits(cls, network: nn.Module) -> bool:
        """Whether a network has what the adaptation needs."""

    def observe(self, stream: Stream) -> None:  # noqa: B027 (few adaptations need it)
        """See all inputs, as often as need be, before the first is predicted."""

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """The logits (n, C) of the next batch of inputs (n, ...), after adapting to it."""

    def unadapted(self, x: Tensor) -> Tensor:
        """The logits (n, C) that the network gives now; one logit z of two classes as -z/2 and z/2.

        The softmax of these is the sigmoid of z. Raises UserError for outputs of another form.
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
    """Logits, weights or biases (n, C) of classes; those of a single one z are -z/2 and z/2."""
    return outputs if outputs.shape[1] > 1 else torch.cat([-outputs / 2, outputs / 2], 1)


def head_of(network: nn.Module) -> nn.Linear | None:
    """The linear layer that gives the logits: the classifier of a `Network`, else the last one."""
    own = next((m for m in network.modules() if isinstance(m, Network)), None)
    if own is not None:
        return own.classifier if isinstance(own.classifier, nn.Linear) else None
    return next((m for m in reversed([*network.modules()]) if isinstance(m, nn.Linear)), None)


class HeadAdaptation(Adaptation):
    """An adaptation that looks at the features before a linear head."""

    needs = "a linear head, whose outputs are the logits"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        head = head_of(self.network)
        assert head is not None  # else `suits` would have said no
        self.head = head

    @classmethod
    def suits(cls, network: nn.Module) -> bool:
        """Whether it has a linear head."""
        return head_of(network) is not None

    def features_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of the head, (n, F), and the logits, (n, C).

        Raises UserError if the logits are not the head's outputs.
        """
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
    """The logits of all inputs of a stream, in their order, by a module that an adaptation changes.

    The module stays as it is: a copy of it is changed. `network` is the part of it that has the layers,
    and `predict` maps it and inputs to logits. Raises UserError as `Adaptation` does.
    """
    cls: Any = adaptations.get(name)
    given = {**neutral_values(cls.Hparams), **hparams}
    values = checked(cls.Hparams, given, f"the hyperparameters of the adaptation {name}")
    # an optimizer's moments are not copied, as nothing goes on training the copy
    moments = getattr(module, "optimizers", None)
    own = copy.deepcopy(module, {} if moments is None else {id(moments): {}}).eval()
    generator = torch.Generator().manual_seed(seed)
    adaptation = cls(lambda x: predict(own, x), network(own), values, generator)
    adaptation.observe(stream)
    arrived = torch.cat([adaptation.logits(x) for _, x in stream])
    places = torch.cat([*stream.batches]).to(arrived.device)
    if adaptation.single:
        arrived = arrived[:, 1:] - arrived[:, :1]
    return torch.empty_like(arrived).index_copy(0, places, arrived)


def in_batches(order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Places in batches of about `batch_size`, whose sizes differ by at most one; 0: one batch."""
    count = -(-len(order) // batch_size) if batch_size else 1
    return torch.tensor_split(order, max(1, count))


@names_arguments
def adapt(
    module: nn.Module, inputs: Tensor, adaptation: str | Mapping[str, Any], *, seed: int = 0
) -> Tensor:
    """The logits (N, C) of inputs (N, ...) from a classifier that adapts to them.

    `adaptation` is what `adapt:` of a sweep's row is: a name such as `"T3A"`, or a mapping such as
    `{"name": "T3A", "supports": 5}`. The module maps inputs to logits (n, C), or (n, 1) of two classes;
    it is in evaluation mode meanwhile, on the device of its parameters, and stays as it is. Inputs
    arrive in their order unless `order` is `random`; the logits stand in the order of the inputs. The
    seed draws random numbers. Raises UserError for unknown names, and where the module lacks what the
    adaptation needs.
    """
    if not isinstance(module, nn.Module) or not isinstance(inputs, Tensor) or not len(inputs):
        raise UserError("a torch.nn.Module adapts to a tensor of at least one input")
    given = {"name": adaptation} if isinstance(adaptation, str) else dict(adaptation)
    name = str(given.pop("name", None))
    cls = adaptations.get(name)
    hparams: dict[str, Any] = {**defaults(cls.Hparams), "order": "stored", **given}
    if hparams["order"] == "by_class":
        raise UserError("inputs without labels cannot arrive `by_class`")
    device = next((p.device for p in module.parameters()), inputs.device)
    places = torch.arange(len(inputs))
    if hparams["order"] == "random":
        generator = torch.Generator().manual_seed(seed)
        places = places[torch.randperm(len(places), generator=generator)]
    stream = Stream(
        in_batches(places, hparams["batch_size"]),
        lambda batches: (inputs[batch.to(inputs.device)].to(device) for batch in batches),
    )
    return adapted(name, hparams, module, stream, seed)
