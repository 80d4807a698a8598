import shutil
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.helpers.commands import type_in

RAW = Path("MNIST") / "raw"


def offline(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one line that `download` prints if every connection is refused."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("https_proxy", proxy)
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the former proxies
        result = type_in("data", "download", "ColoredMNIST", "--data-dir", data_dir)
    monkeypatch.setattr(urllib.request, "_opener", None)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    return result.stderr


def test_download_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = offline(tmp_path, monkeypatch)
    assert said.startswith("error: ColoredMNIST: MNIST cannot be downloaded (<urlopen error")
    assert f"can also be put into {tmp_path / RAW} by hand" in said


def test_download_does_not_accept_a_damaged_file(
    mnist_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(mnist_dir / RAW, tmp_path / RAW)
    labels = tmp_path / RAW / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\xff")
    assert "MNIST cannot be downloaded (<urlopen error" in offline(tmp_path, monkeypatch)


def test_check_tells_what_is_in_a_dataset() -> None:
    checked = ("data", "check", "LinearSEM", "--set")
    result = type_in(*checked, "num_examples=50", "--set", "scales=[1, 2]", code=0)
    assert "LinearSEM(scales=(1.0, 2.0), num_examples=50)" in " ".join(result.stdout.split())
    assert "all 100 examples can be read" in result.stdout
    assert "--set takes key=value" in type_in(*checked, "num_examples", code=2).stderr
    assert "did you mean scales" in type_in(*checked, "scale=2", code=2).stderr
    assert "Table needs a file" in type_in("data", "check", "Table").stderr


def test_check_finds_what_environments_share(tmp_path: Path) -> None:
    rows = ["x,target,environment"]
    rows += [f"{x},{x % 2},{name}" for name in "abc" for x in range(10)][:-4]
    rows += ["5,1,a", "100,1,b"]
    (tmp_path / "mine.csv").write_text("\n".join(rows))
    command = ("data", "check", "Table", "--set", "file=mine.csv", "--data-dir", tmp_path)
    result = type_in(*command, code=0)
    assert "a: 1 of its examples repeat earlier ones' inputs" in result.stdout
    assert "11 of the 11 examples of 'a' share the inputs of examples of 'b', 'c'" in result.stdout
    assert result.stdout.count("share the inputs") == 3
    assert "repeat" not in result.stdout.split("a: 1 of its examples repeat")[1]
