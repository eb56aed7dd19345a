"""The executor of a Ray cluster: Ray Core tasks, a few parts each, on whichever node has a free worker.

    with connected("ray"):                  "ray": the cluster that this machine belongs to; or ray://host:port
        executor = RayExecutor(job, ...)
        executor.run("scan", range(1000), report)

Nothing but names and numbers passes through Ray: data is in the shared folder. Only as many tasks are submitted at a
time as keep all workers busy, so the driver's memory and time per part do not grow with the number of parts. Tasks that
are lost with a node are submitted again; Ray itself repeats none, so that a worker that the system kills again and
again ends the run with a sentence and not with a loop.

The contract is `Executor` in __init__.py. `Run.executor` in preparing/run.py decides which executor a run has, and
`_counting` in tokenizer/folder.py that of counting; addresses of Ray clusters are checked by `check_address`.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ramlet import __version__, errors
from ramlet.cluster import RAY, Job, Report, Status, check_address, ray_worker
from ramlet.cluster.usage import noted
from ramlet.errors import BudgetError, RamletError, SettingsError, option
from ramlet.runtime.atomic_files import remove, replacing
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.plurals import plural

QUEUED = 2
"""Tasks for each worker: one that runs, and one that waits for it."""
BATCHES = 2000
"""With more parts than this many, and than 32 for each worker, tasks have several parts each."""
WAIT = 0.25
LOOK_SECONDS = 2.0
"""How often the nodes are counted again: they join and leave."""
CRASHES = 3
"""Of a worker with the same parts on a node that lives on; then the run ends."""
CHECK_SECONDS = 60.0
REACH_SECONDS = 10.0


@contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to the cluster; one that the process has already is used, and left open."""
    check_address(address)
    ray = _import_ray()
    if ray.is_initialized():
        yield
        return
    if address != RAY:
        _reach(address)
    try:
        ray.init(
            address="auto" if address == RAY else address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        start = "start one with `ray start --head`" if address == RAY else "check the address"
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise SettingsError(f"cannot connect to a Ray cluster at {address} ({reason}): {start}") from None
    try:
        with _without_last_words():
            yield
    finally:
        ray.shutdown()


@contextmanager
def _without_last_words() -> Iterator[None]:
    """Ray prints the logs of every node that dies to standard output, where results go, and has no setting for it."""
    worker = import_module("ray._private.worker")
    printed = getattr(worker, "print_to_stdstream", None)
    if printed is None:
        yield
        return
    setattr(worker, "print_to_stdstream", lambda *_, **__: None)  # noqa: B010
    try:
        yield
    finally:
        setattr(worker, "print_to_stdstream", printed)  # noqa: B010


def _import_ray() -> Any:
    # Ray would otherwise ask for permission, or start a dashboard of its own.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise SettingsError(
            f"{option('cluster')} needs Ray, which is not installed: pip install 'ramlet[ray]'"
        ) from None
    return ray


def _reach(address: str) -> None:
    """Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=REACH_SECONDS):
            return
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "it is not HOST:PORT" if isinstance(error, ValueError) else error
        raise SettingsError(f"cannot connect to a Ray cluster at {address} ({reason}): check the address") from None


@dataclass
class _Node:
    id: str
    name: str
    cpus: float
    memory: float

    def workers(self, job: Job) -> int:
        return int(min(self.cpus // job.threads, self.memory // job.memory))


@dataclass
class _Batch:
    parts: list[int]
    crashes: int = 0
    retired: int = 0
    """Workers that ended before they ran it, for a new one to do it."""
    gone: int = 0
    """Workers that were running it on nodes that are no longer there."""


@dataclass
class RayExecutor:
    job: Job
    placed: Callable[[Job], Job]
    """The job with its folders, once these are known."""
    seen: Callable[[], tuple[Path, list[tuple[str, int]]]]
    """A folder that every node must see, and paths and sizes of inputs."""
    _checked: bool = field(default=False, init=False)
    _looked: float = field(default=0.0, init=False)
    _nodes: list[_Node] = field(default_factory=list, init=False)
    _oom_kills: dict[str, int | None] = field(default_factory=dict, init=False)
    peak: int = field(default=0, init=False)

    def run(self, stage: str, parts: Sequence[int], report: Report) -> None:
        if not self._checked:
            self.job = self.placed(self.job)
            self._check_nodes()
        ray = _import_ray()
        task = ray.remote(
            num_cpus=self.job.threads,
            memory=self.job.memory,
            max_retries=0,
            retry_exceptions=False,
            scheduling_strategy="SPREAD",
        )(ray_worker.run)
        status = Status(stage, len(parts), peak=self.peak, budget=self.job.memory)
        began = time.monotonic()
        size = max(1, len(parts) // max(BATCHES, 32 * self._workers()))
        waiting = iter([_Batch(list(parts[at : at + size])) for at in range(0, len(parts), size)])
        again: list[_Batch] = []
        running: dict[Any, _Batch] = {}
        try:
            while True:
                while len(running) < QUEUED * max(1, self._workers()):
                    batch = again.pop() if again else next(waiting, None)
                    if batch is None:
                        break
                    running[task.remote(self.job, stage, batch.parts, __version__)] = batch
                if not running:
                    return
                ready, _ = ray.wait(list(running), num_returns=1, timeout=WAIT)
                for each in ready:
                    batch = running.pop(each)
                    found = self._result(each, stage, batch)
                    if found is None:
                        again.append(batch)
                        continue
                    status.done += len(batch.parts)
                    status.bytes += found["bytes"]
                    self.peak = status.peak = max(status.peak, found["peak"])
                status.seconds = time.monotonic() - began
                status.nodes = len(self._nodes)
                report(status)
        finally:
            for each in running:
                with suppress(Exception):
                    ray.cancel(each, force=True)

    def _result(self, each: Any, stage: str, batch: _Batch) -> dict[str, Any] | None:
        """What a worker returned; None if it was lost and its parts have to be run again."""
        ray = _import_ray()
        try:
            found: dict[str, Any] = ray.get(each)
        except ray.exceptions.RayTaskError as error:
            raise RamletError(f"a worker failed in {stage}: {error.cause!r}") from error
        except ray.exceptions.RayError as error:
            self._lost(error, stage, batch)
            return None
        if "error" in found:
            kind, sentence = found["error"]
            raised = getattr(errors, kind, RamletError)
            raise raised(f"on {found['node']}: {sentence}")
        return found

    def _lost(self, error: Exception, stage: str, batch: _Batch) -> None:
        """Ends the run if a worker with these parts was killed too often, on a node that lives on."""
        ray = _import_ray()
        self._look(now=True)
        own = [stage, batch.parts[0]]
        notes = list(noted(Path(self.job.work)))
        # Notes outlive their nodes: each counts once, or a node that died long ago would hide every later crash.
        living = {node.id: node for node in self._nodes}
        running = [each for each in notes if each.get("running") == own]
        here = [each for each in running if each["node_id"] in living]
        before, batch.gone = batch.gone, len(running) - len(here)
        if isinstance(error, (ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError)):
            return
        retired = sum(each.get("retired") == own for each in notes)
        if retired > batch.retired:
            batch.retired = retired
            return
        killed = isinstance(error, ray.exceptions.OutOfMemoryError)
        if batch.gone > before and not killed:
            return  # the node is gone, and Ray noticed the worker first
        batch.crashes += 1
        worker = here[-1] if here else None
        if not killed and worker is not None:
            with suppress(ray.exceptions.RayError, ray.exceptions.GetTimeoutError):  # or it dies now, and nobody knows
                [asked] = self._ask([living[worker["node_id"]]], _oom_kills)
                now = self._answer(asked, time.monotonic() + CHECK_SECONDS)
                killed = None not in (now, worker.get("oom_kills")) and now > worker["oom_kills"]
        if batch.crashes < CRASHES:
            return
        where = worker["node"] if worker else "a node"
        raise explain(killed, where, stage, self.job)

    # -- nodes

    def _workers(self) -> int:
        self._look()
        return sum(node.workers(self.job) for node in self._nodes)

    def _look(self, *, now: bool = False) -> None:
        ray = _import_ray()
        if not now and time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._nodes = [
            _Node(each["NodeID"], each["NodeManagerHostname"], of.get("CPU", 0.0), of.get("memory", 0.0))
            for each in ray.nodes()
            if each["Alive"]
            for of in (each["Resources"],)
        ]
        self._looked = time.monotonic()

    def _ask(self, nodes: Sequence[_Node], question: Callable[..., Any], *given: Any) -> list[Any]:
        """Puts a question to all of these nodes at once; `_answer` has what each answers."""
        ray = _import_ray()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = ray.remote(num_cpus=0, max_retries=0)(question)
        there = (NodeAffinitySchedulingStrategy(node.id, soft=False) for node in nodes)
        return [task.options(scheduling_strategy=strategy).remote(*given) for strategy in there]

    def _answer(self, asked: Any, until: float) -> Any:
        """Of one node; raises if there is none by that time."""
        return _import_ray().get(asked, timeout=max(0.0, until - time.monotonic()))

    def _check_nodes(self) -> None:
        """Names a node that cannot do the work, before any is done."""
        self._look(now=True)
        if not self.job.memory:
            shares = [
                node.memory // (node.cpus // self.job.threads) for node in self._nodes if node.cpus >= self.job.threads
            ]
            self.job = replace(self.job, memory=int(min(shares, default=1)))
        if not self._workers():
            most = max((node.memory for node in self._nodes), default=0)
            raise BudgetError(
                f"no node of the cluster has {plural(self.job.threads, 'CPU')} and {format_bytes(self.job.memory)} for "
                f"a worker, the largest has {format_bytes(most)}: give a smaller {option('memory')}",
                needed=self.job.memory,
            )
        work, inputs = self.seen()
        token = os.urandom(8).hex()
        shown = work / f"seen-{token}"
        with replacing(shown) as file:
            file.write(token)
        try:
            # All at once and with one deadline: a cluster of a thousand nodes is checked as soon as its slowest.
            nodes = [node for node in self._nodes if node.workers(self.job)]
            asked = self._ask(nodes, _probe(), os.path.abspath(shown), inputs)
            until = time.monotonic() + CHECK_SECONDS
            for node, each in zip(nodes, asked, strict=True):
                self._check(node, each, until, shown, token)
        finally:
            remove(shown)
        self._checked = True

    def _check(self, node: _Node, asked: Any, until: float, shown: Path, token: str) -> None:
        ray = _import_ray()
        try:
            version, content, missing = self._answer(asked, until)
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
            self._look(now=True)
            # It has left meanwhile, and Ray may list it for some seconds after it noticed.
            gone = isinstance(error, (ray.exceptions.NodeDiedError, ray.exceptions.TaskUnschedulableError))
            if gone or all(other.id != node.id for other in self._nodes):
                return
            raise SettingsError(f"node {node.name} does not answer ({type(error).__name__}): remove it") from None
        name = f"node {node.name} ({node.id[:8]})"
        if version != __version__:
            has = f"has ramlet {version}" if version else "has no ramlet"
            raise SettingsError(f"{name} {has}, and this is {__version__}: install the same version on every node")
        if content != token:
            raise SettingsError(
                f"{name} does not see {shown.parent.parent}: choose an {option('out')} on a disk that all nodes share"
            )
        if missing:
            raise SettingsError(f"{name} does not see the input {missing}, or sees another file there: share it")


def _probe() -> Callable[..., Any]:
    """A function that Ray sends as a whole: it also runs where there is no ramlet, or another one."""

    def probe(shown: str, inputs: list[tuple[str, int]]) -> tuple[str, str, str]:
        import importlib
        import os

        try:
            version = str(importlib.import_module("ramlet").__version__)
        except ImportError:
            version = ""
        try:
            with open(shown, encoding="utf-8") as file:
                content = file.read()
        except OSError:
            content = ""
        missing = ""
        for path, size in inputs:
            try:
                same = os.stat(path).st_size == size
            except OSError:
                same = False
            if not same:
                missing = path
                break
        return version, content, missing

    return probe


def _oom_kills() -> int | None:
    from ramlet.cluster.usage import oom_kills

    return oom_kills()


def explain(killed_for_memory: bool, node: str, stage: str, job: Job) -> RamletError:
    """Why a worker is gone, as far as is known."""
    if killed_for_memory:
        return BudgetError(
            f"a worker on {node} was killed by the system for memory in {stage}, {CRASHES} times: its budget is "
            f"{format_bytes(job.memory)}, so other processes there need more than is left; give a smaller "
            f"{option('memory')}, or Ray fewer CPUs on that node",
            needed=job.memory,
        )
    return RamletError(
        f"a worker on {node} ended unexpectedly in {stage}, {CRASHES} times: look into Ray's logs on that node, "
        "and run the same command again"
    )
