"""A run's checkpoint: written whole and behind the records that it continues, used only where it fits."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oodbench.files import whole_file
from oodbench.results.directory import RunDirectory
from oodbench.train.run import Run
from oodbench.train.vectorized.optimizers import rule_of


class UnfitError(Exception):
    """A checkpoint cannot be used; the message says why."""


def save_checkpoint(run: Run, directory: RunDirectory) -> None:
    """Write a run's checkpoint, with the run's id and the count and hash of its records so far."""
    records = directory.sync_records()
    state = {"id": run.spec.id, "records": records, "run": _copied(run.state())}
    with whole_file(directory.checkpoint) as file:
        torch.save(state, file)


def _copied(state: Any) -> Any:
    """Tensors without the rest of the matrix that they may be a view of, which would be saved too."""
    if isinstance(state, Mapping):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_copied(value) for value in state]
    return state.clone() if isinstance(state, Tensor) else state


def resume(run: Run, directory: RunDirectory) -> None:
    """Put a new run to where its checkpoint was written, and drop the records after that.

    Raises UnfitError if the checkpoint is damaged, another run's or of another form, or if the
    records that it continues are not all there; the run and the records may then be half changed.
    """
    with directory.checkpoint.open("rb") as file:
        try:
            found = torch.load(file, map_location=run.settings.device, weights_only=True)
            if found["id"] != run.spec.id:
                raise UnfitError("it is another run's")
            state = found["run"]
            count, sha256 = found["records"]["records"], found["records"]["sha256"]
            _check(state, run)
            run.restore(state)
        except (UnfitError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever unpickling and restoring make of damaged bytes
            raise UnfitError(f"it cannot be read ({type(error).__name__})") from error
    due = len(run.spec.due(run.step))
    if count != due or not directory.keep_records(count, sha256):
        raise UnfitError(f"the {due} records up to its step {run.step} are not all there")


def _check(state: Any, run: Run) -> None:
    """Raise UnfitError unless `state` has the form of the run's own."""
    own = run.state()
    free = {"sums", "optimizers", "average", "device_rng", "process_rng"}
    if state.keys() != own.keys() or any(
        _form(state[k]) != _form(own[k]) for k in own.keys() - free
    ):
        raise UnfitError("it has another form: of another version of the method or of oodbench")
    if not 0 < state["step"] <= run.spec.steps:
        raise UnfitError(f"its step is {state['step']}, which the run does not have")
    if not all(isinstance(value, float) for value in state["sums"].values()):
        raise UnfitError("its sums of metrics are no numbers")
    if state["optimizers"].keys() != own["optimizers"].keys():
        raise UnfitError("it has the states of other optimizers")
    for name, optimizer in run.algorithm.optimizers.items():
        _check_optimizer(state["optimizers"][name], optimizer)


def _check_optimizer(state: Any, optimizer: torch.optim.Optimizer) -> None:
    """Raise UnfitError for other options or parameters than the optimizer's.

    What an optimizer that is not ours keeps of a parameter may have any shape.
    """
    own = optimizer.state_dict()
    groups = [[(g.keys(), g["params"]) for g in s["param_groups"]] for s in (state, own)]
    if groups[0] != groups[1]:
        raise UnfitError("its optimizers have other options or parameters")
    rule = rule_of(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, kept in state["state"].items():
        slots = rule.slots if rule is not None else ()
        if any(_form(kept[slot]) != _form(parameters[place]) for slot in slots):
            raise UnfitError("its optimizers' states have other shapes")


def _form(value: Any) -> Any:
    """The keys, shapes and types of a state, without its numbers."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, Mapping):
        return {key: _form(item) for key, item in value.items()}
    return type(value)
