"""The served report, asked over HTTP and in a browser."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from oodbench.errors import UserError
from oodbench.report.html import server as watch
from tests.helpers.made import Made, flat
from tests.helpers.paths import ROOT


@pytest.fixture
def made(tmp_path: Path) -> Made:
    sweep = Made(tmp_path)
    sweep.add("<b>D", "ERM", ("a",), 0, flat(0.5))
    sweep.add("<b>D", "ERM", ("a",), 1, flat(0.5), state="planned")
    return sweep


@pytest.fixture
def server(made: Made, monkeypatch: pytest.MonkeyPatch) -> Iterator[watch.Server]:
    monkeypatch.setattr(watch, "POLL", 0.2)
    with watch.Server([made.results.path], 0, "ERM") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: watch.Server, path: str, **headers: str) -> tuple[int, str, str]:
    """Status, ETag and text of an answer."""
    connection = HTTPConnection("127.0.0.1", int(server.server_address[1]))
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = (answer.status, answer.headers.get("ETag", ""), answer.read().decode())
    connection.close()
    return found


def states(text: str) -> list[str]:
    tree = json.loads(text)
    return [tree["states"][s] for s in tree["runs"]["state"]]


def quick(server: watch.Server) -> None:
    """Let the contents be made again at once."""
    server.watched._took = 0.0


def test_it_serves_the_page_and_its_contents_and_nothing_else(server: watch.Server) -> None:
    status, _, page = ask(server, "/")
    assert status == 200 and page.startswith("<!doctype html>") and "connect-src 'self'" in page
    status, _, text = ask(server, "/data.json")
    assert status == 200 and states(text) == ["done", "planned"]
    for path in ("/sweep.json", "/runs", "/../sweep.json", "/data.json/"):
        assert ask(server, path)[0] == 404


def test_it_answers_this_machine_alone(server: watch.Server) -> None:
    port = server.server_address[1]
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/", Host=f"localhost:{port}")[0] == 200
    for host in (f"evil.example:{port}", "127.0.0.1", "localhost"):
        status, _, text = ask(server, "/data.json", Host=host)
        assert (status, text) == (403, "only for this machine\n")


@pytest.mark.parametrize("sent", [b"", b"GET /data.json HT"])
def test_a_connection_without_a_request_is_closed(
    server: watch.Server, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch.Handler, "timeout", 0.2)
    address = ("127.0.0.1", int(server.server_address[1]))
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(sent)
        assert connection.recv(1) == b""
    assert ask(server, "/data.json")[0] == 200


def test_it_follows_the_results(server: watch.Server, made: Made) -> None:
    _, tag, _ = ask(server, "/data.json")
    quick(server)
    assert ask(server, "/data.json", **{"If-None-Match": tag}) == (304, tag, "")
    made.add("<b>D", "ERM", ("a",), 1, flat(0.7))
    status, new, text = ask(server, "/data.json", **{"If-None-Match": tag})
    assert status == 200 and new != tag and states(text) == ["done", "done"]


def test_making_the_contents_takes_a_third_of_the_time(server: watch.Server, made: Made) -> None:
    _, tag, _ = ask(server, "/data.json")
    server.watched._took = 1000.0
    made.add("<b>D", "ERM", ("a",), 1, flat(0.7))
    assert ask(server, "/data.json", **{"If-None-Match": tag})[0] == 304


@pytest.mark.slow
def test_a_run_is_lost_by_silence_alone(
    server: watch.Server, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.add("<b>D", "ERM", ("a",), 1, flat(0.7), state="running")
    quick(server)
    assert states(ask(server, "/data.json")[2]) == ["done", "running"]
    monkeypatch.setattr("oodbench.results.directory.LOST_AFTER", 0.0)
    quick(server)
    assert states(ask(server, "/data.json")[2]) == ["done", "running"]  # nothing changed on disk
    monkeypatch.setattr(watch, "LOST_AFTER", 0.0)
    assert states(ask(server, "/data.json")[2]) == ["done", "lost"]


def test_results_that_cannot_be_read_leave_the_last_contents(
    server: watch.Server, made: Made
) -> None:
    _, tag, before = ask(server, "/data.json")
    (made.results.path / "sweep.json").write_text("{")
    quick(server)
    assert ask(server, "/data.json") == (200, tag, before)


def test_what_cannot_be_served_is_one_sentence(server: watch.Server, tmp_path: Path) -> None:
    port = int(server.server_address[1])
    with pytest.raises(UserError, match=f"port {port} cannot be served: Address already in use"):
        watch.Server(server.watched._directories, port, "ERM")
    with pytest.raises(UserError, match="holds no sweep"):
        watch.Server([tmp_path / "none"], 0, "ERM")


@pytest.mark.slow
def test_the_command_says_where_and_ends_on_an_interrupt(made: Made) -> None:
    command = [sys.executable, "-m", "oodbench.report", "watch", str(made.results.path)]
    process = subprocess.Popen(
        [*command, "--port", "0"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/ \(Ctrl-C ends\)\n", line)
    assert (process.returncode, error) == (0, "")


def test_a_page_that_leaves_early_is_no_error(
    server: watch.Server, capfd: pytest.CaptureFixture[str]
) -> None:
    for broken in (ConnectionResetError(), BrokenPipeError(), KeyError("ours")):
        try:
            raise broken
        except (OSError, KeyError):
            server.handle_error(None, ("127.0.0.1", 1))
    told = capfd.readouterr().err
    assert told.count("Traceback") == 1 and "KeyError: 'ours'" in told


@pytest.mark.slow
def test_an_open_page_follows_without_a_reload(
    server: watch.Server, made: Made, browser: Any
) -> None:
    page = browser.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(server.url)
    page.evaluate("window.kept = true")
    page.fill("#filter", "erm")
    assert "1 done" in page.locator("#states").inner_text()
    made.add("<b>D", "ERM", ("a",), 1, flat(0.7))
    quick(server)
    page.locator("#states").get_by_text("2 done").wait_for(timeout=10_000)
    assert page.locator("#leaderboard td").first.inner_text() == "60.0 ± 10.0"
    assert page.evaluate("window.kept") and page.locator("#filter").input_value() == "erm"
    assert problems == []
    page.context.close()
