"""A registry: names to classes, filled by the files of a folder, by entry points and by plug-ins."""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Generic, TypeVar

from oodbench.errors import UserError, unknown

T = TypeVar("T", bound=type)


class Registry(Generic[T]):
    """The classes of one kind by name; the files of the folder `package` and the entry points of that
    group, which register them, are imported at the first look-up.
    """

    def __init__(self, kind: str, package: str = "") -> None:
        self.kind = kind
        self._package = package
        self._classes: dict[str, T] = {}
        self._loaded = False

    def add(self, name: str) -> Callable[[T], T]:
        """A decorator that registers a class under `name`; a name is given once."""

        def decorate(cls: T) -> T:
            other = self._classes.get(name)
            if other is not None and (other.__module__, other.__qualname__) != (
                cls.__module__,
                cls.__qualname__,
            ):
                raise UserError(
                    f"{self.kind} '{name}' is registered twice: "
                    f"by {other.__module__} and by {cls.__module__}"
                )
            self._classes[name] = cls
            return cls

        return decorate

    def get(self, name: str, place: str = "") -> T:
        """The class registered under `name`; raises UserError with the nearest names."""
        self._load()
        if name not in self._classes:
            raise unknown(self.kind, name, self, place)
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._classes, key=str.casefold))

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        if not self._package:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        for point in entry_points(group=self._package):
            try:
                point.load()
            except Exception as error:
                raise UserError(f"entry point '{point.value}' cannot be loaded: {error}") from error


def load_plugins(modules: Iterable[str]) -> None:
    """Import the user's modules, which register their classes; the working directory is searched.

    Raises UserError for a module that is not there, is not Python or ends the process.
    """
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UserError(f"'{module}' is no name of a module: a plug-in is named as in `import`")
        try:
            importlib.import_module(module)
        except UserError:
            raise
        except SyntaxError as error:
            raise UserError(
                f"plug-in '{module}' is not Python: {error.msg}, {error.filename}:{error.lineno}"
            ) from error
        except SystemExit as error:
            raise UserError(f"plug-in '{module}' asks to exit when it is imported") from error
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise UserError(f"plug-in '{module}' needs the missing '{error.name}'") from error
            near = [p.stem for p in Path.cwd().glob("*.py")]
            raise unknown("plug-in module", module, near, f"{Path.cwd()} or sys.path") from error


def checkout() -> Path:
    """The folder that holds the package: a checkout, a frozen copy of one, or site-packages."""
    return Path(__file__).resolve().parent.parent


def folder(name: str) -> Path:
    """The folder `name` of the project, in a checkout and in an installed wheel alike."""
    root = checkout()
    return (root if (root / "pyproject.toml").is_file() else root / "oodbench") / name
