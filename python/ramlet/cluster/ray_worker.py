"""What runs in a Ray worker: some parts of a stage, in its own process.

In the process, not in a child of it: a Ray worker stays for the next parts, with the tokenizer loaded, and what Ray
itself takes (about 90 MB) is resident there anyway, so it counts against the budget either way. What earlier parts left
in the process counts too: if that is too much for the next ones, the worker ends, and a new one runs them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ramlet import __version__, _native
from ramlet.cluster import Job
from ramlet.cluster.usage import Worker
from ramlet.errors import BudgetError, RamletError


def run(job: Job, stage: str, parts: list[int], version: str) -> dict[str, Any]:
    """A few numbers about the parts, or the error, by name: Ray would show it with a traceback."""
    node, node_id = here()
    if version != __version__:
        error = f"{node} has ramlet {__version__}, and the driver {version}: install the same version everywhere"
        return {"error": ("SettingsError", error), "node": node}
    with suppress(OSError):  # then only absolute paths can be read here
        os.chdir(job.cwd)
    module = import_module(job.module)
    _native.release_freed_memory()
    worker = Worker(Path(job.work), node, node_id)
    worker.begins(stage, parts)
    try:
        done: dict[str, int] = module.run_parts(job.folder, stage, parts, memory=job.memory, threads=job.threads)
    except RamletError as error:
        if isinstance(error, BudgetError) and worker.parts:
            worker.retires(stage, parts)
            os._exit(0)
        return {"error": (type(error).__name__, error.sentence), "node": node}
    worker.ends(len(parts), done["peak"])
    return {**done, "node": node}


def here() -> tuple[str, str]:
    """The node of this worker: its host's name, and Ray's id for it."""
    import ray

    return os.uname().nodename, ray.get_runtime_context().get_node_id()
