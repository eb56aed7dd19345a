"""`ramlet.fit` on random modules and budgets: none over, none refused that fits within 10%, as fast as by hand.

    python benchmarks/fit.py memory --runs 60                      CPU: resident memory, sampled from outside
    python benchmarks/fit.py memory --runs 30 --device cuda        what torch's allocator reserved
    python benchmarks/fit.py speed --runs 12                       the same loop by hand, at the same micro-batch

Modules: nn.TransformerEncoder, LSTM, transformers' GPT-2, Llama and Mamba, and an MLP; optimizers, batches and budgets
at random (fit_worker.py). A refused run is repeated with the budget that the error names: it must be accepted, stay
within it, and not need so little that the first budget was enough with a tenth to spare. Each run is a process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bpe_train import HERE, Check, check, print_checks
from measure import machine, resident

WORKER = HERE / "fit_worker.py"
INTERVAL = 0.003
CLOSE = 1.10
AMPLE = {"cpu": 8_000_000_000, "cuda": 40_000_000_000}


def run(number: int, *, device: str, out: Path, threads: int, **options: Any) -> dict[str, Any]:
    """One worker; its lines in one dict, with the peak since it began."""
    command = [
        sys.executable,
        str(WORKER),
        str(number),
        "--device",
        device,
        "--out",
        str(out),
        "--threads",
        str(threads),
    ]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        command += [flag] if value is True else [] if value in (None, False) else [flag, str(value)]
    found: dict[str, Any] = {"number": number}
    highest = 0
    began = threading.Event()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def watch() -> None:
        nonlocal highest
        while process.poll() is None:
            if began.is_set():
                highest = max(highest, resident(process.pid)[0])
            time.sleep(INTERVAL)

    watcher = threading.Thread(target=watch)
    watcher.start()
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read() if process.stderr else ""))
    reader.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            found.update(json.loads(line))
            if "end" in found:
                began.clear()
            elif "begin" in found:
                began.set()
    process.wait()
    watcher.join()
    reader.join()
    if process.returncode:
        found["failed"] = errors[0].strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
    found["outside"] = found.get("device_peak", 0) if device == "cuda" else max(highest, found.get("peak", 0))
    return found


def memory_bar(arguments: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], list[Check]]:
    rows: list[dict[str, Any]] = []
    for number in range(arguments.first, arguments.first + arguments.runs):
        out = folder / f"run{number}"
        row = run(number, device=arguments.device, out=out, threads=arguments.threads)
        row["budget"] = row.get("begin")
        if row.get("refused") and row.get("needed"):
            shutil.rmtree(out, ignore_errors=True)
            again = {"out": out, "threads": arguments.threads, "memory": row["needed"]}
            row["again"] = run(number, device=arguments.device, **again)
        shutil.rmtree(out, ignore_errors=True)
        rows.append(row)
        print(_line(row), flush=True)
    tries = [(row, row["budget"]) for row in rows if row["budget"]]
    tries += [(row["again"], row["needed"]) for row in rows if "again" in row]
    failed = [row for row in rows if "failed" in row or "failed" in row.get("again", {})]
    # A module may be on the GPU already, with more than its budget: then it is refused.
    over = [row for row, budget in tries if row["outside"] > max(budget, "refused" in row and row["resident"])]
    refused = [row for row in rows if "refused" in row]
    again = [row for row in refused if "predicted" not in row.get("again", {})]
    fits = [row for row in refused if row not in again and row["again"]["outside"] * CLOSE <= row["budget"]]
    off = [abs(row["predicted"] - row["outside"]) / row["outside"] for row, _ in tries if "predicted" in row]
    print(f"\n{len(rows)} runs, {len(refused)} refused; predictions off by {max(off, default=0):.1%} at most")
    return rows, [
        check("runs that failed", len(failed), "0", not failed),
        check("runs over their budget", len(over), "0", not over),
        check("refused with the budget that the error named", len(again), "0", not again),
        check("refused though they fit within 10%", len(fits), "0", not fits),
    ]


def speed_bar(arguments: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], list[Check]]:
    """With ample memory, AdamW and equal micro-batches; the best of the repeats of each, taken in turn."""
    rows: list[dict[str, Any]] = []
    for number in range(arguments.first, arguments.first + arguments.runs):
        common: dict[str, Any] = {
            "device": arguments.device,
            "threads": arguments.threads,
            "steps": arguments.steps,
            "out": folder / f"run{number}",
        }
        ours, theirs = [], []
        row: dict[str, Any] = {}
        for _ in range(arguments.repeats):
            shutil.rmtree(common["out"], ignore_errors=True)
            row = run(number, memory=AMPLE[arguments.device], optimizer="adamw", **common)
            if "seconds" not in row:
                break
            ours.append(row["seconds"])
            theirs.append(run(number, hand=True, micro_batch=row["micro_batch"], **common)["seconds"])
        shutil.rmtree(common["out"], ignore_errors=True)
        if not theirs:
            rows.append({**row, "failed": row.get("failed", row.get("refused"))})
            print(f"{number:>3} {rows[-1]['failed']}", flush=True)
            continue
        rows.append({**row, "ours": min(ours), "by_hand": min(theirs), "ratio": min(theirs) / min(ours)})
        print(f"{number:>3} {min(ours):8.4f} s, by hand {min(theirs):8.4f} s, {rows[-1]['ratio']:.3f}x", flush=True)
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    mean = statistics.geometric_mean(ratios) if ratios else 0.0
    return rows, [
        check("speed of the same loop by hand, geometric mean", round(mean, 3), "at least 0.95", mean >= 0.95),
        check("slowest", round(min(ratios, default=0.0), 3), "for information", True),
    ]


def _line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['number']:>3} FAILED {row['failed']}"
    budget, weights = row["budget"] / 1e6, row["weights"] / 1e6
    text = f"{row['number']:>3} budget {budget:7.0f} MB, weights {weights:6.1f} MB, "
    if "refused" in row:
        again = row.get("again", {})
        then = f"REFUSED ({again['refused']})" if "refused" in again else f"{again.get('outside', 0) / 1e6:.0f} MB"
        return text + f"refused, needs {(row['needed'] or 0) / 1e6:.0f} MB; then {then}"
    how = f"micro-batch {row['micro_batch']}{', checkpointing' * row['recompute']}, {row['optimizer']}"
    over = " OVER" if row["outside"] > row["budget"] else ""
    return text + f"peak {row['outside'] / 1e6:7.0f} MB ({row['predicted'] / 1e6:.0f} predicted), {how}{over}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bar", choices=("memory", "speed"))
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="of a speed run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bar = memory_bar if arguments.bar == "memory" else speed_bar
        rows, checks = bar(arguments, Path(folder))
    print()
    print_checks(checks)
    if not arguments.no_save:
        name = f"{datetime.date.today()}-fit-{arguments.bar}-{arguments.device}.json"
        values = {"machine": machine(), "runs": rows, "checks": checks}
        (HERE / "results" / name).write_text(json.dumps(values, indent=1) + "\n")
    sys.exit(0 if all(one["met"] for one in checks) else 1)


if __name__ == "__main__":
    main()
