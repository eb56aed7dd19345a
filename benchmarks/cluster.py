"""A Ray cluster of nodes on this machine: the same bytes through kills, and what Ray costs.

    python benchmarks/cluster.py kills --nodes 4 --node-kills 30 --driver-kills 10
    python benchmarks/cluster.py overhead --megabytes 1500 --rounds 3
    python benchmarks/cluster.py parts --parts 10000

kills     Datasets (near-duplicates, line dedup, packed, characters) and tokenizers are made again and again on a
          cluster of nodes that are processes of their own. Nodes are killed with SIGKILL and new ones join, drivers are
          killed and the same command is run again, at random moments, until there were that many kills of both. Every
          file but stats.json must be that of one machine, and no worker may have exceeded its budget.
overhead  One node with two workers of one thread against one process with two threads, in turns. The start of Ray and
          of its workers is not counted: a small run with the same cluster comes first.
parts     The driver's time for each of many parts that do nothing: CPU of the driver, and time in all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from measure import markdown_table, median  # noqa: E402
from oracles_cluster import DRIVER, MEMORY, Nodes, nodes, results  # noqa: E402

CASES: dict[str, dict[str, Any]] = {
    "near-duplicates": {"command": "prepare", "settings": {"near": 0.8, "tokens_per_shard": 20_000}},
    "lines": {"command": "prepare", "settings": {"dedup": "line", "tokenizer": "byte", "tokens_per_shard": 100_000}},
    "packed": {"command": "prepare", "settings": {"pack": 128, "tokens_per_shard": 20_000, "tokenizer": "byte"}},
    "characters": {"command": "prepare", "settings": {"tokenizer": "char", "dedup": "none"}},
    "tokenizer": {"command": "tokenizer", "settings": {"vocab_size": 2_000, "special_tokens": ["<|end|>"]}},
}
TASK_BYTES = 24_000


def write_text(path: Path, size: int, seed: int = 3) -> None:
    """Documents, a fifth of them copies of an earlier one, exact or with some words changed."""
    chosen = random.Random(seed)
    words = ["".join(chosen.choices("abcdefghijklmnop", k=chosen.randrange(2, 9))) for _ in range(5_000)]
    recent: list[list[str]] = []
    written = 0
    with path.open("w") as file:
        while written < size:
            if recent and chosen.random() < 0.2:
                document = list(chosen.choice(recent))
                for _ in range(chosen.randrange(6)):
                    document[chosen.randrange(len(document))] = chosen.choice(words)
            else:
                document = chosen.choices(words, k=chosen.randrange(20, 200))
            recent = [*recent[-200:], document]
            written += file.write(json.dumps({"text": " ".join(document)}) + "\n")


def run_alone(
    case: dict[str, Any], inputs: Path, out: Path, threads: int = 2, task_bytes: int | None = TASK_BYTES
) -> float:
    import subprocess

    given = {
        **case,
        "inputs": str(inputs),
        "out": str(out),
        "memory": MEMORY,
        "task_bytes": task_bytes,
        "cluster": None,
    }
    program = DRIVER.replace("threads=1", f"threads={threads}")
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", program, json.dumps(given)], check=True)
    return time.monotonic() - began


def kills(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    draw = random.Random(options.seed)
    inputs = folder / "text.jsonl"
    write_text(inputs, options.kilobytes * 1000)
    alone = {}
    for name, case in CASES.items():
        run_alone(case, inputs, folder / "alone" / name)
        alone[name] = results(folder / "alone" / name)
    done = {"node kills": 0, "driver kills": 0, "rounds": 0, "different": [], "failed": [], "peak": 0}
    with nodes(options.nodes) as cluster:
        names = list(CASES)
        while done["node kills"] < options.node_kills or done["driver kills"] < options.driver_kills:
            name = names[done["rounds"] % len(names)]
            out = folder / "out"
            _round(cluster, name, inputs, out, options, draw, done)
            if out.exists() and results(out) != alone[name]:
                done["different"].append(name)
            done["rounds"] += 1
            shutil.rmtree(out, ignore_errors=True)
            print(json.dumps(done), flush=True)
    return done


def _round(
    cluster: Nodes, name: str, inputs: Path, out: Path, options: argparse.Namespace, draw: random.Random, done: Any
) -> None:
    """One result, through kills."""
    case, kills_here = CASES[name], 0
    while True:
        driver = cluster.driver(
            case["command"],
            inputs,
            out,
            settings=case["settings"],
            task_bytes=TASK_BYTES,
            memory=options.budget * 1_000_000,
        )
        next_kill = time.monotonic() + draw.uniform(*options.every)
        while driver.poll() is None:
            time.sleep(0.05)
            if time.monotonic() < next_kill or kills_here >= options.kills_a_round:
                continue
            next_kill = time.monotonic() + draw.uniform(*options.every)
            if not (out / ".work").exists():
                continue
            kills_here += 1
            left = options.node_kills - done["node kills"], options.driver_kills - done["driver kills"]
            if left[1] > 0 and draw.random() < left[1] / max(1, sum(max(0, each) for each in left)):
                os.killpg(driver.pid, signal.SIGKILL)
                done["driver kills"] += 1
                break
            if left[0] > 0:
                cluster.kill(draw.randrange(len(cluster.nodes)))
                cluster.add()
                done["node kills"] += 1
        output, _ = driver.communicate()
        if driver.returncode == 0:
            break
        if driver.returncode != -signal.SIGKILL:
            done["failed"].append(output[-500:])
            if len(done["failed"]) > 3:
                raise SystemExit(f"failed again and again: {output}")
    for node in json.loads((out / "stats.json").read_text()).get("nodes", ()):
        done["peak"] = max(done["peak"], node["peak"])


def overhead(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    inputs, small = folder / "text.jsonl", folder / "small.jsonl"
    write_text(inputs, options.megabytes * 1_000_000)
    write_text(small, 200_000)
    case = {"command": "prepare", "settings": {}}
    times: dict[str, list[float]] = {"two threads": [], "two Ray workers": []}
    with nodes(1, cpus=2) as cluster:
        for _ in range(options.rounds):
            times["two threads"].append(run_alone(case, inputs, folder / "alone", task_bytes=None))
            for text in (small, inputs):
                began = time.monotonic()
                driver = cluster.driver("prepare", text, folder / "out")
                output, _ = driver.communicate()
                if driver.returncode:
                    raise SystemExit(output)
                seconds = time.monotonic() - began
                if text == small:
                    start = seconds
                    shutil.rmtree(folder / "out")
            times["two Ray workers"].append(seconds - start)
            same = results(folder / "out") == results(folder / "alone")
            for name in ("out", "alone"):
                shutil.rmtree(folder / name)
            print(json.dumps({**times, "same": same}), flush=True)
    both = {name: median(each) for name, each in times.items()}
    return {**both, "ratio": both["two Ray workers"] / both["two threads"], "same": same}


def parts(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from ramlet.cluster import Job
    from ramlet.cluster.ray_executor import RayExecutor, connected

    # Its workers import `cluster_nothing.py`.
    os.environ["PYTHONPATH"] = f"{HERE}:{os.environ.get('PYTHONPATH', '')}"
    with nodes(1, cpus=2) as cluster:
        os.environ["RAY_ADDRESS"] = cluster.address
        job = Job("cluster_nothing", str(folder), MEMORY, 1, os.getcwd(), str(folder / ".work"))
        (folder / ".work").mkdir()
        with connected("ray"):
            executor = RayExecutor(job, lambda job: job, lambda: (folder / ".work", []))
            executor.run("warm", range(8), lambda _: None)
            before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
            executor.run("nothing", range(options.parts), lambda _: None)
            after, seconds = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"parts": options.parts, "CPU ms each": 1e3 * cpu / options.parts, "ms each": 1e3 * seconds / options.parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bar", choices=("kills", "overhead", "parts"))
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--node-kills", type=int, default=30)
    parser.add_argument("--driver-kills", type=int, default=10)
    parser.add_argument("--kills-a-round", type=int, default=8)
    parser.add_argument("--budget", type=int, default=260, help="of each worker, in MB")
    parser.add_argument("--every", type=float, nargs=2, default=(1.0, 8.0), help="seconds between kills")
    parser.add_argument("--kilobytes", type=int, default=1500)
    parser.add_argument("--megabytes", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ramlet-cluster-") as folder:
        found = {"kills": kills, "overhead": overhead, "parts": parts}[options.bar](options, Path(folder))
    print(markdown_table(["", ""], [[name, str(value)] for name, value in found.items()]))
    wrong = {
        "kills": bool(
            found.get("different") or found.get("failed") or found.get("peak", 0) > options.budget * 1_000_000
        ),
        "overhead": found.get("ratio", 0) > 1.15 or not found.get("same", True),
        "parts": found.get("CPU ms each", 0) >= 2,
    }
    sys.exit(wrong[options.bar])


if __name__ == "__main__":
    main()
