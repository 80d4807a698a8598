"""Reads and checks a sweep file, and completes it by its protocol."""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypedDict, TypeVar

from annotated_types import MinLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from oodbench.errors import PLUGIN_HINT, UserError, names_arguments, unknown
from oodbench.files import nearest
from oodbench.registry import Registry, folder, load_plugins
from oodbench.validation import explain, several, short
from oodbench.yaml_values import assignments, read_yaml

P = ParamSpec("P")
R = TypeVar("R")

FREE_KEYS = ("name", "protocol", "algorithms", "trials", "plugins", "resources")
"""The keys that a sweep with a `protocol` may set."""
MAX_INDEX = 2**31 - 1
"""The largest trial, draw or step, as records hold them in 32 bits."""
LONGEST = 100_000_000
"""The longest run timeout in seconds (three years); clocks count no further."""


def _plain_name(name: str) -> str:
    parts = name.split("/")
    if not name.isprintable() or any(p.strip() != p or p in ("", ".", "..") for p in parts):
        raise ValueError("not a name")
    return name


def _number(value: Any) -> Any:
    if isinstance(value, str):  # YAML reads 1e-3, without a dot, as a text
        with suppress(ValueError):
            value = float(value)
    # training flushes subnormal numbers to 0
    return 0.0 if isinstance(value, float) and abs(value) < sys.float_info.min else value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _indices(value: int | list[int]) -> Sequence[int]:
    if isinstance(value, int):
        return range(value)
    if not value or len(set(value)) < len(value):
        raise ValueError("not different numbers")
    return value


def _named_values(value: str | dict[str, Any]) -> dict[str, Any] | None:
    values = {"name": value} if isinstance(value, str) else value
    return None if values == {"name": "none"} else values


def from_commas(value: Any) -> Any:
    """Split a text such as `train_val,last` into names."""
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def _mapping(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"kind"}:
        value = f"{KIND}{value['kind']}"
    return {"name": value} if isinstance(value, str) else value


KIND = "kind: "
"""Begins a row's name that stands for all methods of a kind, see `oodbench.registry.CHANGES`."""
Index = Annotated[int, Field(ge=0, le=MAX_INDEX), BeforeValidator(_whole)]
Count = Annotated[int, Field(ge=1, le=MAX_INDEX), BeforeValidator(_whole)]
Share = Annotated[float, Field(ge=0, lt=1), BeforeValidator(_number)]
if TYPE_CHECKING:  # what the validators make of a file's values
    Indices = Sequence[int]
    NamedValues = dict[str, Any] | None
else:
    Indices = Annotated[Count | list[Index], AfterValidator(_indices)]
    NamedValues = Annotated[str | dict[str, Any], AfterValidator(_named_values)]
Names = list[str | int | float]
COUNTED = "a whole number from 1 on, or a list of different numbers from 0 on"
TestSets = (
    Literal["default", "each", "pairs"]
    | Annotated[list[Names], MinLen(1)]
    | Annotated[Names, MinLen(1)]
)
SHARE = "a share from 0 to below 1"
TEST_SETS = "default, each, pairs, a list of names (one set), or a list of such lists"


class Component(BaseModel):
    """An algorithm or a network by name, with values for some of its hyperparameters."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(description="a name")
    hparams: dict[str, Any] = Field(default={}, description="names with values")
    """A value, or a list with a value for each hparam draw: draw 0 takes the first."""


class Training(BaseModel):
    """The settings of a sweep's runs that the key `training` of a dataset may override."""

    model_config = ConfigDict(extra="forbid", strict=True)

    test_environments: TestSets = Field(default="default", description=TEST_SETS)
    """The sets of environments that are held out together, one set after the other."""
    validation_environments: Literal["default", "none"] | Count | Names = Field(
        default="default", description="default, none, a whole number from 1 on, or a list of names"
    )
    trials: Indices = Field(default=3, validate_default=True, description=COUNTED)
    steps: Literal["default"] | Count = Field(
        default="default", description="default or a whole number from 1 on"
    )
    evaluate_every: Literal["default"] | Count = Field(
        default="default", description="default or a number of steps from 1 on"
    )
    network: str | Component = Field(
        default="default", description="a name, or a mapping with the keys name and hparams"
    )
    holdout: Share = Field(default=0.2, description=SHARE)


class DatasetSettings(Training):
    """The key `training` of a dataset, which overrides the sweep's settings."""

    hparams: dict[str, Any] = Field(default={}, description="names with values")
    """Values or ranges of hyperparameters that all methods have; those of a row take precedence."""


class Entry(BaseModel):
    """A dataset of a sweep; further keys are options of the dataset, or its noise."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str = Field(description="a text")
    label: str | None = Field(default=None, description="a text")
    """The dataset's name in tables."""
    training: DatasetSettings = Field(
        default_factory=DatasetSettings, description="names with values"
    )
    ceiling: dict[str, Any] = Field(default={}, description="names with values")
    """The dataset's options for rows that are ceilings."""

    @property
    def title(self) -> str:
        """The label, or else the registered name."""
        return self.label or self.name

    @property
    def options(self) -> dict[str, Any]:
        """The options of the dataset, and its noise."""
        return dict(self.model_extra or {})


class Row(Component):
    """An algorithm of a sweep."""

    label: str | None = Field(default=None, min_length=1, description="a text")
    """The row's name in tables; by default see `title`."""
    network: dict[str, Any] = Field(default={}, description="names with values")
    """Hyperparameters of the row's network, which override those of the sweep."""
    average: NamedValues = Field(
        default="none",
        validate_default=True,
        description="none, a name, or a mapping with the key name and numbers",
    )
    """The average of `oodbench.train.averages` that is evaluated; None: the last weights."""
    adapt: NamedValues = Field(
        default="none",
        validate_default=True,
        description="none, a name, or a mapping with the key name and hyperparameters",
    )
    """The adaptation of `oodbench.adaptations` by which predictions are made, if any."""
    ceiling: bool = Field(default=False, description="true or false")
    """Whether the row shows what could be reached, as by training on grayscale images or clean labels. It
    stands in grey under the others, and is neither ranked nor compared."""
    options: dict[str, Any] = Field(default={}, description="names with values")
    """Options of a ceiling's data, which override those of each dataset; other rows have none."""

    @property
    def title(self) -> str:
        """The label, or else the names of the algorithm, its average and its adaptation, joined.

        Raises UserError for an unknown average.
        """
        if self.label is not None:
            return self.label
        parts = [self.name]
        if self.average is not None:
            from oodbench.train.averages import AVERAGES, numbers

            parts.append(AVERAGES[numbers(self.average)["name"]].label)
        if self.adapt is not None:
            parts.append(str(self.adapt.get("name")))
        return " + ".join(parts)


class Sweep(Training):
    """A sweep file; docs/guide/sweep.md explains every key. A description completes "KEY must be"."""

    name: Annotated[str, AfterValidator(_plain_name)] = Field(
        max_length=200, description="a short name of letters, digits and signs, inside results/"
    )
    protocol: str | None = Field(default=None, description="the name of a sweep in sweeps/")
    """The protocol in sweeps/ that completes the file, see `_under`."""
    plugins: list[str] = Field(default=[], description="a list of names of modules")
    """Modules with the user's methods and datasets, which are imported first."""
    datasets: list[Annotated[Entry, BeforeValidator(_mapping)]] = Field(
        min_length=1, description="a list of names, or of mappings with the key name and options"
    )
    algorithms: Annotated[
        list[Annotated[Row, BeforeValidator(_mapping)]],
        BeforeValidator(lambda value: ["all"] if value == "all" else value),
    ] = Field(
        min_length=1,
        description="all, or a list with names, mappings with the key name, or `kind: KIND`",
    )
    hparam_draws: Indices = Field(default=1, validate_default=True, description=COUNTED)
    draws: Literal["shared", "per trial"] = Field(
        default="shared", description="shared or per trial"
    )
    """Whether a draw has the same values in all trials, or different values in each. Then the spread over
    trials includes that of the search."""
    hparams_from: str | None = Field(
        default=None, min_length=1, description="a results directory, as a text"
    )
    """The results directory of an earlier sweep, whose runs decide each row's hyperparameters by the rule
    `selection`. `hparam_draws` is then ignored, and the trials must differ from those of that sweep."""
    shared_quantiles: bool = Field(default=True, description="true or false")
    """Whether the network's hyperparameters, and those that all methods have, are at the same quantile for
    all methods in a draw."""
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        default="float32", description="float32, tf32 or bfloat16"
    )
    """The precision of runs: `tf32` for matrix products on CUDA devices, `bfloat16` by autocast for the
    network's training. Optimizers, masks and evaluations stay in float32."""
    channels_last: bool = Field(default=False, description="true or false")
    """Whether images are stored channels last, which suits tensor cores."""
    arithmetic: Literal["portable", "native"] = Field(
        default="portable", description="portable or native"
    )
    """Whether runs on a CPU have the same bits on every x86-64 processor, or use its fastest code."""
    selection: str | None = Field(default=None, description="the name of a selection rule")
    """The selection rule of the tables; None: `val_env` if validation environments are held out, else
    `train_val`."""
    attributes: Literal["training", "validation", "unknown"] = Field(
        default="training", description="training, validation or unknown"
    )
    """Where examples' attributes are known (the settings of arXiv:2302.12254): with `validation` no method
    sees them, with `unknown` no selection rule either. Metrics of test environments always see them."""
    keep_weights: Annotated[list[str], BeforeValidator(from_commas)] = Field(
        default=[], description="names of selection rules, or last"
    )
    """The selection rules whose weights each run keeps, or `last`; `--keep-weights` overrides them."""
    run_timeout: float | None = Field(
        default=None,
        gt=0,
        le=LONGEST,
        description=f"a number of seconds above 0, up to {LONGEST:,}",
    )
    """Seconds after which a run that has not ended counts as failed."""
    resources: dict[str, Any] = Field(default={}, description="names with values")
    """Resources of the runs: keys of the `Resources` of launchers."""

    def on(self, entry: Entry) -> "Sweep":
        """The sweep with the settings that a dataset's `training` overrides."""
        given = entry.training.model_fields_set & Training.model_fields.keys()
        return self.model_copy(update={key: getattr(entry.training, key) for key in given})


def component(named: str | Component) -> Component:
    """The component, which may be given as a name."""
    return Component(name=named) if isinstance(named, str) else named


class Keys(TypedDict, total=False):
    """The keys of a sweep file that `oodbench.sweep` and `oodbench.run` take as they are."""

    test_environments: (
        Literal["default", "each", "pairs"]
        | Sequence[str | float]
        | Sequence[Sequence[str | float]]
    )
    validation_environments: Literal["default", "none"] | int | Sequence[str | float]
    hparam_draws: int | Sequence[int]
    draws: Literal["shared", "per trial"]
    hparams_from: str | None
    shared_quantiles: bool
    steps: Literal["default"] | int
    evaluate_every: Literal["default"] | int
    network: str | type | Mapping[str, Any]
    precision: Literal["float32", "tf32", "bfloat16"]
    channels_last: bool
    arithmetic: Literal["portable", "native"]
    holdout: float
    selection: str | None
    attributes: Literal["training", "validation", "unknown"]
    run_timeout: float | None
    resources: Mapping[str, Any]


def takes_keys(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function with `**keys: Unpack[Keys]`: its signature and its help list the keys.

    An unknown argument raises UserError with the nearest name.
    """
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    fields = {name: Sweep.model_fields[name] for name in Keys.__annotations__}
    keys = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.get_default(call_default_factory=True),
            annotation=Keys.__annotations__[name],
        )
        for name, field in fields.items()
    ]
    function.__dict__["__signature__"] = signature.replace(parameters=[*own, *keys])
    listed = [f"    {name}: {field.description}" for name, field in fields.items()]
    text = inspect.getdoc(function) or ""
    function.__doc__ = "\n".join([text, "", "Keys of a sweep file:", *listed])
    return names_arguments(function)


def find_sweep(sweep: str) -> Path:
    """The file of a sweep given as a path or as a name in sweeps/; raises UserError."""
    path = Path(sweep)
    try:
        if path.is_file():
            return path
    except OSError as error:
        raise UserError(f"{short(sweep)} is not a sweep: {error.strerror}") from error
    if path.suffix in (".yaml", ".yml"):
        raise unknown("sweep file", path, sorted(map(str, path.parent.glob("*.y*ml"))))
    if "/" in sweep and not path.is_dir():
        raise UserError(f"there is no sweep file and no results directory {path}{nearest(path)}")
    known = named_sweeps()
    if sweep not in known:
        hint = f" ({path} is a folder, and a sweep is a file)" if path.is_dir() else ""
        raise unknown("sweep", sweep, known, "sweeps/", hint)
    return known[sweep]


def named_sweeps() -> dict[str, Path]:
    """The files of sweeps/ and its folders, by their names without suffix."""
    return {path.stem: path for path in sorted(folder("sweeps").rglob("*.yaml"))}


def read_sweep(path: Path, settings: Sequence[str] = (), plugins: Sequence[str] = ()) -> Sweep:
    """The sweep in a YAML file, with `key=value` settings over it; raises UserError as `validate`.

    A dotted key is a path into lists and mappings, such as `algorithms.0.hparams.lr`.
    """
    values = read_values(path)
    for key, value in assignments("--set", settings).items():
        _assign(values, key, value)
        if key == "trials":
            _drop_trials_of_datasets(values)
    if values.get("protocol") is None:
        return validate(values, str(path), plugins)
    file = find_sweep(str(values["protocol"]))
    completed = read_values(file)
    protocol = validate(completed, str(file), plugins)
    completed |= values
    if "trials" in values:
        _drop_trials_of_datasets(completed)
    sweep = validate(completed, str(path), plugins)
    try:
        return _under(protocol, sweep, values)
    except UserError as error:
        raise error.at(str(path)) from error


def name_of(path: Path) -> str:
    """The name in a sweep file, or in its protocol; raises UserError without a name."""
    values = read_values(path)
    if values.get("protocol") is not None:
        values = read_values(find_sweep(str(values["protocol"]))) | values
    name = values.get("name")
    if not isinstance(name, str):
        raise UserError(f"{path}: name is missing")
    return name


def read_values(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file; raises UserError for anything else."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold keys and values, such as `name: quickstart`")
    for key in values:
        if not isinstance(key, str):
            raise unknown("key", key, Sweep.model_fields, str(path))
    return values


def _assign(values: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path, whose names become mappings and whose missing mappings are made."""
    *parents, last = path.split(".")
    at: Any = values
    for i, key in enumerate([*parents, last]):
        before = ".".join(parents[:i])
        if isinstance(at, list) and not (key.isdecimal() and int(key) < len(at)):
            raise UserError(f"--set {path}: {before} has the items 0 to {len(at) - 1}, not '{key}'")
        if not isinstance(at, list | dict):
            raise UserError(f"--set {path}: {before} is {at!r}, which has no '{key}'")
        index: Any = int(key) if isinstance(at, list) else key
        if i == len(parents):
            at[index] = value
        else:
            inner = at[index] if isinstance(at, list) else at.setdefault(key, {})
            if isinstance(inner, str):
                inner = at[index] = {"name": inner}
            at = inner


def _drop_trials_of_datasets(values: dict[str, Any]) -> None:
    listed = values.get("datasets")
    for dataset in listed if isinstance(listed, list) else ():
        if isinstance(dataset, dict) and isinstance(dataset.get("training"), dict):
            dataset["training"].pop("trials", None)


def _under(protocol: Sweep, sweep: Sweep, given: Iterable[str]) -> Sweep:
    """The sweep, whose file has the keys `given`, with the rows that its protocol fixes.

    A protocol is a sweep in sweeps/protocols/ that never changes: other numbers need a protocol with
    another name (`tests/golden/protocols.json` freezes each). A sweep under a protocol adds methods and
    trials. An algorithm that is given as a name has the protocol's hyperparameters, if the protocol lists
    it. Raises UserError for a sweep that contradicts its protocol.
    """
    for key in given:
        if key not in FREE_KEYS and getattr(sweep, key) != getattr(protocol, key):
            raise UserError(
                f"the protocol {protocol.name} fixes '{key}'; leave it out, or name no protocol"
            )
    fixed = {row.title: row for row in protocol.algorithms}
    rows = []
    for row in sweep.algorithms:
        if row.name == "all" or row.name.startswith(KIND):
            raise UserError(
                f"the protocol {protocol.name} fixes hyperparameters of methods that it lists; list yours "
                "by their names"
            )
        rows.append(fixed.get(row.title, row))
        if row not in (rows[-1], Row(name=row.title)):
            raise UserError(
                f"the protocol {protocol.name} fixes the row '{row.title}'; give yours another `label`"
            )
    return sweep.model_copy(update={"algorithms": rows})


def validate(values: Mapping[str, Any], place: str, plugins: Sequence[str] = ()) -> Sweep:
    """Make a sweep of plain values; raises UserError with all mistakes in them, by key.

    The error also lists unknown names. To know the names of plug-ins, it imports those of the file and
    further `plugins`.
    """
    try:
        return Sweep.model_validate(values)
    except ValidationError as error:
        problems = explain(error, values, Sweep)
        named = values.get("plugins")
        modules = [m for m in named if isinstance(m, str)] if isinstance(named, list) else []
        try:
            load_plugins([*modules, *plugins])
            problems += _unknown_names(values)
        except UserError as failure:
            problems.append(str(failure))
        raise UserError(several(place, problems)) from error


def _unknown_names(values: Mapping[str, Any]) -> Iterator[str]:
    from oodbench.algorithms import algorithms
    from oodbench.datasets import datasets
    from oodbench.networks.base import networks

    keywords = ("all", "default")
    listed: list[tuple[Registry[Any], Any]] = [
        (datasets, values.get("datasets")),
        (algorithms, values.get("algorithms")),
        (networks, [values.get("network")]),
    ]
    for registry, items in listed:
        for item in items if isinstance(items, list) else ():
            name = item.get("name") if isinstance(item, Mapping) else item
            if isinstance(name, str) and name not in keywords and registry.find(name) is None:
                yield str(unknown(registry.noun, name, registry, hint=PLUGIN_HINT))
