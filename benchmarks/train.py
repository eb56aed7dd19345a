"""`ramlet train` and nanoGPT: tokens per second and peak memory, with the same number of parameters and the same step.

    python benchmarks/train.py --nanogpt PATH                    # CPU, 10M parameters, 32 x 256 tokens per step
    python benchmarks/train.py --nanogpt PATH --device cuda      # 124M, 32 x 1024, bf16; and ramlet with 8GB

PATH is a checkout of nanoGPT. Its train.py is run unchanged (nanogpt_worker.py): on the GPU with torch.compile, on the
CPU without, as its README says, and once more with 4 micro-batches, which saves memory. ramlet runs through its command
line, with nanoGPT's optimizer. Both train on the same ids (synthetic, because the time of a step does not depend on
them).

Every run is a separate process, and the two take turns. Tokens per second are those of the median step, without the
first steps (compiling, warming up), of the best of --repeats runs. Memory on the CPU is the peak RSS of the whole
process tree (measure.py), on the GPU the peak that torch's allocator reserved. Prints a Markdown table and the checks
with measured value and limit; saves everything, dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bpe_train import HERE, Check, check, print_checks
from corpora import DATA
from measure import CommandFailed, machine, markdown_table, measure, megabytes

SKIPPED = 5
"""Number of first steps that do not count."""


@dataclass(frozen=True)
class Setup:
    """What is trained."""

    params: str
    seq_len: int
    sequences: int
    vocab: int
    layers: int
    heads: int
    width: int
    """nanoGPT's shape with the same number of parameters."""
    steps: int

    @property
    def step_tokens(self) -> int:
        return self.seq_len * self.sequences


SETUPS = {
    "cpu": Setup("10M", 256, 32, 8192, 6, 5, 320, steps=14),
    "cuda": Setup("124M", 1024, 32, 50257, 12, 12, 768, steps=60),
    "124M x 64": Setup("124M", 1024, 64, 50257, 12, 12, 768, steps=60),
    "350M x 32": Setup("350M", 1024, 32, 50257, 24, 16, 1024, steps=40),
}
"""By device, the default; the others are those of recipe.py."""


@dataclass
class Contender:
    name: str
    command: list[str]
    run: Path | None = None
    """ramlet's run folder; None for nanoGPT, whose output is parsed."""
    error: str = ""
    rates: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)

    def once(self, setup: Setup, device: str) -> None:
        if self.run is not None:
            shutil.rmtree(self.run, ignore_errors=True)
        try:
            measurement = measure(self.command)
        except CommandFailed as failure:
            self.error = str(failure).strip().splitlines()[-1]
            return
        if self.run is None:
            times = [float(found) for found in re.findall(r"^iter \d+: .*time ([\d.]+)ms", measurement.output, re.M)]
            self.rates.append(setup.step_tokens / median(times[SKIPPED:]) * 1000)
            reserved = json.loads(measurement.output.strip().splitlines()[-1])["reserved"]
        else:
            lines = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
            speeds = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
            self.rates.append(median(speeds[SKIPPED:]))
            memory = json.loads((self.run / "stats.json").read_text())["memory"]
            reserved = memory["device_peak"]
            self.predicted.append(memory["predicted"])
        self.peaks.append(measurement.peak_rss if device == "cpu" else reserved)

    @property
    def rate(self) -> float:
        return max(self.rates, default=0.0)

    @property
    def peak(self) -> int:
        return max(self.peaks, default=0)


def synthetic(setup: Setup, folder: Path) -> None:
    """Writes ids for both: nanoGPT's train.bin, val.bin and meta.pkl, and a .npy file."""
    folder.mkdir(parents=True, exist_ok=True)
    # The largest id comes first: for an array without a tokenizer it decides the size of the vocabulary.
    count, state, ids = 2_000_000, 12345, bytearray(struct.pack("<H", setup.vocab - 1))
    for _ in range(count - 1):
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        # The minimum of two draws: low ids are more frequent, as in text.
        ids += struct.pack("<H", min((state >> 33) % setup.vocab, (state >> 17) % setup.vocab))
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(ids)
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": setup.vocab + -setup.vocab % 64}))
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({count},), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    (folder / "ids.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + ids)


def contenders(setup: Setup, device: str, nanogpt: Path, data: Path, runs: Path) -> list[Contender]:
    common = [
        *(f"--device={device}", f"--dataset={data}", f"--out_dir={runs / 'nanogpt'}", f"--block_size={setup.seq_len}"),
        *(f"--n_layer={setup.layers}", f"--n_head={setup.heads}", f"--n_embd={setup.width}", "--dropout=0.0"),
        *(f"--max_iters={setup.steps}", "--eval_interval=1000000", "--eval_iters=1", "--log_interval=1"),
        *("--bias=False", "--warmup_iters=10", f"--compile={device == 'cuda'}"),
    ]
    worker = [sys.executable, str(HERE / "nanogpt_worker.py"), str(nanogpt), *common]
    ours = [
        *(sys.executable, "-m", "ramlet", "train", "--data", str(data / "ids.npy"), "--params", setup.params),
        *("--seq-len", str(setup.seq_len), "--batch-size", str(setup.sequences), "--device", device),
        *("--max-steps", str(setup.steps), "--eval-every", "0", "--sample-every", "0", "--log-every", "1"),
        *("--checkpoint-every", "0", "--eval-tokens", str(setup.seq_len), "--quiet"),
    ]

    def ramlet(name: str, *more: str, optimizer: str = "adamw") -> Contender:
        out = runs / name.replace(" ", "-")
        return Contender(name, [*ours, "--out", str(out), "--optimizer", optimizer, *more], out)

    whole = [f"--batch_size={setup.sequences}", "--gradient_accumulation_steps=1"]
    found = [Contender("nanoGPT", [*worker, *whole])]
    if device == "cpu":
        parts = [f"--batch_size={setup.sequences // 4}", "--gradient_accumulation_steps=4"]
        found.append(Contender("nanoGPT, 4 micro-batches", [*worker, *parts]))
        found += [
            ramlet("ramlet"),
            ramlet("ramlet fp32", "--precision", "fp32"),
            ramlet("ramlet 600MB", "--memory", "600MB"),
        ]
    else:
        found += [ramlet("ramlet"), ramlet("ramlet 8GB", "--memory", "8GB"), ramlet("ramlet 4GB", "--memory", "4GB")]
        found.append(ramlet("ramlet 8-bit", "--memory", "8GB", optimizer="adamw8bit"))
        # nanoGPT has no QK-norm, and multiplies in bf16.
        found.append(ramlet("ramlet without QK-norm", "--no-qk-norm"))
        found.append(ramlet("ramlet fp8", "--precision", "fp8"))
    return found


def bars(device: str, found: dict[str, Contender]) -> list[Check]:
    peer, own = found["nanoGPT"], found["ramlet"]
    share = own.peak / peer.peak
    sides = f"{own.rate:,.0f} / {peer.rate:,.0f} tokens/s"
    memory = f"{megabytes(own.peak)} / {megabytes(peer.peak)}"
    checks = [check("tokens/s vs. nanoGPT", f"{own.rate / peer.rate:.2f}x ({sides})", ">= 1", own.rate >= peer.rate)]
    if device == "cpu":
        return [*checks, check("peak RSS / nanoGPT's", f"{share:.0%} ({memory})", "<= 60%", share <= 0.6)]
    small = found["ramlet 8GB"]
    ratio = f"{small.rate / peer.rate:.2f}x ({small.rate:,.0f} / {peer.rate:,.0f} tokens/s)"
    return [
        *checks,
        check("peak memory / nanoGPT's", f"{share:.0%} ({memory})", "<= 50%", share <= 0.5),
        check("--memory 8GB, tokens/s vs. nanoGPT", ratio, ">= 0.9", small.rate >= 0.9 * peer.rate),
        check("--memory 8GB, peak", megabytes(small.peak), "<= 8,000 MB", small.peak <= 8_000_000_000),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--steps", type=int, help="steps of a run")
    parser.add_argument("--no-results", action="store_true")
    parser.add_argument("--out", type=Path, help="where to write the results, instead of benchmarks/results/")
    given = parser.parse_args()
    setup = SETUPS[given.device]
    if given.steps:
        setup = Setup(**{**vars(setup), "steps": given.steps})
    data = DATA / f"train-{setup.vocab}"
    if not (data / "ids.npy").exists():
        synthetic(setup, data)
    with tempfile.TemporaryDirectory(prefix="ramlet-bench-") as folder:
        found = contenders(setup, given.device, given.nanogpt.resolve(), data, Path(folder))
        for number in range(given.repeats):
            for contender in found:
                print(f"{number + 1}/{given.repeats} {contender.name}", file=sys.stderr, flush=True)
                contender.once(setup, given.device)
    rows = [
        [
            each.name,
            f"{each.rate:,.0f}" if each.rates else f"failed: {each.error[:150]}",
            megabytes(each.peak),
            megabytes(each.predicted[-1]) if each.predicted else "",
        ]
        for each in found
    ]
    what = f"{setup.params} parameters, {setup.sequences} x {setup.seq_len} tokens per step, {given.device}"
    print(f"\n{what}\n")
    print(markdown_table(["", "tokens/s", "peak", "predicted"], rows))
    checks = bars(given.device, {each.name: each for each in found})
    print_checks(checks)
    if not given.no_results:
        target = given.out or HERE / "results" / f"{datetime.date.today()}-train-{given.device}.json"
        report: dict[str, Any] = {
            "machine": machine() | _gpu(given.device),
            "setup": vars(setup),
            "contenders": [
                {"name": each.name, "tokens_per_second": each.rates, "peak": each.peaks, "predicted": each.predicted}
                for each in found
            ],
            "checks": checks,
        }
        target.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(each["met"] for each in checks) else 1


def _gpu(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return {"gpu": subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()}


if __name__ == "__main__":
    sys.exit(main())
