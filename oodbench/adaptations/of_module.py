"""Adaptation of any torch module."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.adaptations.base import Stream, adaptations, adapted, in_batches
from oodbench.errors import UserError, names_arguments
from oodbench.hparams import defaults


@names_arguments
def adapt(
    module: nn.Module, inputs: Tensor, adaptation: str | Mapping[str, Any], *, seed: int = 0
) -> Tensor:
    """Return the logits (N, C) of inputs (N, ...) from a classifier that adapts to them.

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
    logits = adapted(name, hparams, module, stream, seed)
    return logits
