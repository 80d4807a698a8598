"""Trained models as modules, and scores of any module on a dataset's environments."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, algorithms
from oodbench.datasets import Dataset, datasets, make
from oodbench.errors import UserError, counted, names_arguments, unknown, whole_number
from oodbench.networks.base import networks
from oodbench.networks.weights import load_fitting, replaced_weights
from oodbench.registry import load_plugins
from oodbench.results.directory import LAST, PLUGINS, Directory
from oodbench.results.run_directory import RunDirectory, kept_weights
from oodbench.results.run_spec import Evaluation, RunSpec, State
from oodbench.results.schemas import RunFile
from oodbench.tasks import Task
from oodbench.train.adapted import drawn_batches
from oodbench.train.digests import dataset_of, located
from oodbench.train.evaluate import Scored, whole_metrics
from oodbench.train.evaluate import evaluate as evaluate_splits
from oodbench.train.kept_weights import read_weights
from oodbench.train.loading import (
    Data,
    StandardUnits,
    estimated,
    fit_to_examples,
    load_data,
    spec_of_data,
)
from oodbench.train.process import check_device, clean_process, kept_generators
from oodbench.train.run import build_algorithm, problem_of
from oodbench.train.settings import TrainSettings

if TYPE_CHECKING:
    import pandas as pd

NAMES = ("dataset", "algorithm", "test_environment")
"""The arguments of `load_model` that name a cell of a table."""


class Model(nn.Module):
    """A trained predictor with the preprocessing of its dataset."""

    def __init__(
        self,
        algorithm: Algorithm,
        dataset: Dataset,
        info: RunFile,
        step: int,
        estimates: tuple[Callable[[Tensor], Tensor], StandardUnits | None],
    ) -> None:
        super().__init__()
        self.algorithm = algorithm
        self.dataset = dataset
        """The dataset; `dataset.read` makes inputs of new rows of a table or new image files."""
        self.spec = info.spec
        """The run."""
        self.step = step
        """The number of updates of the weights."""
        self.classes: tuple[str, ...] = tuple(info.context.get("classes", ()))
        """The names of the classes in the order of their numbers; empty without names."""
        self._change, self._units = estimates

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, ...) as the dataset holds them: not standardised, images as bytes.

        Predictions of a regression are in the targets' units. Raises UserError for inputs of a wrong shape.
        """
        if not isinstance(x, Tensor):
            hint = ": `model.dataset.read` makes one" * hasattr(self.dataset, "read")
            raise UserError(f"a model takes a tensor of inputs, not {type(x).__name__}{hint}")
        wanted = tuple(self.dataset.input_shape)
        try:
            inputs = self.dataset.transform(self._change(x), None)
        except (ValueError, IndexError, RuntimeError) as error:
            given = f"{tuple(x.shape)} of {str(x.dtype).removeprefix('torch.')}"
            reason = " ".join(str(error).split())[:160]
            if self.dataset.columns is None and tuple(x.shape[1:]) != wanted:
                reason = f"its network takes (N, {', '.join(map(str, wanted))})"
            raise UserError(
                f"inputs of {self.spec.dataset_name} cannot be {given}: {reason}"
            ) from error
        if tuple(inputs.shape[1:]) != wanted:
            raise UserError(
                f"inputs of {self.spec.dataset} are (N, {', '.join(map(str, wanted))}), and these are "
                f"({', '.join(map(str, inputs.shape))})"
            )
        return self.predict_prepared(inputs)

    def predict_prepared(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, *input_shape) that are preprocessed for the network."""
        outputs = self.algorithm.predict(x)
        return outputs if self._units is None else self._units.predictions(outputs)


@names_arguments
def load_model(
    directory: str | PathLike[str],
    *,
    dataset: str | None = None,
    algorithm: str | None = None,
    test_environment: str | None = None,
    rule: str | None = None,
    trial: int | None = None,
    data_dir: str | PathLike[str] | None = None,
    device: str = "cpu",
    plugins: bool = False,
) -> Model:
    """The model that a selection rule chooses, in eval mode, from weights kept by `--keep-weights`.

    `directory` has a sweep's results, or is the directory of a run. In a sweep's results, `dataset`,
    `algorithm` (a table's row) and `test_environment` (several joined by `+`) name the cell, if there are
    several; `trial` is by default the first; `rule` is by default the sweep's, and `last` means the last
    step of the run that the sweep's rule chooses. In a run's directory, `rule` names the kept weights, if
    there are several, and all other names must agree with the run. `data_dir` is by default that of the
    last launch; data are read only if the run estimated something from them, as to standardise inputs. The
    file of pretrained weights is not needed, except for networks of transformers, which read their sizes
    from the folder.

    With `plugins=True`, the run's plug-ins are imported, and with them classes of a script or notebook that
    the results hold; otherwise import them before. Raises UserError for unknown names, if nothing is chosen
    or no weights are kept, for a missing device, and for damaged or unfitting weights.
    """
    check_device(device)
    path = Path(directory)
    trial = None if trial is None else whole_number(trial, "trial")
    names = (dataset, algorithm, test_environment)
    if path.parent.name in ("runs", "kept") and not (path / "sweep.json").exists():
        run = Directory(path.parent.parent).run(path.name)
        file = _weights_of_run(run, (*names, trial), rule)
    else:
        run, file = _weights_of_cell(Directory(path), names, rule, trial)
    results = run.path.absolute().parent.parent
    info = _info(run)
    modules = info.provenance.get("plugins", [])
    if plugins:
        _import(modules, results / PLUGINS, info.spec)
    hint = f" (`plugins=True` runs the code of the run's plug-ins, {', '.join(modules)})"
    hint *= bool(modules) and not plugins
    algorithms.get(info.spec.algorithm, hint=hint)
    datasets.get(info.spec.dataset, hint=hint)
    networks.get(info.spec.network, hint=hint)
    known = _data_dir(Directory(results)) if data_dir is None else Path(data_dir)
    settings = TrainSettings(data_dir=known, device=device)
    with clean_process(torch.get_num_threads()), kept_generators():
        return _built(info, file, settings, located(info.spec, results, known))


def _import(modules: Sequence[str], folder: Path, spec: RunSpec) -> None:
    # also from the folder of saved classes; nothing if the run's classes are registered
    for name in modules:
        module = sys.modules.get(name)
        if (folder / f"{name}.py").is_file() and module and module.__file__:
            if Path(module.__file__).parent != folder:
                raise UserError(f"{name} is imported from {module.__file__}: use another process")
    named = (algorithms, spec.algorithm), (datasets, spec.dataset), (networks, spec.network)
    if all(registry.find(name) for registry, name in named):
        return
    sys.path.append(str(folder))
    try:
        load_plugins(modules)
    finally:
        sys.path.remove(str(folder))


def _info(run: RunDirectory) -> RunFile:
    info = run.info()
    if info is None:
        raise UserError(f"{run.path} does not contain a run")
    return info


def _weights_of_run(run: RunDirectory, given: Sequence[object], rule: str | None) -> Path:
    spec = _info(run).spec
    values = (spec.dataset_name, spec.label, "+".join(spec.test_environments), spec.trial)
    for name, value, wanted in zip((*NAMES, "trial"), values, given, strict=True):
        if wanted not in (None, value):
            raise UserError(f"{run.path} is the run of {name}={value!r}, not of {wanted!r}")
    kept = {name: path for (name, _), path in kept_weights(run).items()}
    if rule is None and len(kept) > 1:
        raise UserError(f"{run.path} keeps weights by {', '.join(kept)}: say which by rule=")
    if not kept or (rule is not None and rule not in kept):
        raise _none_kept(run, rule)
    return next(iter(kept.values())) if rule is None else kept[rule]


def _weights_of_cell(
    results: Directory, names: tuple[str | None, ...], rule: str | None, trial: int | None
) -> tuple[RunDirectory, Path]:
    from oodbench.report.why import why
    from oodbench.results.read import read_results
    from oodbench.selection import usual

    frames = read_results(results)
    judge = usual(frames) if rule is None or rule == LAST else rule
    dataset, row, test = names
    options = "`dataset`", "`algorithm` (`row` of `Results.model`)", "`test_environment`"
    cell = why(frames, dataset, row, test, judge, options=options)
    trials = sorted(set(cell.runs["trial"].tolist()))
    wanted = trials[0] if trial is None else trial
    if wanted not in trials:
        raise UserError(f"there is no trial {wanted}: {', '.join(map(str, trials))}")
    of_trial = cell.runs[cell.runs["trial"] == wanted]
    chosen = of_trial[of_trial["chosen"]]
    if chosen.empty:
        raise UserError(
            f"{rule or judge} chooses nothing for {cell.label} on {cell.dataset} in trial {wanted}: "
            f"{_why_nothing(map(State, of_trial['state']))}"
        )
    run = results.run(str(chosen["id"].iloc[0]))
    step = None if rule == LAST else int(chosen["step"].iloc[0])
    for (name, at), path in kept_weights(run).items():
        if name == (rule or judge) and step in (None, at):
            return run, path
    raise _none_kept(run, rule or judge, step)


def _why_nothing(states: Iterable[State]) -> str:
    every = list(states)
    failed = sum(state.final and not state.complete for state in every)
    if failed:
        return (
            f"{failed} of its {counted(len(every), 'run')} failed; `python -m oodbench.sweep status` shows "
            "why, and the same sweep with `failed=True` (`--failed`) trains them again"
        )
    left = sum(not state.complete for state in every)
    have = "has" if left == 1 else "have"
    of_all = f"{left} of its {counted(len(every), 'run')} {have} not ended"
    return of_all if left else "its runs have no scores"


def _none_kept(run: RunDirectory, rule: str | None, step: int | None = None) -> UserError:
    of = f" by {rule}" * bool(rule) + f" of step {step}" * (step is not None)
    there = ", ".join(f"{name} of step {kept}" for name, kept in kept_weights(run)) or "none"
    lacks = f"{run.kept} has no weights{of} (it has {there})"
    return UserError(
        f"{lacks}: if none were deleted, launch the sweep with `keep_weights=['{rule or 'RULE'}']` "
        f"(`--keep-weights {rule or 'RULE'}`) into a new directory"
    )


def _data_dir(results: Directory) -> Path | None:
    if not (results.path / "sweep.json").exists():
        return None
    stored = results.plan()["settings"].get("data_dir")
    return None if stored is None else Path(stored)


def _built(info: RunFile, file: Path, settings: TrainSettings, spec: RunSpec) -> Model:
    weights, about = read_weights(file)
    if about.get("id") != info.spec.id:
        raise UserError(f"{file} holds the weights of another run, {str(about.get('id'))[:20]}")
    dataset = dataset_of(spec, settings.data_dir)
    seen = {*info.context["training_environments"], *spec.test_environments}
    if not seen <= {*dataset.environments}:
        raise UserError(
            f"{spec.dataset} is not there as the run saw it: say by data_dir= where the data are"
        )
    problem = problem_of(spec, dataset, sizes=tuple(about["sizes"]))
    with replaced_weights():
        algorithm = build_algorithm(spec, problem, settings.device)
    algorithm.optimizers = {}
    mistake = (
        f"{file} holds no weights of {spec.algorithm} with the network {spec.network} as it is now"
    )
    load_fitting(algorithm, weights, mistake)
    if algorithm.overrides("fit_examples"):
        names = dataset.trainable(spec.held_out)
        fit_to_examples(algorithm, load_data(spec, settings), names)
    estimates = estimated(spec, dataset, settings)
    return Model(algorithm, dataset, info, about["step"], estimates).eval()


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

    The module maps inputs (N, *input_shape), preprocessed for networks, to outputs for the dataset's task,
    such as logits (N, C); for two classes (N, 1), (N,) or (N, 2). A model of `load_model` preprocesses its
    inputs itself. The module is evaluated in eval mode, without gradients, on the device of its parameters;
    afterwards its mode is restored.

    `environments` are by default all. `trial` and `holdout` draw noise and splits as in a run: with the
    run's trial and holdout, a loaded model gets the numbers of the run's records. Returns a row for each
    metric of a split: `environment`, `split` (always `in` without a holdout), `metric`, `value`, `count`.
    Metrics of the predictor itself have neither environment nor split. Raises UserError for unknown names,
    missing data, a module that fails on the inputs, and outputs of a wrong shape.
    """
    import pandas as pd

    _check_arguments(module, dataset, options, environments, holdout)
    trial = whole_number(trial, "trial")
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad(), kept_generators():
            made = make(dataset, options or {}, None if data_dir is None else Path(data_dir))
            fields: dict[str, Any] = {
                "options": asdict(made.options),
                "trial": trial,
                "holdout": holdout,
                "test_environments": made.test_environments,
                "validation_environments": made.validation_environments,
            }
            if isinstance(module, Model) and module.spec.dataset == dataset:
                names = ("test_environments", "validation_environments", "noise")
                fields |= {name: getattr(module.spec, name) for name in names}
            device = next((str(p.device) for p in module.parameters()), "cpu")
            settings = TrainSettings(data_dir=made.data_dir, device=device)
            spec = spec_of_data(dataset, **fields)
            data = load_data(spec, settings, changed=not isinstance(module, Model))
            evaluations = _scores(module, data, environments, trial)
    finally:
        module.train(was_training)
    columns = ["environment", "split", "metric", "value", "count"]
    return pd.DataFrame([vars(e) for e in evaluations], columns=columns)


def _check_arguments(
    module: object, dataset: object, options: object, environments: object, holdout: object
) -> None:
    if not isinstance(module, nn.Module):
        raise UserError(f"`evaluate` takes a torch.nn.Module, not {type(module).__name__}")
    if not isinstance(dataset, str):
        raise UserError(f"`dataset` must be a name, and `options` are given apart, not {dataset!r}")
    if not isinstance(options, Mapping | None):
        raise UserError(f"`options` are a mapping such as {{'copies': 1}}, not {options!r}")
    if environments is not None and (isinstance(environments, str) or not environments):
        raise UserError(f"`environments` is a list of names, not {environments!r}")
    if not isinstance(holdout, Real) or not 0 <= float(holdout) < 1:
        raise UserError(f"`holdout` is a share, at least 0 and below 1, not {holdout!r}")


def _scores(
    module: nn.Module, data: Data, environments: Sequence[str] | None, trial: int
) -> list[Evaluation]:
    dataset, task, wanted = data.dataset, data.dataset.task, data.environments
    if environments is not None:
        for name in environments:
            if name not in wanted:
                raise unknown("environment", name, wanted, dataset.name)
        wanted = {name: wanted[name] for name in environments}
    device = next(iter(wanted.values())).y.device

    def predict(x: Tensor) -> Tensor:
        inputs = x if isinstance(module, Model) else dataset.transform(x, None)
        return as_outputs(_called(module, inputs, dataset.name), len(x), task)

    def predict_prepared(x: Tensor) -> Tensor:
        inner = module.predict_prepared if isinstance(module, Model) else module
        return as_outputs(_called(inner, x.to(device), dataset.name), len(x), task).cpu()

    drawn = None
    if isinstance(module, Model):
        spec = replace(module.spec, dataset=dataset.name, trial=trial)
        drawn = drawn_batches(spec, module.algorithm, data.splits)
    whole = whole_metrics(dataset)
    scored = Scored(wanted, data.splits, task, data.groups, whole, drawn)
    evaluations = evaluate_splits(predict, scored)
    of_predictor = dataset.predictor_metrics(predict_prepared, trial)
    return evaluations + [Evaluation(None, None, m, value, 1) for m, value in of_predictor.items()]


def _called(module: Callable[[Tensor], Any], x: Tensor, dataset: str) -> Any:
    try:
        return module(x)
    except UserError as error:
        raise error.at(dataset) from error
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        inputs = f"{tuple(x.shape)} of {str(x.dtype).removeprefix('torch.')}"
        raise UserError(
            f"the module fails on the inputs of {dataset}, {inputs} ({type(error).__name__}: {reason})"
        ) from error


def as_outputs(outputs: Any, count: int, task: Task) -> Tensor:
    """A module's outputs for `count` inputs in the task's shape; raises UserError for another shape."""
    if not isinstance(outputs, Tensor):
        raise UserError(f"the module returns {type(outputs).__name__}, not a tensor")
    if task.kind == "binary" and outputs.shape == (count, 2):
        return outputs[:, 1:] - outputs[:, :1]
    if task.num_outputs == 1 and outputs.shape == (count,):
        return outputs.unsqueeze(1)
    if outputs.shape != (wanted := task.shape(count)):
        raise UserError(
            f"the module returns {tuple(outputs.shape)} for {count} inputs, and the task asks for {wanted}"
        )
    return outputs
