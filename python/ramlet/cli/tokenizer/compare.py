"""`ramlet tokenizer compare`: ramlet and HF tokenizers, which keeps all text in memory, in separate processes."""

from __future__ import annotations

import json as json_module
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from click.exceptions import Exit

from ramlet.cli.declared import Given, with_settings
from ramlet.cli.options import MEMORY, InputFlag, Inputs, Json, Memory, Processes, Quiet, print_json
from ramlet.cli.progress import Progress
from ramlet.errors import RamletError, SettingsError
from ramlet.inputs.settings import READING, ReadSettings
from ramlet.runtime.budget import format_bytes
from ramlet.runtime.meter import Meter
from ramlet.runtime.plurals import plural
from ramlet.runtime.progress import format_duration
from ramlet.settings.declared import argv, declared, options
from ramlet.tokenizer.settings import MERGES, VOCABULARY, TrainSettings

TICK_SECONDS = 0.5


@with_settings(
    *options(TrainSettings, "vocab_size", help="Vocabulary size, special tokens included: 32k; required."),
    *options(TrainSettings, "pattern", "min_frequency"),
    *options(ReadSettings),
    panels=(VOCABULARY, MERGES, READING, MEMORY),
)
def compare(
    inputs: Inputs,
    memory: Memory = "auto",
    threads: Processes = None,
    *,
    given: Given,
    input_flag: InputFlag = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train the same tokenizer with ramlet and with HF tokenizers; compare time, memory and merges.

    Each runs in its own process, HF tokenizers with all text in memory. The exit code is 1 if the merges differ.

      ramlet tokenizer compare corpus/ --vocab-size 8k --memory 512MB
    """
    from importlib.util import find_spec
    from tempfile import TemporaryDirectory

    from ramlet.runtime.threads import available_threads

    if find_spec("tokenizers") is None:
        raise SettingsError("HF tokenizers is not installed: pip install 'ramlet[hf]'")
    if "-" in inputs:
        raise SettingsError("standard input can be read only once: give files instead")
    settings = TrainSettings(**given)
    reading = {name: getattr(settings, name) for name in declared(ReadSettings)}
    threads = threads or available_threads()
    with TemporaryDirectory(prefix="ramlet-compare-") as folder:
        scratch = Path(folder)
        with Meter() as meter, Progress(meter, silent=quiet or json) as bar:
            on = f", {plural(threads, 'thread')}"
            command = _our_command(inputs, settings, memory, threads, scratch / "ours")
            ours = _run(command, {}, lambda seconds: bar.update(f"training with ramlet{on}", seconds, None, "seconds"))
            theirs = _run(
                _their_command(inputs, settings, reading, scratch),
                {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"},
                lambda seconds: bar.update(f"training with HF tokenizers{on}", seconds, None, "seconds"),
            )
        result = json_module.loads((scratch / "theirs.json").read_text())
        our_merges = json_module.loads((scratch / "ours" / "tokenizer.json").read_text())["model"]["merges"]
    same = our_merges == result["merges"]
    results = {
        "ramlet": ours,
        "hf": {**theirs, "call_seconds": result["call_seconds"], "version": result["version"]},
        "memory_saved": theirs["peak"] - ours["peak"],
        "times_as_fast": theirs["seconds"] / ours["seconds"],
        "merges": len(our_merges),
        "same_merges": same,
        "first_difference": None if same else _first_difference(our_merges, result["merges"]),
    }
    if json:
        print_json(results)
    else:
        _print_table(results, memory)
    if not same:
        raise Exit(1)


def _our_command(inputs: list[str], settings: Any, memory: str, threads: int, out: Path) -> list[str]:
    words = [sys.executable, "-m", "ramlet", "tokenizer", "train", "--quiet", "--out", str(out)]
    words += ["--memory", memory, "--threads", str(threads), *argv(TrainSettings, asdict(settings))]
    return [*words, "--", *inputs]


def _their_command(inputs: list[str], settings: Any, reading: dict[str, Any], scratch: Path) -> list[str]:
    chosen = {
        "inputs": inputs,
        "vocab_size": settings.vocab_size,
        "pattern": settings.pattern,
        "min_frequency": settings.min_frequency,
        "reading": reading,
        "scratch": str(scratch),
        "result": str(scratch / "theirs.json"),
    }
    (scratch / "settings.json").write_text(json_module.dumps(chosen))
    return [sys.executable, "-m", "ramlet.tokenizer.hf_training", str(scratch / "settings.json")]


def _run(command: list[str], environment: dict[str, str], waited: Callable[[float], None]) -> dict[str, Any]:
    """Seconds and peak RSS of a process, as reported by the kernel when it ends; `waited` gets the seconds so far."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    output = ""
    try:
        ended = False
        while not ended:
            waited(time.monotonic() - began)
            if select.select([process.stderr], [], [], TICK_SECONDS)[0]:
                output += (line := process.stderr.readline())
                ended = not line
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        last = output.strip().splitlines()[-1].removeprefix("error: ") if output.strip() else "no error message"
        raise RamletError(f"{command[2]} failed (exit code {process.returncode}): {last}")
    unit = 1 if sys.platform == "darwin" else 1024
    return {"seconds": round(time.monotonic() - began, 3), "peak": usage.ru_maxrss * unit}


def _first_difference(ours: list[str], theirs: list[str]) -> int:
    return next((at for at, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))


def _print_table(results: dict[str, Any], memory: str) -> None:
    rows = [
        (f"HF tokenizers {results['hf']['version']}, in memory", results["hf"]),
        (f"ramlet --memory {memory}", results["ramlet"]),
    ]
    width = max(len(name) for name, _ in rows)
    print(f"{'':<{width}}   {'time':>12}   {'peak memory':>12}")
    for name, run in rows:
        print(f"{name:<{width}}   {format_duration(run['seconds']):>12}   {format_bytes(run['peak']):>12}")
    saved = results["memory_saved"]
    part = abs(saved) / results["hf"]["peak"]
    print(
        f"ramlet is {results['times_as_fast']:.1f} times as fast and uses {format_bytes(abs(saved))} "
        f"({part:.0%}) {'less' if saved >= 0 else 'more'} memory"
    )
    if results["same_merges"]:
        print(f"both learned the same {plural(results['merges'], 'merge')}")
    else:
        print(f"the merges differ, starting at number {results['first_difference'] + 1:,}")
