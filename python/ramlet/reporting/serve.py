"""The page on a local port, made anew when its files have changed.

    with PageServer(["my-run"]) as server:
        print(server.address)          http://127.0.0.1:41297/
        server.serve_forever()         until Ctrl-C

Only 127.0.0.1 is listened on, only GET of `/` is answered, and only where the browser asked for this address by the
name of localhost: a page from elsewhere whose name was made to point here (DNS rebinding) gets nothing. The page is
made when it is asked for, at most once a second, from what is new since the last time; no file is written. An error
while a run goes on is shown in its place, for it may be gone with the next step.

Whoever asks gets little memory and time: `MOST_CLIENTS` connections at once, of which the one that has been silent for
the longest makes room for the next, `REQUEST_BYTES` a request, and `IDLE_SECONDS` from one answer to the next.
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
from ramlet.reporting.page import page, sentence_page
from ramlet.reporting.story import Teller
from ramlet.runtime.budget import Budget

__all__ = ["PageServer"]

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
SECONDS_BETWEEN = 1.0
IDLE_SECONDS = 20
"""A connection on which nothing is asked, or too slowly, is closed: browsers open some in advance."""
MOST_CLIENTS = 8
REQUEST_BYTES = 1 << 16
"""Of the line and the headers: browsers send the cookies of all that was ever served on localhost."""


class PageServer(ThreadingHTTPServer):
    """Serves one page; what goes wrong with the given folders at the beginning is raised here."""

    daemon_threads = True

    def __init__(self, paths: Sequence[str | os.PathLike[str]], port: int = 0, budget: Budget | None = None) -> None:
        self._paths = list(paths)
        self._teller = Teller(budget=budget)
        self._lock = threading.Lock()
        self._signature: list[tuple[int, int] | None] | None = None
        self._watched: list[Path] = []
        self._body = b""
        self._tag = ""
        self._looked = float("-inf")
        self._clients: dict[socket.socket, float] = {}
        """When each was last answered."""
        self._room = threading.BoundedSemaphore(MOST_CLIENTS)
        self._make()
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SettingsError(
                f"cannot listen on port {port}: {reason}; give another {option('port')}, or none"
            ) from None

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def current(self) -> tuple[bytes, str]:
        """The page as it is now, and a name for this state of it."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= SECONDS_BETWEEN:
                self._looked = now
                if self._seen() != self._signature:
                    try:
                        self._make()
                    except RamletError as error:
                        self._set(sentence_page(str(error)), None)
            return self._body, self._tag

    def _make(self) -> None:
        # Looked at before the files are read: what is written while the page is made is seen the next time.
        watched, seen = self._watched, self._seen()
        stories = self._teller.tell(self._paths, waiting=True)
        self._watched = [file for story in stories for file in story.files]
        self._set(page(stories, live=True), seen if self._watched == watched else None)

    def _set(self, text: str, signature: list[tuple[int, int] | None] | None) -> None:
        self._body, self._signature = text.encode("utf-8"), signature
        self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:24]}"'

    def _seen(self) -> list[tuple[int, int] | None]:
        return [_state(file) for file in self._watched]

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._clients) >= MOST_CLIENTS:
            _hang_up(min(list(self._clients.items()), key=lambda client: client[1])[0])
        if not self._room.acquire(timeout=SECONDS_BETWEEN):
            self.shutdown_request(request)
            return
        self.answered(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.pop(request, None)
            self._room.release()

    def answered(self, request: socket.socket) -> None:
        self._clients[request] = time.monotonic()

    def service_actions(self) -> None:
        """Called by `serve_forever` now and then: a request that comes byte by byte keeps its connection no longer."""
        now = time.monotonic()
        for client, answered in list(self._clients.items()):
            if now - answered > IDLE_SECONDS:
                _hang_up(client)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in the middle of an answer is nothing to tell of."""


def _hang_up(client: socket.socket) -> None:
    """Its thread then reads the end, and closes it."""
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


class _Request:
    """What a client sends, a request at a time and no more of each than `REQUEST_BYTES`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.left = REQUEST_BYTES

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._stream.readline(min(size, self.left + 1) if size >= 0 else self.left + 1)
        self.left -= len(line)
        if self.left < 0:
            raise TimeoutError  # for which the connection is closed without a word
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
            self._answer(403, b"ask for http://localhost\n")
        elif self.path != "/":
            self._answer(404, b"there is only one page: /\n")
        else:
            body, tag = self.server.current()
            same = self.headers.get("If-None-Match") == tag
            self._answer(304 if same else 200, b"" if same else body, tag)

    def __getattr__(self, name: str) -> Any:
        # Every other method is looked up by its name: do_POST, do_HEAD, do_ANYTHING.
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
        """Nothing is logged: only the command prints."""
