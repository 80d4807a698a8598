"""The cluster that the tests of this folder share."""

import os
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, missing


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
    """The cluster with all nodes up and no jobs, and this process as its client."""
    for name, value in shared_cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", os.devnull)
    yield shared_cluster
    shared_cluster.empty()
