"""The quick tests, with the lowest version that pyproject.toml admits of each package.

`python3.11 -m tests.install.lowest [TESTS...]` makes an environment, installs oodbench with all extras and
the tests' tools into it, tests, prints a row a package and deletes it. docs/findings/lowest.md has the
result.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers.paths import ROOT
from tests.install.extras import project


def lowest(requirements: Iterable[str]) -> dict[str, str]:
    """The version after `>=` of each requirement that this Python has, by the package's name."""
    found = dict[str, str]()
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            (bound,) = (s.version for s in requirement.specifier if s.operator == ">=")
            known = found.setdefault(canonicalize_name(requirement.name), bound)
            assert known == bound, f"{requirement.name} has two bounds"
    return found


def main() -> None:
    """Install, test, and print what was installed; exits as the tests do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", default=[], metavar="TESTS", help="of these files only")
    tests = parser.parse_args().tests
    extras = project()["optional-dependencies"]
    bounds = lowest([*project()["dependencies"], *(r for e in extras.values() for r in e)])
    with tempfile.TemporaryDirectory(prefix="lowest-") as made:
        constraints = Path(made) / "constraints.txt"
        constraints.write_text("".join(f"{name}=={bound}\n" for name, bound in bounds.items()))
        subprocess.run([sys.executable, "-m", "venv", f"{made}/venv"], check=True)
        python = f"{made}/venv/bin/python"
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--upgrade", "pip"], check=True)
        wanted = ["--constraint", str(constraints), "--group", "dev", f".[{','.join(extras)}]"]
        subprocess.run([*pip, *wanted], cwd=ROOT, check=True)
        code = f"from importlib.metadata import version as v; print(*map(v, {[*bounds]!r}))"
        versions = subprocess.check_output([python, "-c", code], text=True).split()
        # what an old package warns of beside the newest of others is nothing of ours
        pytest = [python, "-m", "pytest", "-n", "2", "-m", "not slow and not nightly"]
        pytest += ["-o", "filterwarnings=default", "--disable-warnings"]
        done = subprocess.run([*pytest, *tests], cwd=ROOT, check=False)
    print("| package | version |\n| --- | --- |")
    print("\n".join(f"| {name} | {found} |" for name, found in zip(bounds, versions, strict=True)))
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
