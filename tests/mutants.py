"""Changes one comparison, operator, constant or connective at a time: do the tests notice?

`python -m tests.mutants --count 200` draws the mutants, runs for each the quick tests of its module,
those of the rooms that rest on it, then the slow ones of all these, and prints which lived. A mutant
that only a time limit ends counts as killed. The tree that is mutated is a copy.
"""

import argparse
import ast
import contextlib
import copy
import importlib
import io
import itertools
import multiprocessing
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]

# What is mutated, and the tests beyond its own that rest on it, the quickest first
TARGETS = {
    "oodbench/selection.py": ["tests/report/test_leaderboard.py"],
    "oodbench/report/statistics.py": ["tests/report/test_comparison.py"],
    "oodbench/results/directory.py": ["tests/results", "tests/train/test_execute.py"],
    "oodbench/results/read.py": ["tests/results", "tests/test_selection.py"],
    "oodbench/results/tables.py": [
        "tests/test_selection.py",
        "tests/results",
        "tests/report/test_leaderboard.py",
    ],
    "oodbench/hparams.py": [
        "tests/sweep/test_file.py",
        "tests/sweep/test_cells.py",
        "tests/sweep/test_ids.py",
    ],
    "oodbench/tasks.py": ["tests/train/test_evaluate.py", "tests/train/test_constants.py"],
    "oodbench/metrics/*.py": [
        "tests/metrics",
        "tests/train/test_evaluate.py",
        "tests/train/test_constants.py",
    ],
    "oodbench/gradients/*.py": [
        "tests/gradients",
        "tests/algorithms",
        "tests/train/vectorized",
        "tests/test_algorithms.py",
    ],
    "oodbench/train/batches.py": ["tests/data/test_streams.py", "tests/train", "tests/algorithms"],
    "oodbench/train/evaluate.py": ["tests/train"],
    "oodbench/train/loading.py": ["tests/train", "tests/test_selection.py"],
    "oodbench/train/loop.py": ["tests/train"],
    "oodbench/train/vectorized/*.py": ["tests/train/vectorized", "tests/train/test_execute.py"],
    "algorithms/*.py": [
        "tests/test_hparams.py",
        "tests/test_algorithms.py",
        "tests/algorithms",
        "tests/conformance",
        "tests/train/vectorized",
    ],
}

HANGING = 60
"""Seconds without work after which a test hangs."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one expression: the file (relative to the root), the expression, its successor."""

    path: str
    node: ast.expr
    change: ast.expr

    def __str__(self) -> str:
        return f"{self.path}:{self.node.lineno}  {ast.unparse(self.node)}  ->  {ast.unparse(self.change)}"

    def source(self, text: str) -> str:
        """The file's text with the change, every other character as it was."""
        lines = text.encode().splitlines(keepends=True)
        ends = [0]
        for line in lines:
            ends.append(ends[-1] + len(line))
        assert self.node.end_lineno is not None and self.node.end_col_offset is not None
        start = ends[self.node.lineno - 1] + self.node.col_offset
        end = ends[self.node.end_lineno - 1] + self.node.end_col_offset
        whole = text.encode()
        return (whole[:start] + f"({ast.unparse(self.change)})".encode() + whole[end:]).decode()


def expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions whose value matters: no annotations, decorators, messages, asserts or texts."""
    if isinstance(tree, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(tree, ast.expr):
        yield tree
    skipped: list[ast.AST | None] = []
    if isinstance(tree, ast.FunctionDef | ast.ClassDef):
        skipped += tree.decorator_list
    if isinstance(tree, ast.FunctionDef):
        skipped.append(tree.returns)
    if isinstance(tree, ast.arg | ast.AnnAssign):
        skipped.append(tree.annotation)
    if isinstance(tree, ast.keyword) and tree.arg == "strict":  # zip's own assertion
        return
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        return
    for child in ast.iter_child_nodes(tree):
        if child not in skipped:
            yield from expressions(child)


def changes(node: ast.expr) -> Iterator[ast.expr]:
    """The changes of one expression itself, not of its parts."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            new.ops = [COMPARISONS[type(operator)]()]
            yield new
        case ast.BinOp(op=operator) if type(operator) in OPERATORS and not is_text(new):
            new.op = OPERATORS[type(operator)]()
            yield new
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
            yield new
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield new.operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(value * 2 if value else 1.0)


def is_text(node: ast.BinOp) -> bool:
    """Whether an operator works on texts or types, where another operator is no number that is wrong."""
    return any(
        isinstance(part, ast.JoinedStr)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in (node.left, node.right)
    )


def mutants(path: Path) -> list[Mutant]:
    """All mutants of one file."""
    tree = ast.parse(path.read_text())
    name = str(path.relative_to(ROOT))
    return [
        Mutant(path=name, node=node, change=change)
        for node in expressions(tree)
        for change in changes(node)
    ]


def own_tests(file: Path) -> list[str]:
    """The test files of a module, which stand where it does: those of a method in any of their folders."""
    room, stem = file.relative_to(ROOT).parent, file.stem
    folder = ROOT / "tests" / room.relative_to("oodbench" if room.parts[0] == "oodbench" else "")
    pattern = f"*/test_{stem}.py" if room.parts[0] == "algorithms" else f"test_{stem}*.py"
    return [str(path.relative_to(ROOT)) for path in sorted(folder.glob(pattern))]


def classes_of(file: Path) -> list[str]:
    """The names of the classes in a file."""
    return re.findall(r"^class (\w+)", file.read_text(), re.MULTILINE)


def imports(user: Path, file: Path) -> bool:
    """Whether a method's file imports another."""
    return re.search(rf"^from \.{file.stem} import", user.read_text(), re.MULTILINE) is not None


def tests_of(path: str, rest: list[str]) -> list[list[str]]:
    """Arguments of pytest, stage by stage: the module's own tests, then the others that rest on it.

    A method without tests of its own has those of the methods that import it or that it imports. Of the
    tests of all methods only those are run that name a class of the file or of those that import it.
    """
    file = ROOT / path
    own, classes = own_tests(file), classes_of(file)
    if path.startswith("algorithms/"):
        others = [other for other in sorted(file.parent.glob("*.py")) if other != file]
        users = [other for other in others if imports(other, file)]
        near = users + [other for other in others if imports(file, other)]
        own = own or sorted({test for other in near for test in own_tests(other)})
        classes += [name for user in users for name in classes_of(user)]
    stages = [own] if own else []
    for test in rest:
        if path.startswith("algorithms/") and test in (
            "tests/conformance",
            "tests/train/vectorized",
        ):
            stages.append([test, "-k", " or ".join(classes)])
        elif not (path.startswith("algorithms/") and test == "tests/algorithms" and own):
            stages.append([test])
    return stages


def run_pytest(tree: Path, arguments: list[str], limit_s: int) -> None:
    """Runs in a process of its own: the exit status is pytest's, nothing is printed."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    os.setsid()
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ["PYTHONPATH"] = str(tree)
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]  # this file's own package is that of the tree that is not mutated
    import pytest

    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            options = ["-x", "-q", "-p", "no:cacheprovider"]
            options += ["--basetemp", str(tree.parent / "tests")]  # pytest clears it up
            status = pytest.main([*options, *arguments])
    os._exit(int(status))


def ends(process: BaseProcess) -> bool:
    """Wait for a process; False as soon as it and its children use no CPU time for HANGING seconds."""
    root = psutil.Process(process.pid)
    used, since = 0.0, time.monotonic()
    while time.monotonic() - since < HANGING:
        process.join(1)
        if not process.is_alive():
            return True
        with contextlib.suppress(psutil.NoSuchProcess):
            times = [p.cpu_times() for p in (root, *root.children(recursive=True))]
            now = sum(t.user + t.system + t.children_user + t.children_system for t in times)
            if now > used + 0.1:
                used, since = now, time.monotonic()
    return False


def lives(tree: Path, stages: list[list[str]], limit_s: int) -> bool:
    """Whether every stage passes. A time-out and a failure kill; a stage without tests says nothing.

    Raises
    ------
    RuntimeError
        pytest could not be called as asked (its status 4).
    """
    fork = multiprocessing.get_context("fork")
    for mark, stage in itertools.product(("not slow", "slow"), stages):
        chosen = [*stage, "-m", f"{mark} and not nightly"]
        process = fork.Process(target=run_pytest, args=(tree, chosen, limit_s))
        process.start()
        if not ends(process):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, 9)
            process.join()
            return False
        if process.exitcode == 4:
            raise RuntimeError(f"pytest does not take {' '.join(stage)}")
        if process.exitcode not in (0, 5):
            return False
    return True


def preload() -> None:
    """What every test imports, imported once: a test process is forked from this one.

    Nothing of oodbench itself is imported, as that is what changes.
    """
    for name in "pytest pandas pyarrow.parquet scipy.stats sklearn.datasets torchvision".split():
        importlib.import_module(name)


def main() -> int:
    """Draws, runs and prints; the exit status is 0 only where at least 95 % were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first SKIP drawn")
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--limit", type=int, default=200, help="CPU seconds that a stage may take")
    asked = parser.parse_args()
    tests: dict[str, list[str]] = {}
    for pattern, rest in TARGETS.items():
        tests |= {
            str(p.relative_to(ROOT)): rest
            for p in sorted(ROOT.glob(pattern))
            if asked.only in str(p)
        }
    population = [mutant for path in tests for mutant in mutants(ROOT / path)]
    drawn = random.Random(asked.seed).sample(population, min(asked.count, len(population)))[
        asked.skip :
    ]
    print(f"{len(drawn)} of {len(population)} mutants of {len(tests)} files", flush=True)
    preload()
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in tracked.stdout.split("\0")[:-1]:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        for number, mutant in enumerate(drawn, 1 + asked.skip):
            started = time.monotonic()
            file = tree / mutant.path
            text = file.read_text()
            file.write_text(mutant.source(text))
            alive = lives(tree, tests_of(mutant.path, tests[mutant.path]), asked.limit)
            file.write_text(text)
            if alive:
                survivors.append(mutant)
            word = "LIVED" if alive else "killed"
            print(f"{number:4} {word} {time.monotonic() - started:5.0f} s  {mutant}", flush=True)
    print(f"{len(drawn) - len(survivors)} of {len(drawn)} killed")
    return 0 if len(survivors) <= 0.05 * len(drawn) else 1


if __name__ == "__main__":
    raise SystemExit(main())
