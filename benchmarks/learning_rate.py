"""How good the default learning rate is: the validation loss after a run, for learning rates around it.

    python benchmarks/learning_rate.py                       # CPU: the small models
    python benchmarks/learning_rate.py --device cuda --jobs 6

Models of increasing size are trained on the same text (`code` of corpora.py), each with ramlet's default rate, with a
quarter to eight times of it, and with the formula in ln(parameters) of Kaplan et al. (2020). Each run is the real
command. Prints a Markdown table; saves everything, dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bpe_train import HERE, check, print_checks
from corpora import DATA, corpus
from measure import machine, markdown_table
from ramlet.training.recipe import default_rate
from train import _gpu

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
RUNS = {
    "cpu": [(300_000, 128, 8, 600), (1_000_000, 128, 16, 300), (1_000_000, 256, 8, 1000)],
    "cuda": [
        *((300_000, 128, 8, 600), (1_000_000, 128, 16, 300), (1_000_000, 256, 8, 1800)),
        *((3_000_000, 256, 32, 2000), (10_000_000, 256, 32, 300), (10_000_000, 256, 32, 2000)),
        *((30_000_000, 512, 32, 1000), (124_000_000, 512, 32, 600)),
    ],
}
"""Parameters, tokens per sequence, sequences per step, steps."""


def kaplan(parameters: int) -> float:
    return 0.003239 - 0.0001395 * math.log(parameters)


def vocabulary(params: int) -> int:
    return 1024 if params < 1e6 else 4096 if params < 1e7 else 16384


def dataset(vocab: int) -> Path:
    """A dataset of the first 200 MB: enough that no run here reads a token twice."""
    out = DATA / f"rates-{vocab}"
    if not (out / "dataset_metadata.json").exists():
        text = DATA / "rates.txt"
        with corpus("code").open("rb") as whole, text.open("wb") as part:
            part.write(whole.read(200_000_000))
        tokenizer = [*("tokenizer", "train", text, "--vocab-size", vocab), "--special-token", "<|endoftext|>"]
        ramlet(*tokenizer, "--out", DATA / f"rates-tokenizer-{vocab}")
        prepare = ["prepare", text, "--tokenizer", DATA / f"rates-tokenizer-{vocab}", "--out", out]
        ramlet(*prepare, "--document-bytes", 65536, "--val-fraction", 0.02)
    return out


def ramlet(*words: Any) -> None:
    command = [sys.executable, "-m", "ramlet", *map(str, words), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def loss(run: tuple[int, int, int, int], rate: float, device: str) -> float:
    """The final validation loss."""
    found = trained(dataset(vocabulary(run[0])), *run, device, "--lr", rate)
    print(f"{run[0]:,} parameters, {run[3]:,} x {run[2]} x {run[1]}, rate {rate:.2e}: {found:.4f}", file=sys.stderr)
    return found


def trained(data: Path, params: int, seq_len: int, batch: int, steps: int, device: str, *more: Any) -> float:
    """Trains a model and returns its validation loss."""
    with tempfile.TemporaryDirectory(prefix="ramlet-loss-") as folder:
        out = Path(folder, "run")
        size = ["--params", params, "--seq-len", seq_len, "--batch-size", batch, "--max-steps", steps]
        often = ["--eval-every", steps, "--sample-every", 0, "--checkpoint-every", steps]
        ramlet("train", "--data", data, "--out", out, *size, *often, "--device", device, *more)
        return float(json.loads((out / "stats.json").read_text())["scores"]["val"]["loss"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    parser.add_argument("--largest", type=float, default=math.inf, help="skip models with more parameters")
    parser.add_argument("--no-results", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    runs = [run for run in RUNS[given.device] if run[0] <= given.largest]
    for params in sorted({run[0] for run in runs}):
        dataset(vocabulary(params))
    asked = [(run, rate) for run in runs for rate in (*(f * default_rate(run[0]) for f in FACTORS), kaplan(run[0]))]
    asked.sort(key=lambda one: -one[0][0] * one[0][1] * one[0][2] * one[0][3])  # long runs first
    with ThreadPoolExecutor(given.jobs) as pool:
        losses = dict(zip(asked, pool.map(lambda one: loss(*one, given.device), asked), strict=True))
    rows, kept, worst = [], [], 0.0
    for run in runs:
        own, line = default_rate(run[0]), kaplan(run[0])
        found = {rate: value for (one, rate), value in losses.items() if one == run}
        best = min(found, key=lambda rate: found[rate])
        worst = max(worst, found[own] / found[best] - 1)
        rows.append(
            [
                f"{run[0] / 1e6:g}M, {run[3]:,} x {run[2]} x {run[1]}",
                f"{own:.2e}",
                *(f"{found[factor * own]:.3f}" for factor in FACTORS),
                f"{found[line]:.3f} ({line:.2e})",
            ]
        )
        kept.append({"run": run, "default": own, "best": best, "losses": {f"{k:.3e}": v for k, v in found.items()}})
    print(markdown_table(["model, steps", "default", *(f"x {factor:g}" for factor in FACTORS), "Kaplan"], rows))
    checks = [check("loss of the default above the best in its row", f"{worst:.1%}", "3%", worst <= 0.03)]
    print_checks(checks)
    if not given.no_results:
        target = given.out or HERE / "results" / f"{datetime.date.today()}-learning_rate-{given.device}.json"
        report = {"machine": machine() | _gpu(given.device), "runs": kept, "checks": checks}
        target.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(each["met"] for each in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
