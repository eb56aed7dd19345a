"""A real Ray cluster on this machine: the bytes of one machine, whatever dies in the middle."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oracles_cluster import MEMORY, Nodes, nodes, results
from ramlet import Budget, BudgetError, Meter, RamletError, SettingsError
from ramlet.cli.progress import Progress, show_status
from ramlet.cluster import Job, Status, check_address, usage
from ramlet.preparing.run import prepare_to
from ramlet.preparing.settings import PrepareSettings
from ramlet.tokenizer.folder import train_to_folder
from ramlet.tokenizer.settings import TrainSettings

pytest.importorskip("ray", reason="ray is not installed")

PREPARE: dict[str, Any] = {"documents": "line", "near": 0.7, "tokens_per_shard": 4_000, "tokenizer": "byte"}
TRAIN: dict[str, Any] = {"vocab_size": 400, "documents": "line", "special_tokens": ["<|end|>"]}
TASK_BYTES = 6_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes(2) as started:
        yield started


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = random.Random(5)
    texts = [" ".join(f"word{chosen.randrange(40)}" for _ in range(12)) for _ in range(600)]
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("\n".join(texts))
    return path


def finished(cluster: Nodes, *given: Any, **more: Any) -> None:
    driver = cluster.driver(*given, task_bytes=TASK_BYTES, **more)
    output, _ = driver.communicate(timeout=600)
    assert (driver.returncode, output) == (0, "")


def test_a_dataset_through_a_killed_node_and_a_killed_driver(cluster: Nodes, lines: Path, tmp_path: Path) -> None:
    with Meter(Budget.parse("8GB")) as meter:
        prepare_to([lines], tmp_path / "alone", PrepareSettings(**PREPARE), meter=meter, task_bytes=TASK_BYTES)
    out = tmp_path / "out"
    driver = cluster.driver("prepare", lines, out, settings=PREPARE, task_bytes=TASK_BYTES)
    # Killed while it works, or shortly before it begins: the test does not depend on which.
    until = time.monotonic() + 300
    while not list(out.glob(".work/scan/*.json")) and driver.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    cluster.kill()
    cluster.add()
    time.sleep(0.5)
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    finished(cluster, "prepare", lines, out, settings=PREPARE)
    assert results(out) == results(tmp_path / "alone")
    used = json.loads((out / "stats.json").read_text())["nodes"]
    assert used
    assert 0 < max(node["peak"] for node in used) <= MEMORY


def test_the_same_tokenizer(cluster: Nodes, lines: Path, tmp_path: Path) -> None:
    with Meter(Budget.parse("8GB")) as meter:
        train_to_folder([lines], tmp_path / "alone", TrainSettings(**TRAIN), meter=meter)
    finished(cluster, "tokenizer", lines, tmp_path / "out", settings=TRAIN)
    assert results(tmp_path / "out") == results(tmp_path / "alone")
    alone, spread = (json.loads((tmp_path / name / "stats.json").read_text()) for name in ("alone", "out"))
    assert {key: alone[key] for key in ("read", "pieces", "distinct_pieces")} == {
        key: spread[key] for key in ("read", "pieces", "distinct_pieces")
    }
    assert sum(node["parts"] for node in spread["nodes"]) > 64


@pytest.mark.parametrize(
    ("address", "named"), [("spark", "give ray for"), ("ray://127.0.0.1:1", "cannot connect"), ("ray://x", "HOST:PORT")]
)
def test_a_cluster_that_cannot_be_reached(lines: Path, tmp_path: Path, address: str, named: str) -> None:
    with Meter(Budget.parse("8GB")) as meter, pytest.raises(SettingsError, match=named):
        prepare_to([lines], tmp_path / "out", PrepareSettings(), meter=meter, cluster=address)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (("0.0.9", "", ""), r"has ramlet 0\.0\.9, and this is"),
        (("", "", ""), "has no ramlet"),
        (("same", "", ""), "does not see"),
        (("same", "token", "/data/a.txt"), r"does not see the input /data/a\.txt"),
    ],
)
def test_a_node_that_cannot_do_the_work(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[str, str, str], named: str
) -> None:
    from ramlet import __version__
    from ramlet.cluster.ray_executor import RayExecutor, _Node

    job = Job("m", "/out", 10, 1)
    executor = RayExecutor(job, lambda job: job, lambda: (Path("/out/.work"), []))
    version, content, missing = answer
    said = (__version__ if version == "same" else version, content, missing)
    monkeypatch.setattr(executor, "_answer", lambda *_: said)
    with pytest.raises(SettingsError, match=f"node seven .*{named}"):
        executor._check(_Node("abcdefgh", "seven", 1, 1), None, 0, Path("/out/.work/seen"), "token")


def test_a_node_that_dies_while_it_is_asked_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray may list it for some seconds more."""
    ray = pytest.importorskip("ray")
    from ramlet.cluster.ray_executor import RayExecutor, _Node

    executor = RayExecutor(Job("m", "/out", 10, 1), lambda job: job, lambda: (Path("/out/.work"), []))
    node = _Node("abcdefgh", "seven", 1, 1)
    monkeypatch.setattr(executor, "_look", lambda **_: None)
    executor._nodes = [node]

    def asked(error: Exception) -> None:
        def die(*_: object) -> None:
            raise error

        monkeypatch.setattr(executor, "_answer", die)
        executor._check(node, None, 0, Path("/out/.work/seen"), "token")

    asked(ray.exceptions.NodeDiedError("gone"))
    with pytest.raises(SettingsError, match="node seven does not answer"):
        asked(ray.exceptions.GetTimeoutError("silence"))


def test_the_probe_says_what_a_node_sees(tmp_path: Path) -> None:
    from ramlet import __version__
    from ramlet.cluster.ray_executor import _probe

    shown, text = tmp_path / "seen", tmp_path / "text"
    shown.write_text("token")
    text.write_text("12345")
    assert _probe()(str(shown), [(str(text), 5)]) == (__version__, "token", "")
    assert _probe()(str(tmp_path / "not"), [(str(text), 4)]) == (__version__, "", str(text))


def test_a_worker_killed_for_memory_is_named_as_that() -> None:
    from ramlet.cluster.ray_executor import explain

    job = Job("m", "/out", 2_000_000_000, 1)
    named = explain(True, "seven", "scan", job)
    assert isinstance(named, BudgetError)
    assert "seven was killed by the system for memory in scan" in str(named)
    assert "memory" not in str(explain(False, "seven", "scan", job))
    assert isinstance(explain(False, "seven", "scan", job), RamletError)


def test_kills_of_the_system_are_counted(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("pgfault 12\noom_kill 3\n")
    assert usage.oom_kills(str(tmp_path)) == 3
    assert usage.oom_kills(str(tmp_path / "none")) is None


def test_a_worker_that_retires_is_no_crash(tmp_path: Path) -> None:
    """What earlier parts left in a process may be too much: it ends, any number of times, and that is not counted."""
    from ramlet.cluster.ray_executor import CRASHES, RayExecutor, _Batch

    ray = pytest.importorskip("ray")
    job = Job("m", "/out", 10, 1, work=str(tmp_path))
    executor = RayExecutor(job, lambda job: job, lambda: (tmp_path, []))
    executor._look = lambda **_: None  # type: ignore[method-assign]
    batch, lost = _Batch([7]), ray.exceptions.WorkerCrashedError()
    for number in range(2 * CRASHES):
        usage.Worker(tmp_path, f"node{number}").retires("scan", [7])
        executor._lost(lost, "scan", batch)
    with pytest.raises(RamletError, match="ended unexpectedly in scan"):
        for _ in range(CRASHES):
            executor._lost(lost, "scan", batch)


def test_a_node_that_is_gone_hides_no_crash(tmp_path: Path) -> None:
    """Its note stays: a part that kills its worker on other nodes ends the run all the same."""
    from ramlet.cluster.ray_executor import CRASHES, RayExecutor, _Batch, _Node

    ray = pytest.importorskip("ray")
    executor = RayExecutor(Job("m", "/out", 10, 1, work=str(tmp_path)), lambda job: job, lambda: (tmp_path, []))
    executor._look = lambda **_: None  # type: ignore[method-assign]
    executor._ask = lambda nodes, *_: [None for _ in nodes]  # type: ignore[method-assign]
    executor._answer = lambda *_: None  # type: ignore[method-assign]
    executor._nodes = [_Node("living", "two", 1, 1)]
    batch, lost = _Batch([7]), ray.exceptions.WorkerCrashedError()
    for number in range(2 * CRASHES):  # nodes that leave are no crashes, however many
        usage.Worker(tmp_path, f"a{number}", f"dead{number}").begins("scan", [7])
        executor._lost(lost, "scan", batch)
    assert batch.crashes == 0
    usage.Worker(tmp_path, "two", "living").begins("scan", [7])
    with pytest.raises(RamletError, match="a worker on two ended unexpectedly in scan"):
        for _ in range(CRASHES):
            executor._lost(lost, "scan", batch)


def test_a_worker_that_dies_before_its_note_is_a_crash(tmp_path: Path) -> None:
    from ramlet.cluster.ray_executor import CRASHES, RayExecutor, _Batch

    ray = pytest.importorskip("ray")
    executor = RayExecutor(Job("m", "/out", 10, 1, work=str(tmp_path)), lambda job: job, lambda: (tmp_path, []))
    executor._look = lambda **_: None  # type: ignore[method-assign]
    usage.Worker(tmp_path, "one", "dead").begins("scan", [7])
    batch = _Batch([7])
    executor._lost(ray.exceptions.NodeDiedError("gone"), "scan", batch)
    with pytest.raises(RamletError, match="a worker on a node ended unexpectedly in scan"):
        for _ in range(CRASHES):
            executor._lost(ray.exceptions.WorkerCrashedError(), "scan", batch)
    usage.Worker(tmp_path, "two", "dead too").begins("scan", [7])
    with pytest.raises(BudgetError, match="killed by the system for memory in scan"):
        executor._lost(ray.exceptions.OutOfMemoryError("too much"), "scan", batch)


def test_all_nodes_are_asked_before_any_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ramlet import __version__
    from ramlet.cluster import ray_executor
    from ramlet.cluster.ray_executor import RayExecutor, _Node

    executor = RayExecutor(Job("m", "/out", 1, 1), lambda job: job, lambda: (tmp_path, []))
    executor._nodes = [_Node(name, name, cpus, 1) for name, cpus in (("a", 1), ("b", 1), ("head", 0))]
    monkeypatch.setattr(executor, "_look", lambda **_: None)
    monkeypatch.setattr(ray_executor.os, "urandom", lambda count: bytes(count))
    happened: list[str] = []

    def ask(nodes: list[_Node], *_: object) -> list[str]:
        happened.extend(f"asked {node.name}" for node in nodes)
        return [node.name for node in nodes]

    def answer(asked: str, until: float) -> tuple[str, str, str]:
        happened.append(f"{asked} answered")
        return __version__, bytes(8).hex(), ""

    monkeypatch.setattr(executor, "_ask", ask)
    monkeypatch.setattr(executor, "_answer", answer)
    executor._check_nodes()
    assert happened == ["asked a", "asked b", "a answered", "b answered"]


def test_usage_by_node(tmp_path: Path) -> None:
    for node, peak in (("a", 5), ("b", 7)):
        worker = usage.Worker(tmp_path, node)
        for _ in range(2):
            worker.begins("scan", [4])
            worker.ends(3, peak)
    assert [dict(each) for each in usage.by_node(tmp_path)] == [
        {"node": "a", "workers": 1, "parts": 6, "peak": 5},
        {"node": "b", "workers": 1, "parts": 6, "peak": 7},
    ]


def test_one_line_for_the_whole_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    class Terminal:
        text = ""

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return True

    shown: Any = Terminal()
    status = Status("scan", 120, done=37, bytes=3_000_000_000, seconds=10, nodes=4, peak=512_000_000)
    status.budget = 1_000_000_000
    show_status(Progress(stream=shown), status)
    for expected in ("scan", "37 of 120 parts", "300 MB/s", "4 nodes", "memory at most 512 MB of 1.00 GB"):
        assert expected in shown.text


def test_addresses() -> None:
    assert check_address("ray://host:10001") == "ray://host:10001"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
    with pytest.raises(SettingsError):
        check_address("")
