"""The engines on a CPU: native, torch, nanoGPT on torch and llm.c's CPU trainer, in tokens per second and memory.

    python benchmarks/engines.py speed --nanogpt PATH --llmc PATH        # 1M, 3M, 10M and 30M on two threads
    python benchmarks/engines.py memory                                  # the demo's run, 10M, 124M with 8-bit states

The paths are checkouts. nanoGPT's train.py and llm.c's train_gpt2.c run unchanged (nanogpt_worker.py, llmc_worker.c).
All train with AdamW on the same ids, take turns, and run in processes of their own; ramlet through its command line.
Tokens per second are those of the median step without the first ones, of the best of --repeats runs. Memory is the peak
RSS of the whole process tree. Prints Markdown tables and the checks with measured value and limit; saves everything,
dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bpe_train import HERE, Check, check, print_checks
from corpora import DATA
from measure import CommandFailed, machine, markdown_table, measure, megabytes
from train import Contender, Setup, synthetic

THREADS = 2
SETUPS = {
    "1M": Setup("1M", 256, 8, 2048, 4, 2, 128, steps=40),
    "3M": Setup("3M", 256, 16, 4096, 5, 3, 192, steps=24),
    "10M": Setup("10M", 256, 32, 8192, 6, 5, 320, steps=12),
    "30M": Setup("30M", 256, 32, 8192, 9, 8, 512, steps=9),
}
MICRO_BATCH = 4
"""Sequences of llm.c at once: larger ones are not faster, and its attention keeps tokens x tokens."""
FASTER = {"torch": 1.2, "llm.c": 3.0}
MEMORY = {"demo": 90_000_000, "10M": 220_000_000, "124M": 700_000_000}


def contenders(setup: Setup, given: argparse.Namespace, data: Path, folder: Path) -> list[Contender]:
    ours = [
        *(sys.executable, "-m", "ramlet", "train", "--data", str(data / "ids.npy"), "--params", setup.params),
        *("--seq-len", str(setup.seq_len), "--batch-size", str(setup.sequences), "--device", "cpu"),
        *("--threads", str(THREADS), "--optimizer", "adamw", "--max-steps", str(setup.steps), "--eval-every", "0"),
        *("--sample-every", "0", "--log-every", "1", "--checkpoint-every", "0"),
        *("--eval-tokens", str(setup.seq_len), "--quiet"),
    ]
    found = []
    for engine in given.engines:
        for precision in ("auto", "fp32"):
            name = engine if precision == "auto" else f"{engine} fp32"
            out = folder / name.replace(" ", "-")
            words = [*ours, "--engine", engine, "--precision", precision, "--out", str(out)]
            found.append(Contender(name, words, out))
    if given.nanogpt:
        found.append(Contender("nanoGPT", nanogpt(setup, given.nanogpt.resolve(), data, folder)))
    if given.llmc:
        found.append(Contender("llm.c", llmc(setup, given.llmc.resolve(), data, folder)))
    return found


def nanogpt(setup: Setup, path: Path, data: Path, folder: Path) -> list[str]:
    return [
        *(sys.executable, str(HERE / "nanogpt_worker.py"), str(path), "--device=cpu", f"--dataset={data}"),
        *(f"--out_dir={folder / 'nanogpt'}", f"--block_size={setup.seq_len}", "--bias=False", "--compile=False"),
        *(f"--n_layer={setup.layers}", f"--n_head={setup.heads}", f"--n_embd={setup.width}", "--dropout=0.0"),
        *(f"--max_iters={setup.steps}", "--eval_interval=1000000", "--eval_iters=1", "--log_interval=1"),
        *(f"--batch_size={setup.sequences}", "--gradient_accumulation_steps=1", "--warmup_iters=10"),
    ]


def llmc(setup: Setup, path: Path, data: Path, folder: Path) -> list[str]:
    """Compiles the worker, and writes a model with random weights in llm.c's format (magic number, version, sizes)."""
    worker, model = folder / "llmc", folder / "llmc.bin"
    flags = ["-Ofast", "-march=native", "-fopenmp", "-DOMP", "-DTESTING", "-w", f"-I{path}"]
    source = str(HERE / "llmc_worker.c")
    subprocess.run([os.environ.get("CC", "cc"), *flags, source, "-lm", "-o", str(worker)], check=True)
    padded = setup.vocab + -setup.vocab % 128
    width, layers = setup.width, setup.layers
    header = [20240326, 3, setup.seq_len, setup.vocab, layers, setup.heads, width, padded]
    per_layer = 12 * width * width + 13 * width
    count = (padded + setup.seq_len) * width + layers * per_layer + 2 * width
    draw = random.Random(1)
    some = struct.pack("<4096f", *(draw.gauss(0.0, 0.02) for _ in range(4096)))
    with model.open("wb") as file:
        file.write(struct.pack("<256i", *header, *[0] * (256 - len(header))))
        for start in range(0, count, 4096):
            file.write(some[: 4 * min(4096, count - start)])
    parts = max(1, setup.sequences // MICRO_BATCH)
    numbers = (min(MICRO_BATCH, setup.sequences), setup.seq_len, parts, setup.steps)
    return [str(worker), str(model), str(data / "train.bin"), *map(str, numbers)]


def speed(given: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Check]]:
    runs, checks, rows = [], [], []
    os.environ.update(OMP_NUM_THREADS=str(THREADS), OMP_WAIT_POLICY="passive")
    for name in given.sizes:
        setup = SETUPS[name]
        if given.steps:
            setup = replace(setup, steps=given.steps)
        data = DATA / f"train-{setup.vocab}"
        if not (data / "ids.npy").exists():
            synthetic(setup, data)
        with tempfile.TemporaryDirectory(prefix="ramlet-bench-") as folder:
            found = contenders(setup, given, data, Path(folder))
            for number in range(given.repeats):
                for one in found:
                    print(f"{name} {number + 1}/{given.repeats} {one.name}", file=sys.stderr, flush=True)
                    one.once(setup, "cpu")
        for one in found:
            rate = f"{one.rate:,.0f}" if one.rates else f"failed: {one.error[:120]}"
            rows.append([f"{name}, {one.name}", rate, megabytes(one.peak)])
            runs.append({"size": name, "name": one.name, "tokens_per_second": one.rates, "peak": one.peaks})
        checks += bars(name, {one.name: one for one in found})
    print(markdown_table(["model, engine", "tokens/s", "peak"], rows))
    return runs, checks


def bars(size: str, found: dict[str, Contender]) -> list[Check]:
    own = found.get("native")
    checks = []
    for name, limit in FASTER.items():
        peer = found.get(name)
        if own is None or peer is None or not (own.rates and peer.rates):
            continue
        ratio = own.rate / peer.rate
        value = f"{ratio:.2f}x ({own.rate:,.0f} / {peer.rate:,.0f} tokens/s)"
        checks.append(check(f"{size}: native vs. {name}", value, f">= {limit}", ratio >= limit))
    return checks


def memory(given: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Check]]:
    runs, checks, rows = [], [], []
    train = [sys.executable, "-m", "ramlet", "train", "--engine", "native", "--quiet", "--sample-every", "0"]
    with tempfile.TemporaryDirectory(prefix="ramlet-bench-") as scratch:
        folder = Path(scratch)
        commands = {
            "demo": [sys.executable, "-m", "ramlet", "demo", "--engine", "native", "--out", str(folder / "demo")]
        }
        for name, setup, more in (
            ("10M", SETUPS["10M"], ["--optimizer", "adamw"]),
            ("124M", Setup("124M", 256, 1, 50257, 12, 12, 768, steps=2), ["--optimizer", "adamw8bit"]),
        ):
            data = DATA / f"train-{setup.vocab}"
            if not (data / "ids.npy").exists():
                synthetic(setup, data)
            limit = f"{MEMORY[name] // 10**6}MB"
            commands[name] = [
                *(*train, "--data", str(data / "ids.npy"), "--params", setup.params, "--memory", limit),
                *("--seq-len", str(setup.seq_len), "--batch-size", str(setup.sequences), "--max-steps", "2"),
                *("--eval-tokens", str(setup.seq_len), "--out", str(folder / name), *more),
            ]
        for name in given.sizes or commands:
            most = MEMORY[name]
            try:
                peak = measure(commands[name]).peak_rss
                value, met = megabytes(peak), peak <= most
            except CommandFailed as failure:
                peak, value, met = None, str(failure).strip().splitlines()[-1], False
            rows.append([name, value])
            runs.append({"size": name, "peak": peak})
            checks.append(check(f"{name}: peak RSS", value, f"<= {megabytes(most)}", met))
    print(markdown_table(["run", "peak RSS"], rows))
    return runs, checks


def main() -> int:
    def names(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speed_parser = commands.add_parser("speed", help="tokens per second")
    speed_parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    speed_parser.add_argument("--llmc", type=Path, help="a checkout of llm.c")
    speed_parser.add_argument("--engines", type=names, default=["native", "torch"], help="native,torch")
    speed_parser.add_argument("--sizes", type=names, default=list(SETUPS), help=",".join(SETUPS))
    speed_parser.add_argument("--steps", type=int, help="steps of a run")
    speed_parser.add_argument("--repeats", type=int, default=3)
    memory_parser = commands.add_parser("memory", help="peak memory of the native engine")
    memory_parser.add_argument("--sizes", type=names, help=",".join(MEMORY))
    for each in (speed_parser, memory_parser):
        each.add_argument("--no-results", action="store_true", help="only print, save nothing")
    given = parser.parse_args()
    runs, checks = (speed if given.command == "speed" else memory)(given)
    print_checks(checks)
    if not given.no_results:
        target = HERE / "results" / f"{datetime.date.today()}-engines-{given.command}.json"
        target.write_text(json.dumps({"machine": machine(), "runs": runs, "checks": checks}, indent=1) + "\n")
    return 0 if all(each["met"] for each in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
