"""What the registries hold, once everything that registers has been imported; that takes torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.list.sources import Entry, summary
from oodbench.networks.base import networks
from oodbench.registry import Registry, load_plugins


def registries(plugins: Sequence[str] = ()) -> Mapping[str, Registry[Any]]:
    """The registries by kind, with what the plug-ins register; raises UserError for unknown ones."""
    load_plugins(plugins)
    return {"algorithm": algorithms, "dataset": datasets, "network": networks}


def registered_entries(plugins: Sequence[str] = ()) -> list[Entry]:
    """Every registered class by kind and name, those of plug-ins and installed packages included."""
    return [
        Entry(kind, name, summary(cls.__doc__), paper(registry, name), *_facts(kind, cls))
        for kind, registry in registries(plugins).items()
        for name, cls in ((name, registry.get(name)) for name in registry)
    ]


def _facts(kind: str, cls: Any) -> tuple[str, bool]:
    """What only algorithms have of an entry."""
    return (cls.changes, cls.transductive) if kind == "algorithm" else ("", False)


def paper(registry: Registry[Any], name: str) -> str:
    """The paper that a class was registered with; networks have none."""
    metadata = getattr(registry.get(name), "metadata", None)
    return registry.papers.get(name, "") if metadata is None else metadata.paper
