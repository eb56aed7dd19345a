"""Files that are read as a whole: what is no file, or larger than one of its kind can be, is refused unread."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oracles_report import write_run
from ramlet.dataset.manifest import NAME, Manifest
from ramlet.errors import BudgetError, DatasetError, RamletError
from ramlet.model.folder import find_model
from ramlet.preparing.entry import prepare
from ramlet.reporting import serve
from ramlet.reporting.found import Finder
from ramlet.reporting.serve import PageServer
from ramlet.runtime import small_files
from ramlet.runtime.budget import Budget, using_budget
from ramlet.runtime.small_files import parse_yaml, read_bytes, read_json, read_text
from ramlet.settings.yaml_nodes import compose
from ramlet.tokenizer.files.load import load
from ramlet.training.checkpoint import read_state
from ramlet.training.model_config import read_model_config
from ramlet.training.run_folder import RunFolder


def tokenizer(path: Path) -> Any:
    return load(path, "gpt2" if path.suffix == ".tiktoken" else None, ())


READERS: dict[str, Callable[[Path], Any]] = {
    NAME: lambda path: Manifest.read(path.parent),
    "tokenizer.json": tokenizer,
    "vocab.json": tokenizer,
    "x.tiktoken": tokenizer,
    "config.json": lambda path: find_model(path.parent).shape(),
    "settings.yaml": lambda path: RunFolder(path.parent).noted(),
    "state.json": lambda path: read_state(path.parent),
    "model.yaml": lambda path: read_model_config(str(path)),
    "pipeline.yaml": lambda path: compose(str(path)),
    "stats.json": lambda path: Finder().tokenizer(path.parent),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["/dev/zero", "/dev/full", "pipe", "folder", "vast", "itself"])
def test_what_is_no_small_file(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "model.safetensors").write_text("")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "vast":
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    elif kind == "itself":
        path.symlink_to(name)
    else:
        path.symlink_to(kind)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((RamletError, FileNotFoundError)) as raised:
        READERS[name](path)
    if kind != "itself":
        assert name in str(raised.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'"\\uD83d\\ude00"')
    assert read_json(path, DatasetError) == "\N{GRINNING FACE}"
    path.write_text('{"a": 1, "a": 2}')
    assert read_json(path, DatasetError) == {"a": 2}
    path.write_text(f'{{"{"1" * 40}": [{2**64 - 1}, {-(2**63)}]}}')
    assert read_json(path, DatasetError) == {"1" * 40: [2**64 - 1, -(2**63)]}
    path.write_text('{"a": 1, "a": 2}')
    assert read_text(path, DatasetError, most=16) == '{"a": 1, "a": 2}'
    with pytest.raises(DatasetError, match=r"x\.json is larger than 1\.5e-05 MB"):
        read_bytes(path, DatasetError, most=15)
    for content, reason in (
        (b"\xff", "it is not UTF-8"),
        (b"[" * 100_000, "it is not JSON"),
        (b"{", "it is not JSON"),
        (b'["\\ud800"]', "lone surrogate"),
        (b"[18446744073709551616]", "a number is too large"),
        (b"[-" + b"1" * 5000 + b"]", "a number is too large"),
    ):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=reason):
            read_json(path, DatasetError)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none", DatasetError)
    assert parse_yaml(f"{'1' * 40}x: [{2**64 - 1}, '{'1' * 40}']") == {"1" * 40 + "x": [2**64 - 1, "1" * 40]}
    with pytest.raises(ValueError, match="a number is too large"):
        parse_yaml("a: {b: [1, -" + "1" * 40 + "]}")
    with pytest.raises(DatasetError, match="NUL"):
        read_bytes("a\0b", DatasetError)


def test_the_current_budget_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[" + "{}," * 2_000_000 + "0]")
    with using_budget(Budget(1)), pytest.raises(BudgetError, match=r"needs at least \d+MB: .* for reading .*x\.json"):
        read_json(path, DatasetError, most=10_000_000)
    assert small_files.parsed_bytes("[{},{}]") == 3 * 7 + 60 * 4


def test_a_shard_that_is_listed_twice(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words of a text " * 100)
    prepare(tmp_path / "a.txt", tmp_path / "data", tokenizer="byte", val_fraction=0.0)
    manifest = json.loads((tmp_path / "data" / NAME).read_text())
    shards = manifest["splits"]["train"]["shards"]
    shards += [dict(shards[0])] * 1000
    (tmp_path / "data" / NAME).write_text(json.dumps(manifest))
    with pytest.raises(DatasetError, match=r"train/shard_00000\.bin is listed twice"):
        Manifest.read(tmp_path / "data")


class TestLiveReport:
    @pytest.fixture
    def port(self, tmp_path: Path) -> Any:
        write_run(tmp_path / "run")
        with PageServer([tmp_path / "run"]) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            yield server.port
            server.shutdown()
            thread.join()

    @staticmethod
    def page(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            parts = []
            while part := client.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)

    def test_a_request_has_an_end(self, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(b"GET / HTTP/1.1\r\n")
            header = b"X: " + b"x" * 60_000 + b"\r\n"
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                for _ in range(1000):
                    client.sendall(header)
            assert b"200 OK" in self.page(port)

    def test_few_clients_at_once(self, port: int) -> None:
        before = threading.active_count()
        clients = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(30)]
        try:
            for client in clients:
                client.sendall(b"GET / HTTP/1.1\r\n")
            assert b"200 OK" in self.page(port)
            assert threading.active_count() <= before + serve.MOST_CLIENTS
        finally:
            for client in clients:
                client.close()

    def test_one_who_asks_slowly_is_hung_up_on(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(serve, "IDLE_SECONDS", 0.1)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(b"GET / HT")
            assert client.recv(1) == b""
