"""The details of a registered class, as plain values and as a page for the terminal."""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

from oodbench.adaptations import adaptations
from oodbench.algorithms import Algorithm, Problem, algorithms, why_skipped
from oodbench.datasets import Dataset, datasets, make
from oodbench.errors import UserError, unknown
from oodbench.hparams import Distribution
from oodbench.list.catalogue import KINDS, Entry, beside, summary
from oodbench.networks.base import networks
from oodbench.registry import CHANGES, Registry, load_plugins
from oodbench.tasks import Kind, Task

TITLES = {
    "hparams": "hyperparameters (default; range of random draws; what may be set)",
    "options": "options (default; what may be set)",
}


REGISTRIES: Mapping[str, Registry[Any]] = dict(
    zip(KINDS, (algorithms, datasets, networks, adaptations), strict=True)
)


def registered_entries(plugins: Sequence[str] = ()) -> list[Entry]:
    """All registered classes by kind and name, including those of plug-ins and installed packages."""
    load_plugins(plugins)
    entries = []
    for kind, registry in REGISTRIES.items():
        for name in registry:
            cls = registry.get(name)
            method = (cls.changes, cls.transductive) if kind == "algorithm" else ()
            entries.append(Entry(kind, name, summary(cls.__doc__), paper(registry, name), *method))
    return entries


def paper(registry: Registry[Any], name: str) -> str:
    """The paper that a class was registered with; networks have none."""
    metadata = getattr(registry.get(name), "metadata", None)
    return registry.papers.get(name, "") if metadata is None else str(metadata.paper)


def details(name: str, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Everything about the class registered as `name`; raises UserError for an unknown name.

    Keys: `kind`, `name`, `description`, `paper` (if any), `module`. An algorithm has `changes`,
    `transductive` and `cannot` (the problems on which it cannot run), if they apply; a dataset has its
    metadata and attributes. `hparams`, or `options` of a dataset, come from `parameters`.
    """
    load_plugins(plugins)
    kind = next((kind for kind, registry in REGISTRIES.items() if name in registry), None)
    if kind is None:
        known = [each for registry in REGISTRIES.values() for each in registry]
        raise unknown("algorithm, dataset, network or adaptation", name, known)
    cls = REGISTRIES[kind].get(name)
    about = {"kind": kind, "name": name, "description": inspect.cleandoc(cls.__doc__ or "")}
    about |= {"paper": published} if (published := paper(REGISTRIES[kind], name)) else {}
    about["module"] = cls.__module__
    if kind == "dataset":
        return about | _of_dataset(name, cls) | {"options": parameters(cls.Options)}
    if kind == "algorithm":
        about["changes"] = f"{CHANGES[cls.changes]} (kind: {cls.changes})"
        if cls.transductive:
            about["transductive"] = (
                "its predictions depend on other test inputs: it is ranked apart"
            )
        about |= {"cannot": limits} if (limits := _limits(cls)) else {}
    return about | {"hparams": parameters(cls.Hparams)}


def parameters(space: type) -> list[dict[str, Any]]:
    """The fields of a dataclass of hyperparameters or options, in order.

    Each has a `name`, a `default`, the `range` of random draws (absent if every draw takes the default),
    the `bounds` of what a user may set, default and range `by_family` of datasets, and a `meaning`, the
    sentence below it in the source.
    """
    meanings = _meanings(space)
    rows = []
    for field in fields(space):
        families = field.metadata.get("by_family", {})
        row: dict[str, Any] = {"name": field.name}
        row |= _values(field.default, field.metadata.get("distribution"))
        row["bounds"] = _bounds(field.metadata)
        row["by_family"] = {family: _values(*values) for family, values in families.items()}
        row["meaning"] = meanings.get(field.name, "")
        rows.append({key: row[key] for key in row if key == "default" or row[key] not in ("", {})})
    return rows


def page(about: Mapping[str, Any], width: int) -> str:
    """The dictionary of `details` as text for a terminal of `width` columns."""
    lines = [f"{about['name']} ({about['kind']})", ""]
    for paragraph in str(about["description"]).split("\n\n"):
        lines += [*textwrap.wrap(paragraph, width, break_on_hyphens=False), ""]
    for key, value in about.items():
        if key in ("kind", "name", "description"):
            continue
        if key in TITLES:
            lines += ["", TITLES[key]] if value else []
            lines += [line for row in value for line in _parameter_lines(row, width)]
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            lines += beside(key.replace("_", " "), text, width)
    return "\n".join(lines)


def _limits(cls: type[Algorithm]) -> str:
    environments = ("a", "b", "c")
    tasks = [Task(kind, 1 if kind == "binary" else 3) for kind in get_args(Kind)]
    on_vectors = [Problem((4,), task, environments, 100, attributes=2) for task in tasks]
    on_images = [replace(problem, input_shape=(3, 8, 8)) for problem in on_vectors]
    sides = {"vectors": on_vectors, "images": on_images}
    able = {what: [p for p in side if why_skipped(cls, p) is None] for what, side in sides.items()}
    best = max(able, key=lambda what: len(able[what]))
    if not able[best]:
        return ""
    one = replace(able[best][0], environments=environments[:1])
    without = replace(able[best][0], attributes=0)
    tried: list[tuple[str, Problem]] = [(p.task.kind, p) for p in sides[best]]
    tried += [("one training environment", one), ("data without attributes", without)]
    for what, problems in able.items():
        if not problems:
            tried.append((what, sides[what][tasks.index(able[best][0].task)]))
    impossible: dict[str, list[str]] = {}
    for what, problem in tried:
        if (reason := why_skipped(cls, problem)) is not None:
            impossible.setdefault(reason, []).append(what)
    if cls.overrides("update"):
        impossible["its step is its own"] = ["many runs as one program"]
    return "; ".join(f"{', '.join(what)} ({reason})" for reason, what in impossible.items())


def _of_dataset(name: str, cls: type[Dataset]) -> dict[str, Any]:
    metadata: Any = cls.metadata
    known = {
        key: getattr(metadata, key) for key in ("licence", "family", "shift", "network", "steps")
    }
    try:
        made = make(name, {})
        known["environments"] = list(made.environments)
        known["test_environments"] = list(made.test_environments)
        if made.validation_environments:
            known["validation_environments"] = list(made.validation_environments)
        known |= {"input_shape": list(made.input_shape), "task": made.task.kind}
        known["metric"] = made.metric
    except UserError as error:  # a dataset in files that are not on this machine
        known["environments"] = f"read from its files ({error})"
    if files := [*metadata.checksums] or [f"{metadata.folder}/"] * bool(metadata.folder):
        known["files"] = files
    if metadata.hparams:
        known["defaults_of_methods"] = [f"{k} {v}" for k, v in metadata.hparams.items()]
    return known


def _parameter_lines(row: Mapping[str, Any], width: int) -> list[str]:
    lines = beside(str(row["name"]), _in_words(row), width)
    for family, values in row.get("by_family", {}).items():
        lines += beside("", f"{family}: {_in_words(values)}", width)
    return lines + (beside("", row["meaning"], width) if "meaning" in row else [])


def _in_words(row: Mapping[str, Any]) -> str:
    default = "''" if row["default"] == "" else str(row["default"])
    return "; ".join([default, *(row[key] for key in ("range", "bounds") if key in row)])


def _values(default: object, distribution: Distribution | None) -> dict[str, Any]:
    if distribution is None:
        return {"default": default}
    numbers: list[Any] = list(distribution.arguments)
    if distribution.kind == "uniform_int":
        numbers[1] -= 1  # exclusive as stored
    exact = (not isinstance(n, float) or 0 < 1 - n < 1e-5 for n in numbers)  # .999999 is not 1
    texts = (str(n) if whole else f"{n:.5g}" for n, whole in zip(numbers, exact, strict=True))
    return {"default": default, "range": f"{distribution.kind}({', '.join(texts)})"}


def _bounds(metadata: Mapping[str, Any]) -> str:
    if metadata.get("options"):
        options = metadata["options"]
        return "one of " + ", ".join(o if str(o).isidentifier() else repr(o) for o in options)
    low, high = metadata.get("low"), metadata.get("high")
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""


def _meanings(space: type) -> dict[str, str]:
    meanings = {}
    for cls in reversed(space.__mro__[:-1]):
        try:
            source = inspect.getsource(cls)
        except (OSError, TypeError):  # the class was made at run time
            continue
        (node,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(node, ast.ClassDef)
        for field, below in itertools.pairwise(node.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    meanings[name] = " ".join(text.split())
    return meanings
