"""Trained models as modules, from the weights that runs have kept."""

import json
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from oodbench.algorithms import Algorithm
from oodbench.datasets import Dataset, datasets, make
from oodbench.errors import UserError, names_arguments, whole_number
from oodbench.hparams import neutral_values
from oodbench.networks.weights import load_fitting, replaced_weights
from oodbench.registry import load_plugins
from oodbench.results.directory import Results, RunDirectory
from oodbench.results.run_spec import RunSpec
from oodbench.results.schemas import RunFile
from oodbench.results.weights import LAST, kept_weights
from oodbench.train.kept_weights import ABOUT
from oodbench.train.loading import input_change
from oodbench.train.process import check_device, clean_process, kept_generators
from oodbench.train.run import build_algorithm, problem_of
from oodbench.train.settings import TrainSettings

NAMES = ("dataset", "algorithm", "test_environment")
"""The arguments of `load_model` that say which cell of a table."""


class Model(nn.Module):
    """A trained predictor, with the preprocessing of its dataset."""

    def __init__(
        self,
        algorithm: Algorithm,
        dataset: Dataset,
        change: Callable[[Tensor], Tensor],
        spec: RunSpec,
        step: int,
        classes: Sequence[str],
    ) -> None:
        """`change` is what inputs go through before `Dataset.transform`."""
        super().__init__()
        self.algorithm = algorithm
        self.dataset = dataset
        """The dataset; its `read` gives the inputs of new files, where it is one of files."""
        self.spec = spec
        """All that the run's numbers depend on."""
        self.step = step
        """The number of updates of the weights."""
        self.classes = tuple(classes)
        """The names of the classes in the order of their numbers, if they have names."""
        self._change = change

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, ...) as the dataset's environments hold them: not standardised, and
        of images bytes. Raises UserError for inputs of another shape.
        """
        inputs = self.dataset.transform(self._change(x), None)
        shape, wanted = tuple(inputs.shape[1:]), tuple(self.dataset.input_shape)
        if shape != wanted:
            raise UserError(
                f"inputs of {self.spec.dataset} are (N, {', '.join(map(str, wanted))}), and these are "
                f"({', '.join(map(str, inputs.shape))})"
            )
        return self.algorithm.predict(inputs)


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
) -> Model:
    """The model that a selection rule chooses, in eval mode, from weights kept by `--keep-weights`.

    `directory` holds results, or is that of one run. Of results, `dataset`, `algorithm` (the row of
    the table) and `test_environment` (several joined by `+`) say which cell, where there are several,
    and `trial` which trial, by default the first. `rule` is the sweep's by default; `last` is the last
    step of the run that it chooses. Of one run, `rule` says which of its weights, where there are
    several, and the other names are at most its own. `data_dir` is that of the last launch by default;
    the data are read only where inputs are changed by what was seen in training, such as standardised.
    The file of weights that a network began with need not be there any more; what the package transformers
    began with must, as its sizes stand in its folder or cache alone.

    Raises UserError for unknown names, and where nothing is chosen, no weights are kept, the device is not
    here, or a file of weights is damaged or another network's. Modules that the sweep names as plug-ins are
    imported.
    """
    check_device(device)
    path = Path(directory)
    trial = None if trial is None else whole_number(trial, "trial")
    is_run = (path / "run.json").exists()
    if is_run:
        run = RunDirectory(path)
        file = _of_run(run, rule)
    else:
        run, file = _chosen(Results(path), dataset, algorithm, test_environment, rule, trial)
    info = run.info()
    if info is None:
        raise UserError(f"{run.path} holds no run")
    if is_run:
        _check_names(info.spec, run, (dataset, algorithm, test_environment, trial))
    load_plugins(info.provenance.get("plugins", []))
    known = _data_dir(run) if data_dir is None else Path(data_dir)
    settings = TrainSettings(data_dir=known, device=device)
    with clean_process(torch.get_num_threads()), kept_generators():
        return _built(info, file, settings)


def _check_names(spec: RunSpec, run: RunDirectory, given: Sequence[object]) -> None:
    """Raise UserError if a run is not the one that was named."""
    own = (spec.dataset_name, spec.label, "+".join(spec.test_environments), spec.trial)
    for name, is_, said in zip((*NAMES, "trial"), own, given, strict=True):
        if said not in (None, is_):
            raise UserError(f"{run.path} is the run of {name}={is_!r}, not of {said!r}")


def _of_run(run: RunDirectory, rule: str | None) -> Path:
    """The file of a run's weights by a rule, or the only one."""
    kept = {name: path for (name, _), path in kept_weights(run).items()}
    if rule is None and len(kept) > 1:
        raise UserError(f"{run.path} keeps weights by {', '.join(kept)}: say which by rule=")
    if not kept or (rule is not None and rule not in kept):
        raise _none_kept(run, rule)
    return next(iter(kept.values())) if rule is None else kept[rule]


def _chosen(
    results: Results,
    dataset: str | None,
    algorithm: str | None,
    test_environment: str | None,
    rule: str | None,
    trial: int | None,
) -> tuple[RunDirectory, Path]:
    """The chosen run of a cell, and the file of its weights at the chosen step."""
    from oodbench.report.why import why
    from oodbench.results.frames import load_frames
    from oodbench.selection import usual

    frames = load_frames(results)
    if rule is None or rule == LAST:
        judge = usual(frames)
    else:
        judge = rule
    said_by = [f"{name}=" for name in NAMES]
    cell = why(frames, dataset, algorithm, test_environment, judge, said_by=said_by)
    trials = sorted(set(cell.runs["trial"].tolist()))
    wanted = trials[0] if trial is None else trial
    if wanted not in trials:
        raise UserError(f"there is no trial {wanted}: {', '.join(map(str, trials))}")
    found = cell.runs[(cell.runs["trial"] == wanted) & cell.runs["chosen"]]
    if found.empty:
        raise UserError(
            f"{judge} chooses nothing yet for {cell.label} on {cell.dataset} in trial {wanted}: not all "
            "of its runs have ended"
        )
    run = results.run(str(found["id"].iloc[0]))
    step = None if rule == LAST else int(found["step"].iloc[0])
    for (name, at), path in kept_weights(run).items():
        if name == (rule or judge) and step in (None, at):
            return run, path
    raise _none_kept(run, rule or judge, step)


def _none_kept(run: RunDirectory, rule: str | None, step: int | None = None) -> UserError:
    which = "" if rule is None else f" by {rule}"
    at = "" if step is None else f" of step {step}"
    return UserError(
        f"{run.path} keeps no weights{which}{at}; a sweep launched with `--keep-weights "
        f"{rule or 'RULE'}` into a new directory does"
    )


def _data_dir(run: RunDirectory) -> Path | None:
    """The data directory of the last launch into the results directory that holds the run."""
    results = Results(run.path.absolute().parent.parent)
    if not (results.path / "sweep.json").exists():
        return None
    told = results.plan()["settings"].get("data_dir")
    return None if told is None else Path(told)


def _built(info: RunFile, file: Path, settings: TrainSettings) -> Model:
    """The model of a run with the weights in a file."""
    spec = info.spec
    weights, about = _read(file)
    if about.get("id") != spec.id:
        raise UserError(f"{file} holds the weights of another run, {str(about.get('id'))[:20]}")
    options = neutral_values(datasets.get(spec.dataset).Options) | spec.options
    dataset = make(spec.dataset, options, settings.data_dir)
    seen = {*info.context["training_environments"], *spec.test_environments}
    if not seen <= {*dataset.environments}:
        raise UserError(
            f"{spec.dataset} is not there as the run saw it: say by data_dir= where the data are"
        )
    problem = problem_of(spec, dataset, about["sizes"])
    with replaced_weights():
        algorithm = build_algorithm(spec, problem, settings.device)
    algorithm.optimizers = {}
    told = (
        f"{file} holds no weights of {spec.algorithm} with the network {spec.network} as it is now"
    )
    load_fitting(algorithm, weights, told)
    change = input_change(spec, dataset, settings)
    classes = info.context.get("classes", ())
    return Model(algorithm, dataset, change, spec, about["step"], classes).eval()


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors in a file of kept weights, and what it says of them; raises UserError."""
    try:
        with safe_open(file, "pt") as opened:
            about: dict[str, Any] = json.loads((opened.metadata() or {})[ABOUT])
            names: Sequence[str] = opened.keys()
            return {name: opened.get_tensor(name) for name in names}, about
    except (SafetensorError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{file} is no whole file of kept weights ({reason})") from None
