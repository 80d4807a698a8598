"""The scores of any module on a dataset's environments, without training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from oodbench.data import facts
from oodbench.datasets import make
from oodbench.errors import UserError, names_arguments, unknown, whole_number
from oodbench.results.run_spec import Evaluation
from oodbench.tasks import Task
from oodbench.train.evaluate import evaluate as evaluate_splits
from oodbench.train.loading import Data, load_environments
from oodbench.train.models.load import Model
from oodbench.train.process import kept_generators

if TYPE_CHECKING:
    import pandas as pd


@names_arguments
def evaluate(
    module: nn.Module,
    dataset: str,
    options: Mapping[str, Any] | None = None,
    *,
    environments: Sequence[str] | None = None,
    trial: int = 0,
    holdout: float = 0.0,
    data_dir: str | PathLike[str] | None = None,
) -> "pd.DataFrame":
    """All metrics of any torch module on the environments of a registered dataset, without training.

    The module maps inputs (N, *input_shape), preprocessed as networks get them, to the outputs that
    the dataset's task asks for, such as logits (N, C); of two classes (N, 1), (N,) or (N, 2). A model
    of `load_model` brings its own preprocessing. It is evaluated in eval mode, without gradients, on
    the device of its parameters, and is left in the mode that it was in.

    `environments` are all by default; `trial` draws the noise of data that have some, and a `holdout`
    above 0 the same splits as in a run: with the run's, a loaded model has the numbers of its records.
    Returns a frame with a metric of a split in each row: `environment`, `split` (`in` unless there is
    a holdout), `metric`, `value`, `count`; metrics of the predictor itself have neither environment nor
    split. Raises UserError for unknown names, missing data, a module that fails on the inputs, and outputs
    of another shape.
    """
    import pandas as pd

    if not isinstance(module, nn.Module):
        raise UserError(f"a torch.nn.Module is evaluated, not {type(module).__name__}")
    if not isinstance(dataset, str):
        raise UserError(f"`dataset` is a name, beside `options`, not {dataset!r}")
    if not isinstance(options, Mapping | None):
        raise UserError(f"`options` are a mapping such as {{'copies': 1}}, not {options!r}")
    if environments is not None and (isinstance(environments, str) or not environments):
        raise UserError(f"`environments` is a list of names, not {environments!r}")
    if not isinstance(holdout, Real) or not 0 <= holdout < 1:
        raise UserError(f"`holdout` is a share, at least 0 and below 1, not {holdout!r}")
    trial = whole_number(trial, "trial")
    device = next((str(p.device) for p in module.parameters()), "cpu")
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad(), kept_generators():
            made = make(dataset, options or {}, None if data_dir is None else Path(data_dir))
            raw = isinstance(module, Model)
            data = load_environments(
                dataset,
                asdict(made.options),
                None if raw else {*made.test_environments, *made.validation_environments},
                trial=trial,
                holdout=holdout,
                data_dir=made.data_dir,
                device=device,
            )
            found = _scores(module, data, environments, trial)
    finally:
        module.train(was_training)
    columns = ["environment", "split", "metric", "value", "count"]
    return pd.DataFrame([vars(e) for e in found], columns=columns)


def _scores(
    module: nn.Module, data: Data, environments: Sequence[str] | None, trial: int
) -> list[Evaluation]:
    dataset, task = data.dataset, data.dataset.task
    chosen = data.environments
    if environments is not None:
        for name in environments:
            if name not in chosen:
                raise unknown("environment", name, chosen, dataset.name)
        chosen = {name: chosen[name] for name in environments}

    def predict(x: Tensor) -> Tensor:
        given = x if isinstance(module, Model) else dataset.transform(x, None)
        return as_outputs(_called(module, given, dataset.name), len(x), task)

    device = next(iter(chosen.values())).y.device

    def measured(x: Tensor) -> Tensor:
        inner = module.algorithm.predict if isinstance(module, Model) else module
        return as_outputs(_called(inner, x.to(device), dataset.name), len(x), task).cpu()

    whole = facts.split_metrics(dataset)
    found = evaluate_splits(predict, chosen, data.splits, task, 0, whole, data.groups)
    own = facts.predictor_metrics(dataset, measured, trial)
    return found + [Evaluation(None, None, metric, value, 1) for metric, value in own.items()]


def _called(module: Callable[[Tensor], Any], x: Tensor, dataset: str) -> Any:
    """What a user's module makes of inputs; raises UserError if it fails on them."""
    try:
        return module(x)
    except UserError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:160]
        inputs = f"{tuple(x.shape)} of {str(x.dtype).removeprefix('torch.')}"
        raise UserError(
            f"the module fails on the inputs of {dataset}, {inputs} ({type(error).__name__}: {said})"
        ) from error


def as_outputs(found: Any, count: int, task: Task) -> Tensor:
    """What a module gives for `count` inputs, in the shape that the task asks for; or UserError."""
    if not isinstance(found, Tensor):
        raise UserError(f"the module returns {type(found).__name__}, not a tensor")
    if task.kind == "binary" and found.shape == (count, 2):
        return found[:, 1:] - found[:, :1]
    if task.num_outputs == 1 and found.shape == (count,):
        return found.unsqueeze(1)
    inner = {"tokens": (task.length,), "boxes": ()}.get(task.kind, ())
    wanted = (count, *inner, task.num_outputs, *((5,) if task.kind == "boxes" else ()))
    if tuple(found.shape) != wanted:
        raise UserError(
            f"the module returns {tuple(found.shape)} for {count} inputs, and the task asks for {wanted}"
        )
    return found
