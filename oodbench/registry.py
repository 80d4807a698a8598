"""A registry of classes by name, filled by the files of a folder, by entry points and by plug-ins.

A class is refused if a hook or an attribute is misspelt, or cannot be called as the engine calls it.
"""

import ast
import difflib
import dis
import importlib
import inspect
import pkgutil
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, nullcontext
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from itertools import takewhile
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Generic, TypeVar

from oodbench.arithmetic import settle
from oodbench.errors import UserError, definition, described, is_engine, unknown, user_packages

T = TypeVar("T", bound=type)

CHANGES = {
    "risk": "how the environments' risks become one",
    "penalty": "what is added to the risk",
    "gradient": "how the environments' gradients become one",
    "batch": "the batch that is trained on",
    "adversarial": "a part of the network that another part works against",
    "step": "the step from gradients to parameters",
    "group": "what groups of examples count for",
    "estimator": "a predictor of its own in place of the network",
    "reference": "nothing: an estimator of another kind, to compare with",
}
"""The values of `Algorithm.changes`, with what each means; the first is the default."""
NEAR = 0.8
"""The similarity (`difflib`'s ratio) from which a name of about the same length counts as misspelt."""
COMPUTED = (property, cached_property)
FUNCTIONS = (FunctionType, classmethod, staticmethod, *COMPUTED)
"""The types of members of a class that the engine calls or computes."""


class Registry(Generic[T]):
    """Classes by name; `noun`, such as `algorithm`, is what errors call a class.

    At the first look-up the modules that register the classes are imported: the base class's module or the
    files of its folder, and the entry points of `group`.
    """

    def __init__(
        self,
        noun: str,
        base: str,
        group: str | None = None,
        check: Callable[[T], None] = lambda cls: None,
    ) -> None:
        """`base` is the dotted name of the class that all derive from; `group` defaults to its package.

        `check` raises UserError for classes that cannot be registered.
        """
        self.noun = noun
        self.base = base
        self._package = base.rpartition(".")[0]
        self._group = group or self._package
        self._check = check
        self.papers: dict[str, str] = {}
        """The papers of classes that were registered with a paper, by name."""
        self._classes: dict[str, T] = {}
        self._loaded = False

    def add(self, name: str, paper: str = "") -> Callable[[T], T]:
        """A decorator that registers a class under `name`.

        Raises UserError if the name is taken or the class is refused by `require_base`, `check_overrides`
        or the registry's own check.
        """

        def decorate(cls: T) -> T:
            other = self._classes.get(name, cls)
            if f"{other.__module__}.{other.__qualname__}" != f"{cls.__module__}.{cls.__qualname__}":
                both = f"by {other.__module__} and by {cls.__module__}"
                raise UserError(f"{self.noun} '{name}' is registered twice: {both}")
            self.require_base(cls)
            check_overrides(self.noun, cls)
            self._check(cls)
            self._classes[name] = cls
            if paper:
                self.papers[name] = paper
            return cls

        return decorate

    def require_base(self, cls: type) -> None:
        """Raise UserError for a class that is not derived from `base`."""
        if not issubclass(cls, pkgutil.resolve_name(self.base)):
            noun = f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"
            raise UserError(f"{definition(cls)} is not {noun}: it is not derived from {self.base}")

    def get(self, name: str, place: str = "", hint: str = "") -> T:
        """The class registered under `name`; raises UserError with the nearest names if there is none."""
        cls = self.find(name)
        if cls is not None:
            return cls
        base = pkgutil.resolve_name(self.base)
        of_user = [module for n, module in sys.modules.items() if n.split(".")[0] in user_packages]
        for found in (vars(module).get(name) for module in of_user):
            if isinstance(found, type) and issubclass(found, base) and found not in self.registered:
                register = f"`@register(...)` of `{self.base.rpartition('.')[0]}`"
                raise UserError(f"{definition(found)} is not registered: put {register} above it")
        raise unknown(self.noun, name, self, place, hint)

    def find(self, name: str) -> T | None:
        """The class registered under `name`, if there is one."""
        self._load()
        return self._classes.get(name)

    @property
    def registered(self) -> set[T]:
        """The classes that have been registered so far."""
        return {*self._classes.values()}

    def items(self) -> list[tuple[str, T]]:
        """Names and classes in the order of their registration."""
        self._load()
        return list(self._classes.items())

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._classes, key=str.casefold))

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True  # imported modules may look up other classes
        try:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
                importlib.import_module(f"{self._package}.{module.name}")
            settle()  # torch is loaded by now: apply the arithmetic settings
            for point in points(self._group):
                with _imported("entry point", point.value):
                    point.load()
        except BaseException:
            self._loaded = False  # the next look-up tries again
            raise


def points(group: str) -> Iterable[EntryPoint]:
    """The entry points by which installed packages register classes of a group."""
    found: Iterable[EntryPoint] = _entry_points(*sys.path).select(group=group)
    return found


@cache
def _entry_points(*path: str) -> Any:
    """Cached, as they take 10 ms to find."""
    return entry_points()


def load_plugins(modules: Iterable[str]) -> None:
    """Import the user's modules, which register their classes.

    From then on this process searches the working directory first, for any module. Raises UserError for a
    module that is missing or cannot be imported.
    """
    here = working_directory()
    if here is not None and "" not in sys.path and str(here) not in sys.path:
        sys.path.insert(0, str(here))
    stays = nullcontext() if here is None else chdir(here)
    for module in modules:
        if not all(word.isidentifier() for word in module.split(".")):
            raise UserError(f"'{module}' is not a module name; write it as in `import x`")
        with _imported("plug-in", module), stays:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                    raise
                near = [path.stem for path in Path().glob("*.py")]
                below = (str(path.parent) for path in Path().glob(f"*/{module}.py"))
                near += [f"{name}.{module}" for name in below if name.isidentifier()]
                places = " or ".join(str(place) for place in (here, "sys.path") if place)
                raise unknown("plug-in module", module, near, places) from error


@contextmanager
def _imported(noun: str, name: str) -> Iterator[None]:
    user_packages.add(re.split("[.:]", name)[0])
    try:
        yield
    except UserError as error:
        if f"'{name}'" in str(error):
            raise
        raise error.at(f"{noun} '{name}'") from error
    except (Exception, SystemExit) as error:
        problem = f"cannot be imported: {described(error)}"
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            problem = f"needs the missing '{error.name}'"
        elif isinstance(error, SyntaxError):
            problem = f"is not Python: {error.msg}, {error.filename}:{error.lineno}"
        elif isinstance(error, SystemExit):
            problem = "asks to exit when it is imported"
        raise UserError(f"{noun} '{name}' {problem}") from error


def working_directory() -> Path | None:
    """The working directory, or None if it has been deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def checkout() -> Path:
    """The folder that holds the package: a checkout or site-packages."""
    return Path(__file__).resolve().parent.parent


def folder(name: str) -> Path:
    """The folder `name` of the project, in a checkout and in an installed wheel alike."""
    root = checkout()
    return (root if (root / "pyproject.toml").is_file() else root / "oodbench") / name


def own_bases(cls: type) -> list[type]:
    """The class and its bases that precede the engine's first class in the MRO."""
    return list(takewhile(lambda base: not is_engine(base.__module__), cls.__mro__))


def own_members(cls: type) -> dict[str, Any]:
    """What the class and its bases in `own_bases` define, by name."""
    return {n: m for base in reversed(own_bases(cls)) for n, m in vars(base).items()}


def _kind(member: object) -> str:
    if isinstance(member, type):
        return "class"
    is_function = isinstance(member, FUNCTIONS) and not isinstance(member, COMPUTED)
    return "function" if is_function else "attribute"


def _engine_members(cls: type) -> dict[str, Any]:
    engines = (base for base in cls.__mro__ if is_engine(base.__module__))
    return dict(ChainMap(*(dict.fromkeys(inspect.get_annotations(e)) | vars(e) for e in engines)))


def check_overrides(noun: str, cls: type) -> None:
    """Raise UserError for a member that is misspelt, cannot be used as the engine does, or is missing.

    A user's function, attribute or nested class counts as misspelt if no base class has its name, and a
    member of an engine class of the same kind has nearly the same name: about one letter in five may
    differ, and the length by one. Helpers may have any other name, including plurals of such names, if the
    class uses them, and names that begin with an underscore.
    """
    if is_engine(cls.__module__):
        return
    who, own, engines = f"the {noun} {cls.__name__}", own_members(cls), _engine_members(cls)
    others = [base for base in cls.__mro__ if base not in own_bases(cls)]
    hooks = {n: m for n, m in engines.items() if n[0] != "_" and not hasattr(m, "__final__")}
    for name, member in own.items():
        kind = _kind(member)
        if hasattr(engines.get(name), "__final__"):
            raise UserError(f"{who} defines `{name}`, which is not a hook: give it another name")
        # a network's `__init__` has arguments of its own
        if name in hooks or (name == "__init__" and noun != "network"):
            if (mistake := _mistake(cls, name, member, engines.get(name))) is not None:
                raise UserError(f"{who}: {mistake}")
        elif name[0] != "_" and not any(name in vars(base) for base in others):
            alike = [n for n, m in hooks.items() if _kind(m) == kind]
            is_unused = kind == "function" and not is_read(name, own)
            if (nearest := _misspelt(name, alike, is_unused)) is not None:
                raise UserError(
                    f"{who} defines `{name}`, which overrides nothing; did you mean `{nearest}`? (If not, "
                    f"start the name of this {kind} with an underscore: `_{name}`.)"
                )
    if missing := getattr(cls, "__abstractmethods__", ()):
        raise UserError(f"{who} does not define {' and '.join(f'`{m}`' for m in sorted(missing))}")
    for name in ("Hparams", "Options"):
        space = own.get(name)
        annotated = [*inspect.get_annotations(space)] if isinstance(space, type) else []
        if annotated and "__dataclass_fields__" not in vars(space):
            raise UserError(
                f"{who}: `{name}` needs `@dataclass(frozen=True, kw_only=True)`; without it "
                f"`{annotated[0]}` cannot be set"
            )


def check_attributes(noun: str, made: object) -> None:
    """Raise UserError for a misspelt attribute of an instance, which its class sets and never reads."""
    cls, engines = type(made), _engine_members(type(made))
    alike = [n for n, m in engines.items() if n[0] != "_" and _kind(m) == "attribute"]
    members = {(b, n): m for b in cls.__mro__ for n, m in vars(b).items()}
    for name in () if is_engine(cls.__module__) else sorted(vars(made).keys() - engines.keys()):
        nearest = None if name[0] == "_" else _misspelt(name, alike, is_unused=True)
        if nearest is not None and not is_read(name, members):
            raise UserError(
                f"the {noun} {cls.__name__} sets `self.{name}`, which it never reads; did you mean "
                f"`self.{nearest}`? (If not, let its name start with an underscore: `self._{name}`.)"
            )


def is_read(name: str, members: Mapping[Any, Any]) -> bool:
    """Whether a function among the members of a class reads an attribute or a variable of this name."""
    functions = (getattr(m, "fget", getattr(m, "func", m)) for m in members.values())
    codes = [f.__code__ for f in map(inspect.unwrap, functions) if isinstance(f, FunctionType)]
    for code in codes:  # which grows by the functions within functions
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    parts = (i for code in codes for i in dis.get_instructions(code) if i.argval == name)
    return any("STORE" not in part.opname for part in parts)


def _misspelt(name: str, known: Collection[str], is_unused: bool) -> str | None:
    plain = {each.replace("_", "").casefold(): each for each in known}
    word = name.replace("_", "").casefold()
    near = difflib.get_close_matches(word, plain, 1, NEAR)
    if not near or abs(len(near[0]) - len(word)) > 1 or (word == f"{near[0]}s" and not is_unused):
        return None
    return plain[near[0]]


def _mistake(cls: type, name: str, given: Any, wanted: Any) -> str | None:
    if wanted is None or isinstance(wanted, type) or not isinstance(given, FUNCTIONS):
        return None
    if _kind(wanted) == "attribute":
        return None if isinstance(given, COMPUTED) else f"`{name}` needs `@property`"
    if isinstance(given, COMPUTED):
        return f"`{name}` is a function, without `@property`"
    if isinstance(wanted, classmethod) and isinstance(given, FunctionType):
        return f"`{name}` needs `@classmethod`"
    signature = inspect.signature(getattr(cls, name))
    usual = inspect.signature(wanted.__get__(None, cls))
    positional = [p for p in usual.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if isinstance(given, staticmethod) and isinstance(wanted, FunctionType):
        positional = positional[1:]
    try:
        signature.bind(*positional)
    except TypeError:
        defined = ", ".join(str(p).partition(":")[0] for p in signature.parameters.values())
        arguments = ", ".join(p.name for p in positional)
        return f"`{name}({defined})` is called with ({arguments})"
    return None


Classes = Mapping[str, ast.ClassDef]


def written(files: Iterable[Path]) -> Iterator[tuple[str, ast.Call, ast.ClassDef, Classes]]:
    """Yield the name, decorator and class of each registration, and the files' classes by name.

    The files are parsed, as importing them would take seconds. Nested classes are left out.
    """
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    classes = {n.name: n for tree in trees for n in tree.body if isinstance(n, ast.ClassDef)}
    for node in classes.values():
        for call in node.decorator_list:
            match call:
                case ast.Call(func=ast.Name("register"), args=[ast.Constant(str(name)), *_]):
                    yield name, call, node, classes


def bases_of(node: ast.ClassDef, classes: Classes) -> list[ast.ClassDef]:
    """The base classes of `node` that `classes` contains."""
    return [classes[b.id] for b in node.bases if isinstance(b, ast.Name) and b.id in classes]


def paper_of(call: ast.Call) -> str:
    """The `paper` of a decorator, also inside its `Metadata(...)`; empty if it is absent."""
    for node in ast.walk(call):
        match node:
            case ast.keyword(arg="paper", value=ast.Constant(str(text))):
                return text
    return ""
