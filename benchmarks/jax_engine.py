"""The JAX engine on a CPU, next to torch and to a plain JAX loop of the usual kind (jax_worker.py).

    python benchmarks/jax_engine.py parity                # 300 steps with torch and jax, and changing at step 150
    python benchmarks/jax_engine.py memory                # 24 shapes and options: predicted and measured peak
    python benchmarks/jax_engine.py random --engine jax --runs 60     # budgets: none over
    python benchmarks/jax_engine.py plain                 # the peak of the plain loop, and ours for the same step
    python benchmarks/jax_engine.py speed                 # tokens per second, 10M, 32 x 256
    python benchmarks/jax_engine.py devices               # 1 and 8 devices, two processes, resumed on 2
    python benchmarks/jax_engine.py guide                 # the guide's command line with its flags
    python benchmarks/jax_engine.py report                # tables from the records of all runs

Records, checks and results are those of engines.py. Every run is a process of its own. Programs are compiled anew in
each (JAX_ENABLE_COMPILATION_CACHE=0), unless a bar says otherwise: compiling is part of a run's peak.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import engines_random
from bar_commands import run_bars
from bpe_train import HERE, Check, check
from measure import markdown_table, measure
from ramlet.engines import OPTIMIZERS
from ramlet.model.sizing import shape_for
from recipe_race import scratch
from recipe_runs import Ramlet, Record, Records, metrics
from small_text import dataset

APART, WITHIN, SHARE_OF_PLAIN = 1e-3, 0.05, 0.6
RATES = {"adamw": 1e-3, "adamw8bit": 1e-3, "muon": 6e-3, "muon8bit": 6e-3}
UNCACHED = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
EIGHT = "--xla_force_host_platform_device_count=8"
VOCAB = 2000


def data_folder() -> Path:
    return dataset(3_500_000, VOCAB)


def train(out: Path, engine: str, *words: object, **environment: str) -> Record:
    """A run, with its peak, its prediction and its losses."""
    now = Ramlet.now()
    always = ("--data", data_folder(), "--device", "cpu", "--engine", engine, "--log-every", 1, "--quiet")
    command = now.command("train", "--out", out, *always, *words)
    done = measure(command, {**now.environment, **UNCACHED, **environment})
    return {"peak": done.peak_rss, "seconds": round(done.seconds, 1), **_left(out)}


def _left(out: Path) -> Record:
    stats = json.loads((out / "stats.json").read_text())
    lines = [line for line in metrics(out) if "loss" in line]
    rates = sorted(line["tokens_per_second"] for line in lines[2:]) or [0]
    return {
        "predicted": stats["memory"]["predicted"],
        "losses": [line["loss"] for line in lines],
        "tokens_per_second": rates[len(rates) // 2],
        "stages": {name: usage["peak"] for name, usage in stats["memory"]["stages"].items()},
    }


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


# Parity.

STEADY = (*("--params", "300k", "--seq-len", 64, "--batch-size", 8, "--precision", "fp32", "--weights", "fp32"),)
STEADY += (*("--schedule", "constant", "--warmup", 10, "--eval-every", 0, "--sample-every", 0, "--threads", 1),)


def parity(given: argparse.Namespace, records: Records) -> None:
    half = given.steps // 2
    for optimizer in given.optimizers:

        def make(optimizer: str = optimizer) -> Record:
            words = (*STEADY, "--optimizer", optimizer, "--lr", RATES[optimizer], "--checkpoint-every", half)
            whole, part = ("--max-steps", given.steps), ("--max-steps", half)
            with scratch() as folder:
                expected = train(folder / "torch", "torch", *words, *whole)["losses"]
                found = {}
                # All begin with torch's first step, whose weights are random: each engine has its own.
                train(folder / "begun", "torch", *words, "--max-steps", 1)
                for name, second in (("jax", "jax"), ("jax, then torch", "torch")):
                    out = folder / name.replace(", ", "-").replace(" ", "-")
                    shutil.copytree(folder / "begun", out)
                    if second == "torch":
                        train(out, "jax", *words, *part, "--resume")
                    found[name] = train(out, second, *words, *whole, "--resume")["losses"]
                shutil.copytree(folder / "begun", folder / "back")
                train(folder / "back", "torch", *words, *part, "--resume")
                found["torch, then jax"] = train(folder / "back", "jax", *words, *whole, "--resume")["losses"]
                # How far rounding alone gets: this engine against itself, with its sums in another order.
                halves, wholes = (
                    train(folder / f"micro{rows}", "jax", *words, *whole, "--micro-batch", rows)["losses"]
                    for rows in (4, 8)
                )
            apart = {name: _apart(expected, each) for name, each in found.items()}
            return {"apart": apart, "rounding": _apart(halves, wholes), "last": expected[-1]}

        key = {"bar": "parity", "contender": optimizer, "code": Ramlet.now().code, "steps": given.steps}
        records.once(make, device="cpu", **key)


def report_parity(records: list[Record]) -> tuple[str, list[Check]]:
    rows = [
        [line["contender"], *(f"{each:.1e}" for each in (*line["apart"].values(), line["rounding"]))]
        for line in records
    ]
    table = markdown_table(["optimizer", *records[0]["apart"], "jax, sums in another order"], rows)
    return table, [
        check(f"{line['contender']}, {name}: largest difference of a loss", f"{each:.1e}", f"<= {APART}", each <= APART)
        for line in records
        for name, each in line["apart"].items()
    ]


# Memory.

SHAPES = list(product(("1M", "5M", "10M", "20M"), (128, 512)))
OPTIONS: tuple[dict[str, Any], ...] = (
    {"optimizer": "adamw"},
    {"optimizer": "muon8bit", "recompute": True},
    {"optimizer": "muon", "precision": "bf16", "dropout": 0.1, "document_mask": True},
)


def memory(given: argparse.Namespace, records: Records) -> None:
    for (params, seq_len), options in list(product(SHAPES, OPTIONS))[: given.runs]:

        def make(params: str = params, seq_len: int = seq_len, options: dict[str, Any] = options) -> Record:
            words: list[object] = ["--params", params, "--seq-len", seq_len, "--batch-size", 16, "--max-steps", 3]
            words += ["--memory", "4GB", "--eval-every", 2, "--eval-tokens", 2048, "--sample-every", 2]
            for name, value in options.items():
                flag = "--" + name.replace("_", "-")
                words += [flag] if value is True else [flag, value]
            with scratch() as folder:
                return train(folder / "run", "jax", *words)

        key = {"bar": "memory", "contender": "jax", "code": Ramlet.now().code, "params": params, "seq_len": seq_len}
        records.once(make, device="cpu", **key, options=" ".join(map(str, options.values())))


def report_memory(records: list[Record]) -> tuple[str, list[Check]]:
    errors = [line["predicted"] / line["peak"] - 1 for line in records]
    rows = [
        [*(str(line[name]) for name in ("params", "seq_len", "options")), *_megabytes(line), f"{error:+.1%}"]
        for line, error in zip(records, errors)
    ]
    worst = max(errors, key=abs)
    good = sum(abs(error) <= WITHIN for error in errors)
    table = markdown_table(["parameters", "tokens", "options", "predicted MB", "peak MB", "error"], rows)
    claim = f"predictions within {WITHIN:.0%} of the peak"
    return table, [check(claim, f"{good} of {len(errors)}, worst {worst:+.1%}", "all", good == len(errors))]


def _megabytes(line: Record) -> list[str]:
    return [f"{line[name] / 1e6:,.0f}" for name in ("predicted", "peak")]


# The plain loop.


def _plain(params: str, seq_len: int, batch: int, steps: int, **environment: str) -> Record:
    shape = shape_for(_amount(params), vocab_size=VOCAB, context=seq_len, qk_norm=True)
    words: list[object] = ["--vocab", shape.padded_vocab, "--layers", shape.layers, "--width", shape.width]
    words += ["--heads", shape.heads, "--feed-forward", shape.feed_forward]
    words += ["--seq-len", seq_len, "--batch", batch, "--steps", steps]
    command = [sys.executable, str(HERE / "jax_worker.py"), *map(str, words)]
    done = measure(command, {**UNCACHED, **environment})
    return {"peak": done.peak_rss, **json.loads(done.output.strip().splitlines()[-1])}


def _amount(text: str) -> int:
    return int(float(text[:-1]) * {"k": 1e3, "M": 1e6}[text[-1]])


def _same_step(params: str, seq_len: int, batch: int, steps: int) -> list[object]:
    words = ["--params", params, "--seq-len", seq_len, "--batch-size", batch, "--max-steps", steps, "--memory", "8GB"]
    return [*words, "--optimizer", "adamw", "--precision", "fp32", "--eval-every", 0, "--sample-every", 0]


def plain(given: argparse.Namespace, records: Records) -> None:
    for params in given.sizes:
        for contender in ("jax", "plain"):

            def make(params: str = params, contender: str = contender) -> Record:
                if contender == "plain":
                    return _plain(params, 256, 32, 3)
                with scratch() as folder:
                    return train(folder / "run", "jax", *_same_step(params, 256, 32, 3))

            key = {"bar": "plain", "contender": contender, "code": Ramlet.now().code, "params": params}
            records.once(make, device="cpu", **key)


def report_plain(records: list[Record]) -> tuple[str, list[Check]]:
    peaks = {(line["params"], line["contender"]): line["peak"] for line in records}
    sizes = [size for size in dict.fromkeys(size for size, _ in peaks) if len({n for s, n in peaks if s == size}) == 2]
    shares = {size: peaks[size, "jax"] / peaks[size, "plain"] for size in sizes}
    rows = [
        [size, *(f"{peaks[size, name] / 1e6:,.0f}" for name in ("jax", "plain")), f"{shares[size]:.0%}"]
        for size in sizes
    ]
    table = markdown_table(["parameters", "ramlet MB", "plain loop MB", "share"], rows)
    return table, [
        check(f"{size}: peak as a share of the plain loop's", f"{share:.0%}", "<= 60%", share <= SHARE_OF_PLAIN)
        for size, share in shares.items()
    ]


def speed(given: argparse.Namespace, records: Records) -> None:
    for number in range(given.repeats):
        for contender in ("jax", "plain", "torch", "native"):

            def make(contender: str = contender) -> Record:
                if contender == "plain":
                    return _plain("10M", 256, 32, given.steps)
                with scratch() as folder:
                    return train(folder / "run", contender, *_same_step("10M", 256, 32, given.steps))

            key = {"bar": "speed", "contender": contender, "code": Ramlet.now().code, "repeat": number}
            records.once(make, device="cpu", **key)


def report_speed(records: list[Record]) -> tuple[str, list[Check]]:
    best: dict[str, float] = {}
    for line in records:
        best[line["contender"]] = max(best.get(line["contender"], 0.0), line["tokens_per_second"])
    table = markdown_table(
        ["10M, 32 x 256, AdamW, fp32", "tokens/s"], [[name, f"{each:,.0f}"] for name, each in best.items()]
    )
    if not {"jax", "plain"} <= best.keys():
        return table, []
    ratio = best["jax"] / best["plain"]
    return table, [check("speed relative to the plain loop", f"{ratio:.2f}", ">= 1", ratio >= 1)]


# Devices and processes.


def devices(given: argparse.Namespace, records: Records) -> None:
    def make() -> Record:
        words = (*STEADY, "--optimizer", "muon", "--lr", 6e-3, "--checkpoint-every", given.steps // 2)
        whole, part = ("--max-steps", given.steps), ("--max-steps", given.steps // 2)
        with scratch() as folder:
            one = train(folder / "one", "jax", *words, *whole)["losses"]
            eight = train(folder / "eight", "jax", *words, *whole, XLA_FLAGS=EIGHT)["losses"]
            train(folder / "fewer", "jax", *words, *part, XLA_FLAGS=EIGHT)
            two = EIGHT.replace("=8", "=2")
            fewer = train(folder / "fewer", "jax", *words, *whole, "--resume", XLA_FLAGS=two)["losses"]
            both = _two_processes(folder / "both", *words, *whole)
        found = {"8 devices": eight, "8 devices, then 2": fewer, "2 processes": both}
        return {"apart": {name: _apart(one, each) for name, each in found.items()}}

    records.once(make, device="cpu", bar="devices", contender="jax", code=Ramlet.now().code, steps=given.steps)


def _two_processes(out: Path, *words: object) -> list[float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    now = Ramlet.now()
    command = now.command(
        "train", "--out", out, "--data", data_folder(), "--engine", "jax", "--device", "cpu", "--quiet"
    )
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [
        subprocess.Popen(
            [*command, "--log-every", "1", *map(str, words)],
            env={**os.environ, **now.environment, **UNCACHED, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    if sum(child.wait() != 0 for child in children):
        raise SystemExit("one of two processes failed")
    losses: list[float] = _left(out)["losses"]
    return losses


def report_devices(records: list[Record]) -> tuple[str, list[Check]]:
    apart = {name: each for line in records for name, each in line["apart"].items()}
    table = markdown_table(
        ["", "largest difference of a loss"], [[name, f"{each:.1e}"] for name, each in apart.items()]
    )
    return table, [
        check(f"{name}: the losses of one device", f"{each:.1e}", f"<= {APART}", each <= APART)
        for name, each in apart.items()
    ]


# The guide's own command.


def guide(given: argparse.Namespace, records: Records) -> None:
    def make() -> Record:
        with scratch() as folder:
            text = folder / "stories.txt"
            text.write_text("\n".join(f"Story {number} is about a small red house." for number in range(4000)))
            command = Ramlet.now().command(
                *("train", "--dataset-id", text, "--use-streaming", "--tokenizer", "byte", "--docs", "line"),
                *("--target-params", 1_000_000, "--batch-size", 8, "--gradient-accumulation-steps", 2),
                *("--use-mixed-precision", "--use-8bit-optimizer", "--shuffle-buffer-size", 5000),
                *("--seq-len", 64, "--stride", 64, "--max-examples", 200, "--epochs", 3, "--seed", 123),
                *("--engine", "jax", "--device", "cpu", "--out", folder / "run", "--log-every", 1, "--quiet"),
            )
            done = measure(command, Ramlet.now().environment)
            return {"peak": done.peak_rss, **_left(folder / "run")}

    records.once(make, device="cpu", bar="guide", contender="jax", code=Ramlet.now().code)


def report_guide(records: list[Record]) -> tuple[str, list[Check]]:
    (line,) = records
    first, last = line["losses"][0], line["losses"][-1]
    table = markdown_table(
        ["steps", "first loss", "last loss"], [[str(len(line["losses"])), f"{first:.3f}", f"{last:.3f}"]]
    )
    return table, [check("the loss falls", f"{first:.3f} to {last:.3f}", "falls", last < first)]


REPORTS = {
    "parity": report_parity,
    "memory": report_memory,
    "random": engines_random.report_random,
    "plain": report_plain,
    "speed": report_speed,
    "devices": report_devices,
    "guide": report_guide,
}


def add_options(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def command(name: str, run: Any, about: str) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=about, description=about)
        parser.set_defaults(run=run)
        return parser

    parser = command("parity", parity, "the losses of torch, also when a run changes engines half way")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS)
    parser = command("memory", memory, "predicted and measured peaks of shapes and options")
    parser.add_argument("--runs", type=int, default=24, help="only the first of them")
    parser = command("plain", plain, "the peak, as a share of a plain JAX loop's")
    parser.add_argument("--sizes", nargs="+", default=["10M", "30M"])
    parser = command("speed", speed, "tokens per second next to a plain JAX loop, torch and native")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser = command("devices", devices, "eight devices, two processes, resumed on two devices")
    parser.add_argument("--steps", type=int, default=100)
    command("guide", guide, "the guide's command line with its flags")


def main() -> int:
    return run_bars("jax_engine", __doc__ or "", REPORTS, (sys.modules[__name__], engines_random))


if __name__ == "__main__":
    sys.exit(main())
