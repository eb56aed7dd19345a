"""What the native engine computes: the losses of the torch engine (`parity`), and always the same bits (`bits`).

`parity` trains a small model in fp32 with both engines, from the same initial weights, on the same batches.

`bits` trains a whole run (Muon or its 8-bit form, dropout, averaging, evaluation, samples) again and again with other
threads, budgets and vectors (RAMLET_VECTORS), uninterrupted and killed (SIGKILL) at random moments and resumed. The
SHA-256 of all files of weights and states must be those of the first run, and so must losses and samples.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import time
from functools import partial
from itertools import product
from pathlib import Path

from bpe_train import Check, check
from measure import markdown_table, measure
from ramlet.engines import OPTIMIZERS
from recipe_race import scratch
from recipe_runs import Ramlet, Record, Records, metrics
from recipe_step import SAME_LOSS
from small_text import dataset

APART = 1e-3
RATES = {"adamw": 1e-3, "adamw8bit": 1e-3, "muon": 6e-3, "muon8bit": 6e-3}
"""Learning rates: given, because the default is another one with --init-from. Those of a new model of this size are
higher."""
VECTORS = ("avx512bf16", "avx512", "avx2", "portable")
LARGEST = "4GB"
TIMES = ("tokens_per_second", "memory", "seconds", "time")


def data_folder() -> Path:
    return dataset(450_000, 1000)


def parity(given: argparse.Namespace, records: Records) -> None:
    now, data = Ramlet.now(), data_folder()
    for optimizer in given.optimizers:

        def make(optimizer: str = optimizer) -> Record:
            with scratch() as folder:
                words = _training(data)
                # A step that changes nothing: the initial weights of all.
                once = (
                    "--params",
                    given.params,
                    "--engine",
                    "native",
                    "--max-steps",
                    1,
                    "--lr",
                    1e-30,
                    "--warmup",
                    0,
                    "--weight-decay",
                    0,
                )
                measure(now.command("train", "--out", folder / "first", *words, *once), now.environment)
                words += ["--init-from", folder / "first", "--lr", RATES[optimizer], "--optimizer", optimizer]
                words += ["--max-steps", given.steps]
                found = {engine: _losses(now, folder / engine, engine, words) for engine in ENGINES}
            apart = [abs(a - b) for a, b in zip(found["native"][0], found["torch"][0], strict=True)]
            worst = max(range(len(apart)), key=apart.__getitem__)
            return {
                "apart": apart[worst],
                "at_step": worst + 1,
                "first_apart": apart[0],
                "mean_apart": sum(apart) / len(apart),
                "val": {engine: losses[1] for engine, losses in found.items()},
                "losses": found["native"][0],
            }

        key = {"bar": "parity", "contender": optimizer, "code": now.code, "steps": given.steps, "params": given.params}
        records.once(make, device="cpu", **key)


ENGINES = ("native", "torch")


def _training(data: Path) -> list[object]:
    return [
        *("--data", data, "--device", "cpu", "--seq-len", 64, "--batch-size", 8, "--threads", 1),
        *("--precision", "fp32", "--weights", "fp32", "--log-every", 1, "--eval-every", 0, "--sample-every", 0),
        *("--checkpoint-every", 0, "--quiet"),
    ]


def _losses(now: Ramlet, out: Path, engine: str, words: list[object]) -> tuple[list[float], float]:
    """Of every step, and of the validation split at the end."""
    measure(now.command("train", "--out", out, "--engine", engine, *words), now.environment)
    lines = metrics(out)
    losses = [line["loss"] for line in lines if "loss" in line]
    return losses, next(line["eval"]["val"]["loss"] for line in reversed(lines) if "eval" in line)


def report_parity(records: list[Record]) -> tuple[str, list[Check]]:
    rows, checks = [], []
    for line in records:
        val = line["val"]
        numbers = [f"{line[name]:.1e}" for name in ("first_apart", "mean_apart", "apart")]
        losses = [f"{val[engine]:.5f}" for engine in ENGINES]
        rows.append([f"{line['contender']}, {line['steps']} steps", *numbers, str(line["at_step"]), *losses])
        claim = f"{line['contender']}: largest difference of the losses of a step"
        checks.append(check(claim, f"{line['apart']:.1e}", f"<= {APART}", line["apart"] <= APART))
        share = abs(val["native"] / val["torch"] - 1)
        claim = f"{line['contender']}: difference of the validation losses"
        checks.append(check(claim, f"{share:.2%}", f"<= {SAME_LOSS:.1%}", share <= SAME_LOSS))
    header = ["optimizer", "first step", "mean", "largest", "at step", "native, validation", "torch, validation"]
    return markdown_table(header, rows), checks


def bits_command(data: Path, out: Path, optimizer: str, precision: str, memory: str, threads: int) -> list[str]:
    """A whole run: everything that has an effect on the result."""
    return Ramlet.now().command(
        *("train", "--data", data, "--out", out, "--engine", "native", "--device", "cpu", "--params", "60k"),
        *("--seq-len", 48, "--batch-size", 12, "--max-steps", 12, "--optimizer", optimizer, "--precision", precision),
        *("--weights", "fp32", "--dropout", 0.1, "--average", 0.5, "--kv-groups", 2, "--document-mask", "--shift"),
        *("--eval-every", 4, "--eval-tokens", 2000, "--checkpoint-every", 2, "--sample-every", 6, "--log-every", 1),
        *("--sample-tokens", 12, "--memory", memory, "--threads", threads, "--quiet"),
    )


def result_of(out: Path) -> dict[str, str]:
    """The SHA-256 of every file of tensors, and of the journal without times."""
    files = sorted(out.rglob("*.safetensors"))
    found = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    lasting = [{name: value for name, value in line.items() if name not in TIMES} for line in metrics(out)]
    return {**found, "metrics.jsonl": hashlib.sha256(json.dumps(lasting).encode()).hexdigest()}


def smallest(data: Path, folder: Path, optimizer: str, precision: str, threads: int) -> int:
    """The budget in megabytes that the refusal of 2 MB names."""
    now = Ramlet.now()
    command = bits_command(data, folder / "refused", optimizer, precision, "2MB", threads)
    done = subprocess.run(command, env={**os.environ, **now.environment}, capture_output=True, text=True, check=False)
    named = re.search(r"needs at least (\d+)MB", done.stderr)
    if named is None:
        raise SystemExit(f"2 MB was not refused: {done.stderr.strip()}")
    return int(named[1])


def bits(given: argparse.Namespace, records: Records) -> None:
    now, data = Ramlet.now(), data_folder()
    for optimizer, precision in product(given.optimizers, given.precisions):
        kind = {"bar": "bits", "contender": f"{optimizer}, {precision}", "code": now.code}
        for vectors, threads, share in product(given.vectors, (1, 2, 4), (0.0, 1.0, 1.5)):
            how = {"vectors": vectors, "threads": threads, "share": share, "kills": 0}
            records.once(partial(_whole, data, optimizer, precision, **how), device="cpu", **kind, **how)
        rng = random.Random(f"{optimizer} {precision} {given.seed}")
        done = number = 0
        while done < given.kills and number < 3 * given.kills:
            how = {"vectors": rng.choice(given.vectors), "threads": rng.choice((1, 2, 4))}
            how |= {"share": rng.choice((0.0, 1.0, 1.1)), "kills": 5, "number": number, "seed": given.seed}
            made = records.once(partial(_whole, data, optimizer, precision, **how), device="cpu", **kind, **how)
            done, number = done + made["killed"], number + 1


def _whole(
    data: Path,
    optimizer: str,
    precision: str,
    *,
    vectors: str,
    threads: int,
    share: float,
    kills: int,
    number: int = 0,
    seed: int = 0,
) -> Record:
    """A run with a budget of `share` times the smallest (0: plenty), killed `kills` times."""
    environment = {**os.environ, **Ramlet.now().environment, "RAMLET_VECTORS": vectors}
    rng = random.Random(f"{optimizer} {precision} {seed} {number}")
    with scratch() as folder:
        least = smallest(data, folder, optimizer, precision, threads) if share else 0
        memory = f"{int(least * share)}MB" if share else LARGEST
        out = folder / "run"
        command = bits_command(data, out, optimizer, precision, memory, threads)
        killed = 0
        for _ in range(kills):
            killed += _kill(command, environment, out, rng)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"killed": killed, "memory": memory, "error": done.stderr.strip()[-400:]}
        return {"killed": killed, "memory": memory, "result": result_of(out)}


def _kill(command: list[str], environment: dict[str, str], out: Path, rng: random.Random) -> bool:
    """Runs it until it has written a number of steps or files, and a little longer; whether it was killed in time."""
    journal, wanted = out / "metrics.jsonl", rng.randint(0, 16)
    before = _lines(journal)
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and _lines(journal) < min(before + wanted, 18):
            time.sleep(0.003)
        time.sleep(rng.random() * 0.2)
        hit = process.poll() is None
        process.kill()
    return hit


def _lines(journal: Path) -> int:
    try:
        return journal.read_bytes().count(b"\n")
    except OSError:
        return 0


def report_bits(records: list[Record]) -> tuple[str, list[Check]]:
    rows, checks = [], []
    for kind in sorted({line["contender"] for line in records}):
        lines = [line for line in records if line["contender"] == kind]
        failed = [line for line in lines if "error" in line]
        results = [line for line in lines if "result" in line]
        wanted = results[0]["result"] if results else {}
        other = [line for line in results if line["result"] != wanted]
        kills = sum(line["killed"] for line in lines)
        used = ", ".join(name for name in VECTORS if any(line["vectors"] == name for line in lines))
        budgets = len({line["memory"] for line in lines})
        rows.append([kind, str(len(lines)), used, str(budgets), str(kills), wanted.get("model.safetensors", "-")[:16]])
        for line in [*failed, *other][:5]:
            how = {name: line[name] for name in ("vectors", "threads", "memory", "killed")}
            differ = [name for name in wanted if line.get("result", {}).get(name) != wanted[name]]
            rows.append([f"{kind}: {how}", line.get("error", f"differs: {', '.join(differ[:4])}"), "", "", "", ""])
        claim = f"{kind}: runs with other bits, or that failed"
        checks.append(check(claim, f"{len(other) + len(failed)} of {len(lines)}", "0", not other and not failed))
    return markdown_table(["optimizer, precision", "runs", "vectors", "budgets", "kills", "SHA-256"], rows), checks


def add_options(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def names(text: str) -> list[str]:
        return text.split(",")

    about = "500 steps in fp32 with both engines: the same losses"
    parser = commands.add_parser("parity", help=about, description=about)
    parser.set_defaults(run=parity)
    parser.add_argument("--optimizers", type=names, default=list(OPTIMIZERS), help=f"[default: {','.join(OPTIMIZERS)}]")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--params", default="200k")
    about = "one run with any threads, budget and vectors, killed and resumed: the same bits"
    parser = commands.add_parser("bits", help=about, description=about)
    parser.set_defaults(run=bits)
    parser.add_argument("--optimizers", type=names, default=["muon", "muon8bit"], help="[default: muon,muon8bit]")
    parser.add_argument("--precisions", type=names, default=["fp32", "bf16"], help="[default: fp32,bf16]")
    parser.add_argument("--vectors", type=names, default=list(VECTORS), help=f"[default: {','.join(VECTORS)}]")
    parser.add_argument("--kills", type=int, default=50, help="for each optimizer and precision [default: 50]")
    parser.add_argument("--seed", type=int, default=1)
