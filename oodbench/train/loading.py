"""The data of a run: environments on a device with their splits, and batches of examples."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import BALANCED, Algorithm
from oodbench.data.noise import noisy
from oodbench.data.preparation import fit, fits, fitted, load_checked, part
from oodbench.data.streams import Stored
from oodbench.datasets import Dataset, Environment, datasets, make
from oodbench.errors import UserError
from oodbench.hparams import neutral_values
from oodbench.metrics import Groups
from oodbench.results.run_spec import MISLABELED, RunSpec
from oodbench.seeds import derive
from oodbench.steps import Drawing
from oodbench.train.batches import Batches, Examples
from oodbench.train.settings import TrainSettings


@dataclass(frozen=True)
class StandardUnits:
    """The units of real targets: a run trains on (target - mean) / scale, and is scored on targets."""

    mean: Tensor
    """The mean of the training targets, (C,) in double precision."""
    scale: Tensor
    """The standard deviation of the training targets, (C,) in double precision; 1 if it is 0."""

    def predictions(self, outputs: Tensor) -> Tensor:
        """The outputs (N, C) of a predictor in the units of the targets."""
        return outputs * self.scale + self.mean


@dataclass(frozen=True)
class Data:
    """A dataset's environments on a device, with their splits."""

    dataset: Dataset
    environments: dict[str, Environment]
    splits: dict[str, dict[str, Tensor]]
    mislabeled: Mapping[str, Tensor] = field(default_factory=dict)
    """By environment, the indices of training examples with a wrong label."""
    units: StandardUnits | None = None
    """The units of the targets, if these are standardised."""
    constants: dict[tuple[str, ...], Any] = field(default_factory=dict, init=False)
    """A cache of `oodbench.train.evaluate.constant_answer`, by training environments."""

    @cached_property
    def groups(self) -> dict[str, dict[str, Groups]]:
        """The groups of the splits' examples, see `groups_of`."""
        return groups_of(self.dataset, self.environments, self.with_mislabeled())

    def with_mislabeled(self) -> dict[str, dict[str, Tensor]]:
        """The splits, with a split of `mislabeled` examples if labels are noisy."""
        of_noise = {n: {MISLABELED: i} for n, i in self.mislabeled.items()}
        return {n: {**of, **of_noise.get(n, {})} for n, of in self.splits.items()}

    def standard(self, targets: Tensor) -> Tensor:
        """The targets to train on, standardised in single precision if the data have `units`."""
        units = self.units
        return targets if units is None else ((targets - units.mean) / units.scale).float()


_Source = tuple[str, str, int, float, Path | None, str]
"""The arguments of `_load`."""


def load_data(spec: RunSpec, settings: TrainSettings, *, changed: bool = True) -> Data:
    """The data of a run; the last two (dataset, trial) are kept in memory.

    If a dataset marks examples of an environment as `unseen`, a held-out environment has only these, and
    other environments have only the rest. If a dataset separates clusters, training examples that share a
    cluster with a held-out environment are left out. Unless `changed` is false, `Dataset.fit` is applied to
    all inputs. Training and validation environments have the run's noise, see `oodbench.data.noise`.
    Splits leave out examples without a known label. Raises UserError for data that do not suit their task.
    """
    options = json.dumps(spec.options, sort_keys=True)
    source = spec.dataset, options, spec.trial, spec.holdout, settings.data_dir, settings.device
    data = _load(*source)
    depends = (
        any(environment.unseen is not None for environment in data.environments.values())
        or data.dataset.separates_clusters
        or (changed and fits(data.dataset))
        or data.dataset.standardises_targets
    )
    kept = tuple(sorted(spec.held_out)) if depends or spec.noise else ()
    evaluated = {*data.dataset.evaluation_environments} - {*spec.validation_environments}
    clean = tuple(sorted({*spec.test_environments, *evaluated})) if spec.noise else ()
    return _prepared(source, kept, changed, json.dumps(spec.noise), clean)


def spec_of_data(dataset: str, **fields: Any) -> RunSpec:
    """A spec for `load_data` alone, given the fields that data depend on."""
    trains: dict[str, Any] = dict.fromkeys(("algorithm", "label", "network"), "")
    trains |= {"hparams": {}, "network_hparams": {}, "draw": 0, "steps": 0, "evaluate_every": 0}
    return RunSpec(dataset=dataset, **trains | fields)


def estimated(
    spec: RunSpec, dataset: Dataset, settings: TrainSettings
) -> tuple[Callable[[Tensor], Tensor], StandardUnits | None]:
    """The change of inputs before `Dataset.transform`, and the units of targets, as a run estimates.

    Data are read only if something has to be estimated.
    """
    if not fits(dataset) and not dataset.standardises_targets:
        return (lambda x: x), None
    data = load_data(spec, settings, changed=False)
    if not fits(dataset):
        return (lambda x: x), data.units
    return fit(dataset, data.environments, _trained_on(data, spec.held_out)), data.units


@lru_cache(maxsize=2)
def _load(
    name: str, options: str, trial: int, holdout: float, data_dir: Path | None, device: str
) -> Data:
    values = neutral_values(datasets.get(name).Options) | json.loads(options)
    dataset = make(name, values, data_dir)
    environments, splits = {}, {}
    for environment, data in load_checked(dataset, trial).items():
        indices = split(data, holdout, name, environment, trial)
        known = dataset.task.known(data.y)
        splits[environment] = {half: i[known[i]].to(device) for half, i in indices.items()}
        given = {name: getattr(data, name) for name in ("x", "y", "attributes", "unseen")}
        moved = {name: v.to(device) for name, v in given.items() if isinstance(v, Tensor)}
        environments[environment] = replace(data, out=None, **moved)
    return Data(dataset, environments, splits)


@lru_cache(maxsize=2)
def _prepared(
    source: _Source, held_out: tuple[str, ...], changed: bool, noise: str, clean: tuple[str, ...]
) -> Data:
    data = _load(*source)
    data = _by_role(data, held_out)
    if data.dataset.separates_clusters:
        data = apart(data, held_out)
    if (wanted := json.loads(noise)) is not None:
        data = _with_noise(data, _load(*source), wanted, held_out, clean, source[2])
    if data.dataset.standardises_targets:
        data = replace(data, units=_units(data, held_out))
    if not changed:
        return data
    seen = _trained_on(data, held_out) if fits(data.dataset) else {}
    return replace(data, environments=fitted(data.dataset, data.environments, seen))


def _by_role(data: Data, held_out: Collection[str]) -> Data:
    environments, splits = dict(data.environments), dict(data.splits)
    for name, environment in data.environments.items():
        if environment.unseen is not None:
            stays = environment.unseen if name in held_out else ~environment.unseen
            moved = stays.cumsum(0) - 1
            environments[name] = part(environment, stays.nonzero().squeeze(1))
            splits[name] = {half: moved[i[stays[i]]] for half, i in data.splits[name].items()}
    return Data(data.dataset, environments, splits)


def _with_noise(
    data: Data,
    whole: Data,
    noise: Mapping[str, Any],
    held_out: Collection[str],
    clean: Collection[str],
    trial: int,
) -> Data:
    trained = _trained_on(data, held_out)
    deviation = _units(data, held_out).scale if noise["kind"] == "target_noise" else 1.0
    environments, mislabeled = dict(data.environments), {}
    for name, environment in data.environments.items():
        if name in clean or (noise["validation"] == "clean" and name not in trained):
            continue
        unseen = whole.environments[name].unseen
        y = noisy(noise, data.dataset, name, trial, whole.environments[name].y, deviation)
        y = y if unseen is None else y[unseen if name in held_out else ~unseen]
        if noise["validation"] == "clean":
            y = environment.y.index_copy(0, trained[name], y[trained[name]])
        environments[name] = replace(environment, y=y)
        if name in trained and data.dataset.task.has_classes:
            index = trained[name]
            mislabeled[name] = index[y[index] != environment.y[index]]
    return replace(data, environments=environments, mislabeled=mislabeled)


def apart(data: Data, held_out: Collection[str]) -> Data:
    """The data without training examples that share a cluster with a held-out environment.

    Raises UserError if that leaves nothing of a training environment.
    """
    clusters = {name: e.clusters for name, e in data.environments.items() if e.clusters is not None}
    taken = [clusters[name] for name in held_out if name in clusters]
    splits = dict(data.splits)
    for name in clusters.keys() - {*held_out}:
        stays = ~torch.isin(clusters[name], torch.cat(taken or [clusters[name][:0]]))
        splits[name] = {half: i[stays[i.cpu()].to(i.device)] for half, i in splits[name].items()}
        if not len(splits[name]["in"]):
            raise UserError(
                f"{data.dataset.label}: with {', '.join(sorted(held_out))} held out, `group_across: drop` "
                f"leaves nothing of '{name}' to train on"
            )
    return replace(data, splits=splits)


def _units(data: Data, held_out: Collection[str]) -> StandardUnits:
    trained = _trained_on(data, held_out).items()
    targets = torch.cat([data.environments[name].y[index] for name, index in trained]).double()
    varies = targets.amin(0) < targets.amax(0)
    return StandardUnits(targets.mean(0), torch.where(varies, targets.std(0, correction=0), 1.0))


def _trained_on(data: Data, held_out: Collection[str]) -> dict[str, Tensor]:
    training = data.dataset.trainable(held_out)
    return {name: data.splits[name]["in"] for name in training}


def split(
    environment: Environment, holdout: float, dataset: str, name: str, trial: int
) -> dict[str, Tensor]:
    """Sorted indices of the splits `in` (for training, or for scores) and `out` (for selection).

    `out` is the data's predefined split, or else a share `holdout` of the clusters, at least one, drawn by
    (dataset, environment, trial) alone. Examples of a cluster stay together. With a `holdout` of 0 there is
    no `out`.
    """
    count = len(environment.y)
    if holdout == 0:
        return {"in": torch.arange(count)}
    if environment.out is not None:
        return _indices(environment.out)
    clusters = environment.clusters if environment.clusters is not None else torch.arange(count)
    return _indices(_drawn_share(clusters, holdout, derive("split", dataset, name, trial)))


def _drawn_share(clusters: Tensor, share: float, seed: int) -> Tensor:
    _, cluster = torch.unique(clusters, return_inverse=True)
    total = int(cluster.max()) + 1 if len(clusters) else 0
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    is_drawn = torch.zeros(total, dtype=torch.bool)
    is_drawn[order[: max(1, round(share * total))]] = True
    return is_drawn[cluster]


def _indices(out: Tensor) -> dict[str, Tensor]:
    return {"in": (~out).nonzero().squeeze(1), "out": out.nonzero().squeeze(1)}


def groups_of(
    dataset: Dataset,
    environments: Mapping[str, Environment],
    splits: Mapping[str, Mapping[str, Tensor]],
) -> dict[str, dict[str, Groups]]:
    """The groups of every nonempty split, by environment and split; empty for tasks without classes."""
    if not dataset.task.has_classes:
        return {}
    count = dataset.task.classes
    classes = dataset.classes or tuple(map(str, range(count)))
    groups: dict[str, dict[str, Groups]] = {}
    for name, environment in environments.items():
        keys = environment.y.long()
        attributes: tuple[str, ...] = ()
        if environment.attributes is not None:
            attributes = dataset.attributes
            keys = dataset.task.groups(keys, environment.attributes, len(attributes))
        for half, index in splits[name].items():
            if len(index):
                of_split = keys[index]
                size = count * max(1, len(attributes))
                counts = torch.bincount(of_split, minlength=size).tolist()
                groups.setdefault(name, {})[half] = Groups(of_split, counts, classes, attributes)
    return groups


def trained_counts(data: Data, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The training environments' sizes of groups, see `Problem.counts`."""
    trained = (data.groups[name]["in"] for name in names if "in" in data.groups.get(name, {}))
    return tuple(tuple(groups.counts) for groups in trained)


def fit_to_examples(algorithm: Algorithm, data: Data, names: Sequence[str]) -> None:
    """Call a method's `fit_examples`, if it has one, with the pooled training examples of `names`."""
    if not algorithm.overrides("fit_examples"):
        return
    pooled = [part(data.environments[name], data.splits[name]["in"]) for name in names]
    inputs = [e.x.read(torch.arange(len(e.y))) if isinstance(e.x, Stored) else e.x for e in pooled]
    x = data.dataset.transform(torch.cat(inputs), None)
    algorithm.fit_examples(x, data.standard(torch.cat([e.y for e in pooled])))


def drawn_index(spec: RunSpec, data: Data, name: str, drawing: Drawing) -> Tensor:
    """The indices of an environment's examples from which `drawing` draws batches."""
    index = data.splits[name]["in"]
    if not drawing.held_out:
        return index
    clusters = data.environments[name].clusters
    clusters = index.cpu() if clusters is None else clusters[index.cpu()]
    seed = derive("held out", spec.dataset, name, spec.trial)
    held_out = _drawn_share(clusters, drawing.held_out, seed)
    return index[(held_out == drawing.of_held_out).to(index.device)]


def batches(
    spec: RunSpec,
    data: Data,
    names: Sequence[str],
    algorithm: Algorithm,
    settings: TrainSettings,
    drawing: Drawing,
) -> Batches:
    """Batches of the training environments `names`; raises UserError if one has no examples."""
    task, count = data.dataset.task, len(data.dataset.attributes)
    balanced, needs = BALANCED[drawing.sampling], algorithm.needs
    holds_attributes = needs.has_attributes(vars(algorithm.hparams))
    training = []
    for name in names:
        environment, index = data.environments[name], drawn_index(spec, data, name, drawing)
        if not len(index):
            raise UserError(f"{spec.dataset}: nothing to train on in environment '{name}'")
        x, y, every = environment.x, environment.y[index], environment.attributes
        attributes = None if every is None else every[index]
        labels = y.long() if balanced == "classes" else None
        if balanced == "groups" and attributes is not None:
            labels = task.groups(y, attributes, count)
        training.append(
            Examples(
                x[index] if isinstance(x, Stored) else x,
                data.standard(y),
                rows=index,
                attributes=attributes if holds_attributes else None,
                labels=labels,
            )
        )
    transform = data.dataset.transform
    return Batches(
        training,
        algorithm.hparams.batch_size,
        derive("batches", spec.dataset, spec.test_environments, spec.trial),
        transform=None if type(data.dataset).transform is Dataset.transform else transform,
        environments_at=algorithm.environments_at,
        repeat=algorithm.hparams.environments_per_step > 0,
        end=spec.steps,
        loader_workers=settings.loader_workers,
        indexed=needs.index,
        subsampled=drawing.sampling == "subg",
        views=needs.views,
    )
