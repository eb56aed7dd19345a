"""A Ray cluster of nodes on this machine, each with processes of its own, and drivers that use it.

with nodes(2) as cluster:
    driver = start_driver(cluster, "prepare", inputs, out)      a process, which may be killed
    cluster.kill_node(); cluster.add()
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MEMORY = 600_000_000
"""The budget of each worker, about 160 MB of which Ray and Python take."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_enable_metrics_collection": "false",
    "RAY_METRICS_EXPORT_INTERVAL_MS": "3600000",
    # On a busy machine nodes answer late, and are not dead.
    "RAY_gcs_server_request_timeout_seconds": "120",
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_timeout_ms": "20000",
}

DRIVER = """
import json, sys
from pathlib import Path
given = json.loads(sys.argv[1])
from ramlet import Budget, Meter
with Meter(Budget(given["memory"])) as meter:
    if given["command"] == "prepare":
        from ramlet.preparing.run import prepare_to
        from ramlet.preparing.settings import PrepareSettings
        prepare_to([given["inputs"]], Path(given["out"]), PrepareSettings(**given["settings"]), meter=meter, threads=1,
                   task_bytes=given["task_bytes"], cluster=given["cluster"])
    else:
        from ramlet.tokenizer.folder import train_to_folder
        from ramlet.tokenizer.settings import TrainSettings
        train_to_folder([given["inputs"]], given["out"], TrainSettings(**given["settings"]), meter=meter, threads=1,
                        task_bytes=given["task_bytes"], cluster=given["cluster"])
"""


class Nodes:
    """A head without workers, which is never killed, and nodes with one worker each."""

    def __init__(self, count: int, cpus: int = 1) -> None:
        os.environ.update(QUIET)
        from ray.cluster_utils import Cluster

        self._cpus = cpus
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80_000_000}
        self._cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.address = str(self._cluster.address)
        self.nodes: list[Any] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        memory = 8 * MEMORY
        given = {"num_cpus": self._cpus, "object_store_memory": 80_000_000, "memory": memory}
        node = _patiently(lambda: self._cluster.add_node(wait=False, **given))
        self.nodes.append(node)

    def kill(self, index: int = 0) -> None:
        """As if its power failed: nothing says goodbye."""
        self._cluster.remove_node(self.nodes.pop(index), allow_graceful=False)

    def driver(self, command: str, inputs: Path, out: Path, **more: Any) -> subprocess.Popen[str]:
        given = {
            "command": command,
            "inputs": str(inputs),
            "out": str(out),
            "memory": MEMORY,
            "settings": {},
            "task_bytes": None,
            "cluster": "ray",
            **more,
        }
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps(given)],
            env={**os.environ, **QUIET, "RAY_ADDRESS": self.address},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def shutdown(self) -> None:
        self._cluster.shutdown()


def _patiently(start: Callable[[], Any]) -> Any:
    """Ray gives a node 30 seconds to start, which a busy machine may need several times."""
    for _ in range(5):
        try:
            return start()
        except Exception as error:  # noqa: BLE001 - Ray raises no other class
            late = error
    raise late


@contextmanager
def nodes(count: int, cpus: int = 1) -> Iterator[Nodes]:
    cluster = Nodes(count, cpus)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def results(folder: Path) -> dict[str, bytes]:
    """Every file but the statistics, which have times and memory."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if name != "stats.json"}
