"""Changes one comparison, operator, constant or connective at a time: do the tests notice?

`python -m tests.mutants --count 200` draws the mutants, runs for each the quick tests of its module,
those of the rooms that rest on it, then the slow ones of all these, and prints which lived. A mutant
that only the time limit ends counts as killed. The tree that is mutated is a copy.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT

# What is mutated, and the tests beyond its own that rest on it, the quickest first
TARGETS = {
    "oodbench/selection/judge.py": ["tests/report/test_leaderboard.py"],
    "oodbench/report/statistics.py": ["tests/report/test_comparison.py"],
    "oodbench/results/directory.py": ["tests/results", "tests/train/test_execute.py"],
    "oodbench/results/run_directory.py": ["tests/results", "tests/train/test_execute.py"],
    "oodbench/results/read.py": ["tests/results", "tests/selection/test_judge.py"],
    "oodbench/results/tables.py": [
        "tests/selection/test_judge.py",
        "tests/results",
        "tests/report/test_leaderboard.py",
    ],
    "oodbench/hparams.py": [
        "tests/sweep/test_file.py",
        "tests/sweep/test_cells.py",
        "tests/sweep/test_ids.py",
    ],
    "oodbench/tasks.py": ["tests/train/test_evaluate.py"],
    "oodbench/metrics/*.py": ["tests/metrics", "tests/train/test_evaluate.py"],
    "oodbench/gradients/*.py": [
        "tests/gradients",
        "tests/algorithms",
        "tests/train/vectorized",
        "tests/ground/test_algorithms.py",
    ],
    "oodbench/train/batches.py": ["tests/data/test_streams.py", "tests/train", "tests/algorithms"],
    "oodbench/train/evaluate.py": ["tests/train"],
    "oodbench/train/loading.py": ["tests/train", "tests/selection/test_judge.py"],
    "oodbench/train/loop.py": ["tests/train"],
    "oodbench/train/vectorized/*.py": ["tests/train/vectorized", "tests/train/test_execute.py"],
    "algorithms/*.py": [
        "tests/ground/test_hparams.py",
        "tests/ground/test_algorithms.py",
        "tests/algorithms",
        "tests/conformance",
        "tests/train/vectorized",
    ],
}

OF_ALL_METHODS = ("tests/conformance", "tests/train/vectorized")
"""Tests of all methods, of which those are run that name a class of the file."""
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
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            yield ast.Compare(node.left, [COMPARISONS[type(operator)]()], node.comparators)
        case ast.BinOp(op=operator) if type(operator) in OPERATORS and not is_text(node):
            yield ast.BinOp(node.left, OPERATORS[type(operator)](), node.right)
        case ast.BoolOp(op=operator):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(value * 2 if value else 1.0)


def is_text(node: ast.BinOp) -> bool:
    """Whether an operator works on texts, for which another operator only raises."""
    parts = (node.left, node.right)
    return any(isinstance(getattr(p, "value", p), str | ast.JoinedStr) for p in parts)


def mutants(path: Path) -> list[Mutant]:
    """All mutants of one file."""
    tree = ast.parse(path.read_text())
    name = str(path.relative_to(ROOT))
    return [
        Mutant(path=name, node=node, change=change)
        for node in expressions(tree)
        for change in changes(node)
    ]


def tests_of(path: str, rest: list[str]) -> list[list[str]]:
    """Arguments of pytest, stage by stage: the module's own tests, then the others that rest on it."""
    file = ROOT / path
    folder = ROOT / "tests" / Path(path.removeprefix("oodbench/")).parent
    own = [str(test.relative_to(ROOT)) for test in sorted(folder.rglob(f"test_{file.stem}.py"))]
    classes = " or ".join(re.findall(r"^class (\w+)", file.read_text(), re.MULTILINE))
    others = [[t, "-k", classes] if classes and t in OF_ALL_METHODS else [t] for t in rest]
    return [own, *others] if own else others


def lives(tree: Path, stages: list[list[str]], limit_s: int) -> bool:
    """Whether every stage passes. A time-out and a failure kill; a stage without tests says nothing.

    Raises
    ------
    RuntimeError
        pytest could not be called as asked (its status 4).
    """
    env = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    options: Any = {"cwd": tree, "env": env, "capture_output": True, "timeout": limit_s}
    for mark, stage in product(("not slow", "slow"), stages):
        asked = [*command, *stage, "-m", f"{mark} and not nightly"]
        try:
            status = subprocess.run(asked, **options).returncode
        except subprocess.TimeoutExpired:
            return False
        if status == 4:
            raise RuntimeError(f"pytest does not take {' '.join(stage)}")
        if status not in (0, 5):
            return False
    return True


def copy_of_the_tree(tree: Path) -> None:
    """Copy the files that git does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")[:-1]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)


def main() -> int:
    """Draws, runs and prints; the exit status is 0 only where at least 95 % were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--limit", type=int, default=200, help="seconds that a stage may take")
    asked = parser.parse_args()
    found = {str(p.relative_to(ROOT)): t for g, t in TARGETS.items() for p in sorted(ROOT.glob(g))}
    tests = {path: rest for path, rest in found.items() if asked.only in path}
    population = [mutant for path in tests for mutant in mutants(ROOT / path)]
    drawn = random.Random(asked.seed).sample(population, min(asked.count, len(population)))
    print(f"{len(drawn)} of {len(population)} mutants of {len(tests)} files", flush=True)
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copy_of_the_tree(tree)
        for number, mutant in enumerate(drawn, 1):
            started = time.monotonic()
            file = tree / mutant.path
            text = file.read_text()
            file.write_text(mutant.source(text))
            alive = lives(tree, tests_of(mutant.path, tests[mutant.path]), asked.limit)
            file.write_text(text)
            survivors += alive
            word = "LIVED" if alive else "killed"
            print(f"{number:4} {word} {time.monotonic() - started:5.0f} s  {mutant}", flush=True)
    print(f"{len(drawn) - survivors} of {len(drawn)} killed")
    return 0 if survivors <= 0.05 * len(drawn) else 1


if __name__ == "__main__":
    raise SystemExit(main())
