"""What the project itself registers, beside what tests and plug-ins do."""

from typing import Any


def ours(registry: Any) -> dict[str, Any]:
    """The project's classes of a registry, by name."""
    classes = {name: registry.get(name) for name in registry}
    return {n: cls for n, cls in classes.items() if cls.__module__.startswith("oodbench.")}
