"""Random runs of `ramlet train` with random budgets: none may exceed its budget, and those that cannot fit are refused.

    python benchmarks/budgets.py                          # CPU: 200 runs, peak RSS of the whole process tree
    python benchmarks/budgets.py --device cuda --jobs 6   # GPU: the memory that torch's allocator reserved

Each run is the real command, with a random model, sequence length, batch size, options and budget (by --seed), for a
few steps with evaluation and checkpoints. A refused run must say how much it needs, and must not have started training.
Also compares predicted and measured peak memory of the runs that were not refused.
Prints a Markdown table of the runs nearest to their budgets and the checks; saves everything, dated, in
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from bpe_train import HERE, Check, check, print_checks
from corpora import DATA
from measure import CommandFailed, Measurement, machine, markdown_table, measure
from ramlet.engines import OPTIMIZERS
from ramlet.errors import SettingsError
from ramlet.model.sizing import shape_for
from ramlet.settings.declared import argv
from ramlet.training.settings import RunSettings
from train import SETUPS, Setup, _gpu, synthetic

VOCABULARIES = (256, 4096, 16384)
STEPS = 3
WITHIN = {"cpu": 0.04, "cuda": 0.01}
"""How close predictions must be."""
UNDER_LOAD = 0.05
LARGEST_FLOPS = {"cpu": 4e11, "cuda": 4e14}


def drawn(rng: random.Random, device: str) -> dict[str, Any]:
    """One configuration that can be trained for a few steps in reasonable time."""
    while True:
        vocab = rng.choice(VOCABULARIES if device == "cpu" else (256, 4096, 16384, 50257))
        low, high = (5e4, 2e7) if device == "cpu" else (1e6, 4e8)
        params = int(low * (high / low) ** rng.random())
        seq_len = rng.choice((32, 64, 128, 256, 512) if device == "cpu" else (128, 256, 512, 1024, 2048))
        sequences = rng.choice((1, 2, 3, 4, 8, 16, 32))
        if params < 40 * vocab or 6 * params * seq_len * sequences * STEPS > LARGEST_FLOPS[device]:
            continue
        low, high = (2.5e8, 1.5e9) if device == "cpu" else (4e8, 2e10)
        tied = rng.choice((True, True, False))
        groups = rng.choice((1, 1, 2))
        try:
            shape_for(params, vocab_size=vocab, context=seq_len, tied=tied, kv_groups=groups)
        except SettingsError:
            continue  # too few for this vocabulary
        return {
            "vocab": vocab,
            "params": params,
            "seq_len": seq_len,
            "batch_size": sequences,
            "precision": rng.choice(("auto", "bf16", "fp32")),
            "optimizer": rng.choice(("auto", *OPTIMIZERS)),
            "recompute": rng.choice((None, None, True)),
            "kv_groups": groups,
            "tied": tied,
            "qk_norm": rng.choice((True, False)),
            **({"dropout": rng.choice((0.0, 0.0, 0.1))} if hasattr(RunSettings(), "dropout") else {}),
            "budget": int(low * (high / low) ** rng.random() / 1e6) * 1_000_000,
        }


def run_once(number: int, chosen: dict[str, Any], device: str, folder: Path) -> dict[str, Any]:
    out = folder / f"run-{number}"
    settings = {name: value for name, value in chosen.items() if name not in ("vocab", "budget")}
    settings |= {"max_steps": STEPS, "eval_every": 2, "eval_tokens": 1024, "log_every": 1, "device": device}
    command = [
        *(sys.executable, "-m", "ramlet", "train", "--data", str(DATA / f"train-{chosen['vocab']}" / "ids.npy")),
        *("--out", str(out), "--memory", str(chosen["budget"]), "--threads", "1", "--quiet"),
        *argv(RunSettings, settings),
    ]
    result: dict[str, Any] = {**chosen, "number": number, "refused": False, "error": ""}
    try:
        return result | _measured(measure(command), out, device)
    except CommandFailed as failure:
        said = str(failure).strip().splitlines()[-1]
        result["refused"] = bool(re.search(r"needs at least \d+MB", said)) and not (out / "metrics.jsonl").exists()
        result["error"] = said[:300]
        return result
    finally:
        shutil.rmtree(out, ignore_errors=True)  # 200 runs' checkpoints would fill a small disk


def _measured(measurement: Measurement, out: Path, device: str) -> dict[str, Any]:
    memory = json.loads((out / "stats.json").read_text())["memory"]
    plan = yaml.safe_load((out / "settings.yaml").read_text())["plan"]
    return {
        "predicted": memory["predicted"],
        "probed": plan["measured"],
        "choice": plan["choice"],
        "peak": measurement.peak_rss if device == "cpu" else memory["device_peak"],
        "seconds": round(measurement.seconds, 1),
    }


# Also reads torch's largest library: how it is cached decides how many of its pages become resident on access.
BUSY = """
import importlib.util, os, pathlib
parent = os.getppid()
library = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib" / "libtorch_cpu.so"
while os.getppid() == parent:
    sum(number * number for number in range(3_000_000))
    with open(library, "rb") as file:
        while file.read(1 << 22):
            pass
"""


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keeps the cores and the page cache busy."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def make_ids() -> None:
    """The ids to train on, once for every vocabulary."""
    for vocab in {*VOCABULARIES, 50257}:
        if not (DATA / f"train-{vocab}" / "ids.npy").exists():
            synthetic(Setup(**{**vars(SETUPS["cpu"]), "vocab": vocab}), DATA / f"train-{vocab}")


def judged(results: list[dict[str, Any]], device: str, within: float | None = None) -> tuple[str, list[Check]]:
    """The table of the runs nearest to their budgets, and the checks."""
    within = within or WITHIN[device]
    kept = [result for result in results if "peak" in result]
    refused = [result for result in results if result["refused"]]
    failed = [result for result in results if "peak" not in result and not result["refused"]]
    over = [result for result in kept if result["peak"] > result["budget"]]
    kept.sort(key=lambda result: result["peak"] / result["budget"], reverse=True)
    rows = [
        [
            *(str(result[name]) for name in ("params", "vocab", "seq_len", "batch_size", "optimizer", "precision")),
            *(f"{result[name] / 1e6:,.0f}" for name in ("budget", "peak", "predicted")),
        ]
        for result in kept[:12]
    ]
    header = ["params", "vocab", "seq_len", "batch", "optimizer", "precision", "budget MB", "peak MB", "predicted MB"]
    table = "\n".join([markdown_table(header, rows), *(f"failed: {result}" for result in failed[:5])])
    errors = sorted(abs(result["predicted"] / result["peak"] - 1) for result in kept)
    good = sum(error <= within for error in errors)
    worst = f"{errors[-1]:.1%}" if errors else "-"
    checks = [
        check("runs over their budget", f"{len(over)} of {len(kept)} ({len(refused)} refused)", "0", not over),
        check("runs that failed for another reason", str(len(failed)), "0", not failed),
        check(
            f"predictions within {within:.0%}", f"{good} of {len(errors)}, worst {worst}", "all", good == len(errors)
        ),
    ]
    return table, checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    parser.add_argument("--load", type=int, default=0, help="background processes that compute and read files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-results", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    make_ids()
    rng = random.Random(given.seed)
    configurations = [drawn(rng, given.device) for _ in range(given.runs)]
    with (
        tempfile.TemporaryDirectory(prefix="ramlet-budgets-") as folder,
        ThreadPoolExecutor(given.jobs) as pool,
        load(given.load),
    ):
        results = list(
            pool.map(lambda pair: run_once(pair[0], pair[1], given.device, Path(folder)), enumerate(configurations))
        )
    table, checks = judged(results, given.device, UNDER_LOAD if given.load else WITHIN[given.device])
    print(table)
    print_checks(checks)
    if not given.no_results:
        target = given.out or HERE / "results" / f"{datetime.date.today()}-budgets-{given.device}.json"
        setting = {"machine": machine() | _gpu(given.device), "seed": given.seed, "load": given.load}
        report = {**setting, "runs": results, "checks": checks}
        target.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(each["met"] for each in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
