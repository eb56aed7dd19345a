"""Tokens per second and memory of the engines on a CPU, each run in a process of its own; see engines.py."""

from __future__ import annotations

import argparse
import os
import random
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from statistics import median

from bpe_train import HERE, Check, check
from corpora import DATA
from measure import CommandFailed, markdown_table, measure, megabytes
from recipe_race import scratch
from recipe_runs import Ramlet, Record, Records, metrics
from train import SKIPPED, Contender, Setup, synthetic

THREADS = 2
SETUPS = {
    "1M": Setup("1M", 256, 8, 2048, 4, 2, 128, steps=40),
    "3M": Setup("3M", 256, 16, 4096, 5, 3, 192, steps=24),
    "10M": Setup("10M", 256, 32, 8192, 6, 5, 320, steps=12),
    "30M": Setup("30M", 256, 32, 8192, 9, 8, 512, steps=9),
}
MICRO_BATCH = 4
"""Sequences of llm.c at once: larger ones are not faster, and its attention keeps tokens x tokens."""
ENGINES = ("native", "torch")
CONTENDERS = ("native", "native fp32", "torch", "torch fp32", "nanoGPT", "llm.c")
FASTER = {"torch": 1.2, "llm.c": 3.0}
MEMORY = {"demo": 90_000_000, "10M": 220_000_000, "124M": 700_000_000}
TOGETHER = 0.45
"""The least speed of each of two runs at the same time, as a share of that of a run alone."""


def ids_of(setup: Setup) -> Path:
    """The folder with its ids."""
    data = DATA / f"train-{setup.vocab}"
    if not (data / "ids.npy").exists():
        synthetic(setup, data)
    return data


def train_command(setup: Setup, data: Path, out: Path, engine: str, precision: str = "auto") -> list[str]:
    return Ramlet.now().command(
        *("train", "--data", data / "ids.npy", "--params", setup.params, "--engine", engine, "--out", out),
        *("--seq-len", setup.seq_len, "--batch-size", setup.sequences, "--device", "cpu", "--precision", precision),
        *("--threads", THREADS, "--optimizer", "adamw", "--max-steps", setup.steps, "--eval-every", 0),
        *("--sample-every", 0, "--log-every", 1, "--checkpoint-every", 0),
        *("--eval-tokens", setup.seq_len, "--quiet"),
    )


def contender(name: str, setup: Setup, given: argparse.Namespace, data: Path, folder: Path) -> Contender:
    if name == "nanoGPT":
        return Contender(name, nanogpt(setup, checkout(given.nanogpt, "train.py", "karpathy/nanoGPT"), data, folder))
    if name == "llm.c":
        return Contender(name, llmc(setup, checkout(given.llmc, "train_gpt2.c", "karpathy/llm.c"), data, folder))
    engine, _, precision = name.partition(" ")
    return Contender(name, train_command(setup, data, folder / "run", engine, precision or "auto"), folder / "run")


def checkout(path: Path, file: str, repository: str) -> Path:
    if not (path / file).exists():
        raise SystemExit(f"{path} has no {file}: clone {repository} from GitHub there, or give the path of a checkout")
    return path.resolve()


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


def speed(given: argparse.Namespace, records: Records) -> None:
    """All contenders take turns; a run with a record is not repeated."""
    os.environ.update(OMP_NUM_THREADS=str(THREADS), OMP_WAIT_POLICY="passive")
    code = Ramlet.now().code
    for size in given.sizes:
        setup = SETUPS[size]
        if given.steps:
            setup = replace(setup, steps=given.steps)
        data = ids_of(setup)
        for number in range(given.repeats):
            for name in given.contenders:

                def make(name: str = name, setup: Setup = setup, data: Path = data) -> Record:
                    with scratch() as folder:
                        one = contender(name, setup, given, data, folder)
                        one.once(setup, "cpu")
                    if one.error:
                        raise SystemExit(f"{name}: {one.error}")
                    return {"tokens_per_second": one.rates[-1], "peak": one.peaks[-1]}

                ours = name.split()[0] in ENGINES
                key = {"bar": "speed", "contender": name, "code": code if ours else name, "setup": size}
                records.once(make, device="cpu", **key, steps=setup.steps, number=number)


def report_speed(records: list[Record]) -> tuple[str, list[Check]]:
    """By size, the best of the repeats; only runs of the same number of steps are compared."""
    rows, checks = [], []
    for size, steps in sorted({(line["setup"], line["steps"]) for line in records}, key=_by_size):
        rates, peaks = {}, {}
        for name in CONTENDERS:
            lines = [
                line for line in records if (line["setup"], line["steps"], line["contender"]) == (size, steps, name)
            ]
            if lines:
                rates[name] = max(line["tokens_per_second"] for line in lines)
                peaks[name] = max(line["peak"] for line in lines)
                about = f"{rates[name]:,.0f}", megabytes(peaks[name]), f"{len(lines)} x {steps}"
                rows.append([f"{size}, {name}", *about])
        for name, limit in FASTER.items():
            if "native" in rates and name in rates:
                ratio = rates["native"] / rates[name]
                value = f"{ratio:.2f}x ({rates['native']:,.0f} / {rates[name]:,.0f} tokens/s)"
                checks.append(check(f"{size}: native vs. {name}", value, f">= {limit}", ratio >= limit))
    return markdown_table(["model, engine", "tokens/s", "peak", "runs x steps"], rows), checks


def _by_size(sized: tuple[str, int]) -> tuple[int, int]:
    return list(SETUPS).index(sized[0]), sized[1]


def together(given: argparse.Namespace, records: Records) -> None:
    """A run alone, then two at the same time, each with as many threads as there are cores."""
    code = Ramlet.now().code
    for size in given.sizes:
        setup = replace(SETUPS[size], steps=given.steps or 4 * SETUPS[size].steps)
        data = ids_of(setup)
        for number in range(given.repeats):
            for engine in given.engines:

                def make(engine: str = engine, setup: Setup = setup, data: Path = data) -> Record:
                    return {"alone": _rates(setup, data, engine, 1)[0], "together": _rates(setup, data, engine, 2)}

                key = {"bar": "together", "contender": engine, "code": code, "setup": size, "steps": setup.steps}
                records.once(make, device="cpu", **key, number=number)


def _rates(setup: Setup, data: Path, engine: str, count: int) -> list[float]:
    """Tokens per second of runs that start together: of the median step while all of them train."""
    found: dict[int, tuple[list[float], list[float]]] = {}
    failures: list[CommandFailed] = []
    with scratch() as folder:

        def one(number: int) -> None:
            out = folder / f"run-{number}"
            try:
                measure(train_command(setup, data, out, engine), Ramlet.now().environment)
            except CommandFailed as failure:
                failures.append(failure)
                return
            lines = [line for line in metrics(out) if line.get("tokens_per_second")][SKIPPED:]
            found[number] = [line["seconds"] for line in lines], [line["tokens_per_second"] for line in lines]

        threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    begins, ends = max(times[0] for times, _ in found.values()), min(times[-1] for times, _ in found.values())
    return [
        median([rate for at, rate in zip(times, rates, strict=True) if begins <= at <= ends] or rates)
        for times, rates in (found[number] for number in sorted(found))
    ]


def report_together(records: list[Record]) -> tuple[str, list[Check]]:
    """The best of the repeats, by the slower of the two."""
    rows, checks = [], []
    for size, engine in sorted({(line["setup"], line["contender"]) for line in records}):
        lines = [line for line in records if (line["setup"], line["contender"]) == (size, engine)]
        best = max(lines, key=lambda line: min(line["together"]) / line["alone"])
        share = min(best["together"]) / best["alone"]
        both = " and ".join(f"{rate:,.0f}" for rate in best["together"])
        rows.append([f"{size}, {engine}", f"{best['alone']:,.0f}", both, f"{share:.0%}"])
        if engine == "native":
            claim = f"{size}: each of two runs, of the speed of one alone"
            checks.append(check(claim, f"{share:.0%}", f">= {TOGETHER:.0%}", share >= TOGETHER))
    return markdown_table(["model, engine", "alone, tokens/s", "two at a time", "the slower one"], rows), checks


def memory(given: argparse.Namespace, records: Records) -> None:
    now = Ramlet.now()
    larger = Setup("124M", 256, 1, 50257, 12, 12, 768, steps=2)
    for size in given.sizes:

        def make(size: str = size) -> Record:
            with scratch() as folder:
                if size == "demo":
                    command = now.command("demo", "--engine", "native", "--out", folder / "demo")
                else:
                    setup, optimizer = (SETUPS[size], "adamw") if size in SETUPS else (larger, "adamw8bit")
                    command = now.command(
                        *(
                            "train",
                            "--engine",
                            "native",
                            "--quiet",
                            "--sample-every",
                            0,
                            "--data",
                            ids_of(setup) / "ids.npy",
                        ),
                        *("--params", setup.params, "--memory", f"{MEMORY[size] // 10**6}MB", "--max-steps", 2),
                        *("--seq-len", setup.seq_len, "--batch-size", setup.sequences, "--optimizer", optimizer),
                        *("--eval-tokens", setup.seq_len, "--out", folder / "run"),
                    )
                try:
                    return {"peak": measure(command, now.environment).peak_rss}
                except CommandFailed as failure:
                    return {"peak": None, "error": str(failure).strip().splitlines()[-1]}

        records.once(make, device="cpu", bar="memory", contender="native", code=now.code, setup=size)


def report_memory(records: list[Record]) -> tuple[str, list[Check]]:
    rows, checks = [], []
    for line in records:
        most, peak = MEMORY[line["setup"]], line["peak"]
        value = line["error"] if peak is None else megabytes(peak)
        rows.append([line["setup"], value])
        met = peak is not None and peak <= most
        checks.append(check(f"{line['setup']}: peak RSS", value, f"<= {megabytes(most)}", met))
    return markdown_table(["run", "peak RSS"], rows), checks


def add_options(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def names(known: tuple[str, ...]) -> object:
        def parse(text: str) -> list[str]:
            found = text.split(",")
            if unknown := [name for name in found if name not in known]:
                raise argparse.ArgumentTypeError(f"unknown {unknown[0]!r}: choose from {','.join(known)}")
            return found

        return parse

    def command(
        name: str, run: object, about: str, sizes: tuple[str, ...], some: tuple[str, ...]
    ) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=about, description=about)
        parser.set_defaults(run=run)
        parser.add_argument("--sizes", type=names(sizes), default=list(some), help=f"[default: {','.join(some)}]")
        return parser

    sizes = tuple(SETUPS)
    parser = command("speed", speed, "tokens per second of all contenders", sizes, sizes)
    parser.add_argument(
        "--contenders", type=names(CONTENDERS), default=list(CONTENDERS), help=f"{','.join(CONTENDERS)}"
    )
    parser.add_argument("--nanogpt", type=Path, default=DATA / "nanoGPT", help="a checkout [default: data/nanoGPT]")
    parser.add_argument("--llmc", type=Path, default=DATA / "llm.c", help="a checkout [default: data/llm.c]")
    parser.add_argument("--steps", type=int, help=f"steps of a run, more than {SKIPPED}")
    parser.add_argument("--repeats", type=int, default=3)
    parser = command("together", together, "two runs at the same time against one alone", sizes, ("3M",))
    parser.add_argument("--engines", type=names(ENGINES), default=list(ENGINES), help=f"[default: {','.join(ENGINES)}]")
    parser.add_argument("--steps", type=int, help=f"steps of a run, more than {SKIPPED}")
    parser.add_argument("--repeats", type=int, default=2)
    command("memory", memory, "peak memory of the native engine", tuple(MEMORY), tuple(MEMORY))
