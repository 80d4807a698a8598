"""The HTML report of a sweep that is running, served on this machine alone. Imports no torch."""

import hashlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from oodbench.errors import UserError
from oodbench.report.html.contents import STATES, contents
from oodbench.report.html.render import render, to_json
from oodbench.results.directory import LOST_AFTER
from oodbench.results.run_spec import State

HOST = "127.0.0.1"
POLL = 5.0
"""The number of seconds between two requests of an open page."""
WATCHED = ("run.json", "metrics.jsonl", "heartbeat", "done.json", "failed.json")
"""The files of a run whose change can change the report."""


class Watched:
    """The contents of a report, made anew when the results have changed."""

    def __init__(
        self, directories: Sequence[Path], baseline: str, allow_mixed: bool = False
    ) -> None:
        """Make the contents for the first time; raises UserError where the results cannot be read."""
        self._directories, self._baseline = directories, baseline
        self._allow_mixed = allow_mixed
        self._lock = threading.Lock()
        self._revision, self._made, self._took = "", 0.0, 0.0
        self._tree: dict[str, Any] = {}
        self._make(_revision(directories))

    def tree(self) -> dict[str, Any]:
        """The contents as of now, or as of last time where the results cannot be read.

        Making them takes at most a third of the time. A run is lost by silence alone, so contents
        with a running one do not last for ever.
        """
        with self._lock:
            age = time.monotonic() - self._made
            running = STATES.index(State.RUNNING) in self._tree["runs"]["state"]
            if age > 2 * self._took:
                revision = _revision(self._directories)
                if revision != self._revision or (running and age > LOST_AFTER):
                    with suppress(UserError, OSError):
                        self._make(revision)
            return self._tree

    def _make(self, revision: str) -> None:
        start = time.monotonic()
        tree = contents(self._directories, self._baseline, self._allow_mixed)
        self._made = time.monotonic()
        self._took = self._made - start
        self._revision = revision
        self._tree = tree | {"watch": POLL, "revision": f"{revision}-{self._made}"}


def _revision(directories: Sequence[Path]) -> str:
    stamps = [list(_stamps(path)) for path in directories]
    return hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]


def _stamps(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, time and size of the files whose change can change the report."""
    files = [path / "sweep.json"]
    if (path / "runs").is_dir():
        for run in sorted((path / "runs").iterdir()):
            files += [run / name for name in WATCHED]
    for file in files:
        try:
            facts = file.stat()
        except OSError:
            continue
        yield f"{file.parent.name}/{file.name}", facts.st_mtime_ns, facts.st_size


class Handler(BaseHTTPRequestHandler):
    """A handler that serves the page (/) and its contents (/data.json), and nothing else."""

    server: "Server"
    protocol_version = "HTTP/1.1"
    timeout = 30.0
    """Seconds without a request, or for a slow one, after which a connection is closed."""

    def do_GET(self) -> None:
        """Send the page or its contents, or 304 to a browser that has them already."""
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            # a page from elsewhere whose name was pointed at this machine
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", "only for this machine\n")
        if self.path not in ("/", "/data.json"):
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is / alone\n")
        tree = self.server.watched.tree()
        tag = f'"{tree["revision"]}"'
        if self.headers.get("If-None-Match") == tag:
            return self._send(HTTPStatus.NOT_MODIFIED, "", "", tag)
        if self.path == "/":
            return self._send(HTTPStatus.OK, "text/html", render(tree), tag)
        return self._send(HTTPStatus.OK, "application/json", to_json(tree), tag)

    def _send(self, status: HTTPStatus, kind: str, text: str, tag: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if tag:
            self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: an open page asks every few seconds."""


class Server(ThreadingHTTPServer):
    """A server of the report of results directories, on loopback alone."""

    daemon_threads = True

    def __init__(
        self, directories: Sequence[Path], port: int, baseline: str, allow_mixed: bool = False
    ) -> None:
        """Port 0 takes a free one. Raises UserError for a port in use or results that are none."""
        self.watched = Watched(directories, baseline, allow_mixed)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise UserError(f"port {port} cannot be served: {error.strerror}") from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a page that was closed while it was answered: that is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The address of the report."""
        return f"http://{HOST}:{self.server_address[1]}/"
