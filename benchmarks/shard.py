"""Sharded training: a model three times as large as the budget of each of four ranks, and the speed of runs that fit.

    python benchmarks/shard.py memory                                     # CPU, four gloo processes
    python benchmarks/shard.py speed ../before/.venv/bin/python           # two ranks that fit: as fast as before?
    python benchmarks/shard.py speed PYTHON --device cuda                 # one process on a GPU

`memory`: the smallest budget in which one process can train the model (as `ramlet plan` names it, with everything that
is resident: Python and PyTorch too) is at least three times the budget of a rank. Four ranks train within it, by the
resident memory of each process, sampled from outside; the loss is that of one process with plenty of memory; each rank
needs what was predicted for it. Then all ranks are killed after a checkpoint and two of them go on.

`speed`: tokens per second of the median step, versions in turn, the best of --repeats of each.

Prints Markdown tables and the checks; saves everything, dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bpe_train import HERE, Check, check, print_checks
from measure import descendants, high_water_mark, machine, markdown_table, megabytes
from ramlet.engines import OPTIMIZERS
from ramlet.errors import BudgetError
from ramlet.training.propose import plan
from train import SETUPS, Setup, synthetic

TIMES = 3.0
"""How much larger than a rank's budget the need of a single process is."""
RANKS, FEWER = 4, 2
WITHIN = 0.05
ROUNDING = 1e-4
"""Between the losses of the same steps: fp32 sums in another order."""
NOISE = 1.05
VOCABULARY, SEQ_LEN, SEQUENCES, STEPS, KILLED_AFTER = 2048, 64, 4, 6, 3
HEADS = 8
COMMON = [
    *(
        "--engine",
        "torch",
        "--device",
        "cpu",
        "--precision",
        "fp32",
        "--seq-len",
        str(SEQ_LEN),
        "--batch-size",
        str(SEQUENCES),
    ),
    *("--log-every", "1", "--sample-every", "0", "--eval-tokens", "256", "--threads", "1", "--seed", "3", "--json"),
]


class Run:
    """`ramlet train` on some ranks, with the highest resident memory of each, sampled from outside."""

    def __init__(self, ranks: int, arguments: list[str], python: str = sys.executable) -> None:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        self.command = [python, *launch, "-m", "ramlet", "train", *arguments]
        self.peaks: dict[int, int] = {}
        self.code = 0

    def wait(self, *, until: Path | None = None) -> Run:
        """Runs to the end; or, when this file exists, is killed, all of its processes at once."""
        with tempfile.TemporaryFile("w+") as errors:
            child = subprocess.Popen(
                self.command, stdout=subprocess.DEVNULL, stderr=errors, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
            known: dict[int, int] = {}
            while child.poll() is None:
                for process in descendants(child.pid):
                    rank = known.get(process) if process in known else _rank_of(process)
                    if rank is not None:
                        known[process] = rank
                        self.peaks[rank] = max(self.peaks.get(rank, 0), high_water_mark(process))
                if until is not None and until.exists():
                    for process in descendants(child.pid):
                        os.kill(process, signal.SIGKILL)
                    child.wait()
                    return self
                time.sleep(0.02)
            self.code = child.returncode
            if self.code:
                errors.seek(0)
                sys.exit(f"{' '.join(self.command)}\nended with {self.code}\n{errors.read()[-3000:]}")
        return self


def _rank_of(process: int) -> int | None:
    """The rank of a process of ramlet; None for the launcher and others."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        environment = dict(
            each.partition(b"=")[::2] for each in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        )
    except OSError:
        return None
    launcher = b"torch.distributed.run" in words
    return None if launcher or b"train" not in words else int(environment.get(b"RANK", b"0"))


def losses(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def smallest(config: Path, optimizer: str, ranks: int) -> int:
    """The budget of each rank that `ramlet plan` names."""
    try:
        plan(
            config=config, optimizer=optimizer, ranks=ranks, memory=10**6, device="cpu", engine="torch", threads=1,
            precision="fp32", seq_len=SEQ_LEN, batch_size=SEQUENCES,
        )  # fmt: skip
    except BudgetError as error:
        return int(error.facts["needed"])
    raise AssertionError("a megabyte is enough")


def memory(options: argparse.Namespace, place: Path) -> tuple[str, list[Check], Any]:
    synthetic(Setup("", SEQ_LEN, SEQUENCES, VOCABULARY, options.layers, HEADS, options.width, STEPS), place)
    config = place / "model.json"
    shape = {
        "layers": options.layers,
        "width": options.width,
        "heads": HEADS,
        "vocab_size": VOCABULARY,
        "context": SEQ_LEN,
    }
    config.write_text(json.dumps(shape))
    alone = smallest(config, options.optimizer, 1)
    needed = smallest(config, options.optimizer, RANKS)
    budget = max(needed, int(alone / TIMES))
    print(f"one process needs {alone:,}, each of {RANKS} ranks {needed:,}: their budget is {budget:,}", file=sys.stderr)
    given = [*COMMON, "--data", str(place / "ids.npy"), "--config", str(config), "--optimizer", options.optimizer]
    given += ["--max-steps", str(STEPS), "--checkpoint-every", str(KILLED_AFTER)]

    def run(ranks: int, name: str, allowed: int, until: Path | None = None) -> Run:
        return Run(ranks, [*given, "--out", str(place / name), "--memory", str(allowed)]).wait(until=until)

    whole = run(RANKS, "whole", budget)
    stats = json.loads((place / "whole" / "stats.json").read_text())
    run(RANKS, "killed", budget, place / "killed" / "checkpoints" / f"step_{KILLED_AFTER:06}" / "state.json")
    fewer = int(smallest(config, options.optimizer, FEWER) * 1.1)
    resumed = run(FEWER, "killed", fewer)
    again = json.loads((place / "killed" / "stats.json").read_text())
    reference = run(1, "alone", 2 * alone, None)
    curves = {name: losses(place / name) for name in ("alone", "whole", "killed")}
    apart = {
        name: max(abs(one - other) for one, other in zip(curves["alone"], curve, strict=True))
        for name, curve in curves.items()
    }
    rows, checks = [], []
    for name, measured, found, allowed in (
        ("4 ranks", whole, stats, budget),
        ("2 ranks, resumed", resumed, again, fewer),
    ):
        for rank, told in enumerate(found["memory"]["ranks"]):
            peak = measured.peaks[rank]
            off = told["predicted"] / peak - 1
            rows.append(
                [f"{name}: {rank}", megabytes(allowed), megabytes(peak), megabytes(told["predicted"]), f"{off:+.1%}"]
            )
            checks.append(
                check(f"{name}: rank {rank} within its budget", megabytes(peak), megabytes(allowed), peak <= allowed)
            )
            checks.append(
                check(f"{name}: prediction of rank {rank}", f"{off:+.1%}", f"{WITHIN:.0%}", abs(off) <= WITHIN)
            )
    rows.append(["one process", megabytes(2 * alone), megabytes(reference.peaks[0]), "", ""])
    checks.append(
        check("need of one process / budget of a rank", f"{alone / budget:.2f}", f">= {TIMES}", alone >= TIMES * budget)
    )
    checks += [
        check(f"{name}: largest difference to the loss of one process", f"{far:.1e}", f"{ROUNDING}", far <= ROUNDING)
        for name, far in apart.items()
        if name != "alone"
    ]
    table = markdown_table(["rank", "budget", "peak RSS", "predicted", ""], rows)
    return table, checks, {"curves": curves, "stats": stats, "resumed": again, "alone": alone, "budget": budget}


def step_rate(out: Path) -> float:
    """Tokens per second of the median step, without the first steps."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median([line["tokens_per_second"] for line in lines if "tokens_per_second" in line][3:])


def speed(options: argparse.Namespace, place: Path) -> tuple[str, list[Check], Any]:
    setup = SETUPS[options.device]
    synthetic(setup, place)
    ranks = 2 if options.device == "cpu" else 1
    given = [
        *("--data", str(place / "ids.npy"), "--params", setup.params, "--seq-len", str(setup.seq_len)),
        *("--batch-size", str(setup.sequences), "--device", options.device, "--engine", "torch", "--log-every", "1"),
        *("--max-steps", "14" if options.device == "cpu" else "60", "--eval-every", "0", "--sample-every", "0"),
        *("--checkpoint-every", "0", "--eval-tokens", "256", "--json", *(("--threads", "1") if ranks > 1 else ())),
    ]
    pythons = {"before": str(Path(options.before).absolute()), "now": options.now}
    rates: dict[str, dict[str, list[float]]] = {}
    for optimizer in options.optimizers:
        found = rates[optimizer] = {"before": [], "now": []}
        for turn in range(options.repeats):
            for version in ("before", "now") if turn % 2 else ("now", "before"):
                out = place / f"{optimizer}-{version}-{turn}"
                Run(ranks, [*given, "--optimizer", optimizer, "--out", str(out)], pythons[version]).wait()
                found[version].append(step_rate(out))
        print(optimizer, found, file=sys.stderr)
    rows, checks = [], []
    for optimizer, found in rates.items():
        before, now = max(found["before"]), max(found["now"])
        rows.append([optimizer, f"{before:,.0f}", f"{now:,.0f}", f"{before / now:.3f}"])
        where = f"{ranks} {'ranks' if ranks > 1 else 'process'} on {options.device}"
        claim = f"{optimizer}, {where}: time of a step, now / before"
        checks.append(check(claim, f"{before / now:.3f}", f"<= {NOISE}", before / now <= NOISE))
    return markdown_table(["optimizer", "before, tokens/s", "now, tokens/s", "time"], rows), checks, rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-results", action="store_true", help="only print, save nothing")
    commands = parser.add_subparsers(dest="bar", required=True)
    sizes = commands.add_parser("memory")
    sizes.add_argument("--layers", type=int, default=96)
    sizes.add_argument("--width", type=int, default=512)
    sizes.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    times = commands.add_parser("speed")
    times.add_argument("before", help="the interpreter of the earlier version")
    times.add_argument("--now", default=sys.executable, help="the interpreter of this version")
    times.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    times.add_argument("--repeats", type=int, default=5)
    times.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=["adamw", "muon"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table, checks, found = {"memory": memory, "speed": speed}[options.bar](options, Path(folder))
    print(f"\n{table}\n")
    print_checks(checks)
    if not options.no_results:
        target = HERE / "results" / f"{datetime.date.today()}-shard-{options.bar}.json"
        target.write_text(json.dumps({"machine": machine(), "found": found, "checks": checks}, indent=1) + "\n")
    sys.exit(0 if all(each["met"] for each in checks) else 1)


if __name__ == "__main__":
    main()
