"""Serves the page on a local port, and updates it when its files change.

    with PageServer(["my-run"]) as server:
        print(server.address)          http://127.0.0.1:41297/
        server.serve_forever()         until Ctrl-C

It listens only on 127.0.0.1 and answers only GET of `/`, and only if the request names localhost as its host: a site
whose name was made to point here (DNS rebinding) gets nothing. The page is made on request, at most once a second, from
what is new since the last time; no file is written. An error while a run is in progress is shown instead of the page,
because it may be gone with the next step.

Memory and time per client are limited: `MOST_CLIENTS` connections at once, of which the one idle for the longest is
closed for the next, `REQUEST_BYTES` per request, and `IDLE_SECONDS` between two requests.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ramlet.errors import RamletError, SettingsError, option
from ramlet.reporting.lineage import LineageFinder
from ramlet.reporting.page import page, sentence_page
from ramlet.runtime.budget import Budget

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
SECONDS_BETWEEN = 1.0
IDLE_SECONDS = 20
"""An idle or very slow connection is closed: browsers open some in advance."""
MOST_CLIENTS = 8
REQUEST_BYTES = 1 << 16
"""Of the request line and the headers: browsers send the cookies of everything ever served on localhost."""


class PageServer(ThreadingHTTPServer):
    """Serves one page; an error in the given folders is raised at once."""

    daemon_threads = True

    def __init__(self, paths: Sequence[str | os.PathLike[str]], port: int = 0, budget: Budget | None = None) -> None:
        self._paths = list(paths)
        self._finder = LineageFinder(budget=budget)
        self._lock = threading.Lock()
        self._signature: list[tuple[int, int] | None] | None = None
        self._watched: list[Path] = []
        self._body = b""
        self._tag = ""
        self._checked = float("-inf")
        self._clients: dict[socket.socket, float] = {}
        """When each was last answered."""
        self._free = threading.BoundedSemaphore(MOST_CLIENTS)
        self._make()
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SettingsError(f"cannot listen on port {port}: {reason}; choose another {option('port')}") from None

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def current(self) -> tuple[bytes, str]:
        """The page as it is now, and its ETag."""
        with self._lock:
            now = time.monotonic()
            if now - self._checked >= SECONDS_BETWEEN:
                self._checked = now
                if self._states() != self._signature:
                    try:
                        self._make()
                    except RamletError as error:
                        self._set(sentence_page(str(error)), None)
            return self._body, self._tag

    def _make(self) -> None:
        # Taken before the files are read: what is written while the page is made is noticed the next time.
        watched, states = self._watched, self._states()
        lineages = self._finder.find(self._paths, waiting=True)
        self._watched = [file for lineage in lineages for file in lineage.files]
        self._set(page(lineages, live=True), states if self._watched == watched else None)

    def _set(self, text: str, signature: list[tuple[int, int] | None] | None) -> None:
        self._body, self._signature = text.encode("utf-8"), signature
        self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:24]}"'

    def _states(self) -> list[tuple[int, int] | None]:
        return [_state(file) for file in self._watched]

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._clients) >= MOST_CLIENTS:
            _hang_up(min(list(self._clients.items()), key=lambda client: client[1])[0])
        if not self._free.acquire(timeout=SECONDS_BETWEEN):
            self.shutdown_request(request)
            return
        self.answered(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.pop(request, None)
            self._free.release()

    def answered(self, request: socket.socket) -> None:
        self._clients[request] = time.monotonic()

    def service_actions(self) -> None:
        """Called regularly by `serve_forever`: a request that arrives byte by byte must not keep its connection."""
        now = time.monotonic()
        for client, answered in list(self._clients.items()):
            if now - answered > IDLE_SECONDS:
                _hang_up(client)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Not reported: a browser may disconnect in the middle of an answer."""


def _hang_up(client: socket.socket) -> None:
    """Its thread then reads the end of the stream, and closes it."""
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


class _Request:
    """What a client sends, limited to `REQUEST_BYTES` per request."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.left = REQUEST_BYTES

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._stream.readline(min(size, self.left + 1) if size >= 0 else self.left + 1)
        self.left -= len(line)
        if self.left < 0:
            raise TimeoutError  # http.server then closes the connection without an answer
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _state(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = IDLE_SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "ramlet", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = _Request(self.rfile)  # type: ignore[assignment]

    def handle_one_request(self) -> None:
        self.rfile.left = REQUEST_BYTES  # type: ignore[attr-defined]
        super().handle_one_request()
        self.server.answered(self.connection)

    def do_GET(self) -> None:
        if not self._is_local():
            self._answer(403, b"open http://localhost instead\n")
        elif self.path != "/":
            self._answer(404, b"there is only one page: /\n")
        else:
            body, tag = self.server.current()
            same = self.headers.get("If-None-Match") == tag
            self._answer(304 if same else 200, b"" if same else body, tag)

    def __getattr__(self, name: str) -> Any:
        # Handlers of other methods are looked up by name: do_POST, do_HEAD, do_ANYTHING.
        if name.startswith("do_"):
            return self._refuse
        raise AttributeError(name)

    def _refuse(self) -> None:
        self.close_connection = True
        self._answer(404, b"")

    def _is_local(self) -> bool:
        name, _, port = (self.headers.get("Host") or "").partition(":")
        return name.lower() in NAMES and port in ("", str(self.server.port))

    def _answer(self, status: int, body: bytes, tag: str | None = None) -> None:
        self.send_response(status)
        if status != 304:
            self.send_header("Content-Type", "text/html; charset=utf-8" if status == 200 else "text/plain")
            self.send_header("Content-Length", str(len(body)))
        if tag is not None:
            self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Not logged: only the command line prints."""
