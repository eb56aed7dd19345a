"""Runs two versions of ramlet on the same tasks, in turn: did a change make anything slower?

    git worktree add ../before COMMIT && make -C ../before build
    python benchmarks/versions.py ../before/.venv/bin/python --repeats 5

The commands are those of bpe_train.py, encode.py, prepare.py and train.py, without the other tools: tokenizers of
32,256 tokens, ids and datasets of two corpora, and a model of 10M parameters on the CPU (for `train`, the tokens per
second of its median step count). The order changes from round to round, and the best of --repeats of each version
counts, because other work on the machine can only add time. Prints a Markdown table and checks whether anything is
slower than noise explains; saves everything, dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bpe_train import HERE, check, print_checks
from corpora import corpus
from measure import machine, markdown_table, measure, warm
from prepare_inputs import jsonl
from train import SETUPS, synthetic

NOISE = 1.05
"""The best times of the same version differ by up to 4% on two shared cores."""


@dataclass
class Work:
    """A command without its `--out`, and its times by version."""

    name: str
    command: list[str]
    seconds: Callable[[Path], float] | None = None
    took: dict[str, list[float]] = field(default_factory=lambda: {"before": [], "now": []})
    cpu: dict[str, list[float]] = field(default_factory=lambda: {"before": [], "now": []})

    def best(self, version: str) -> float:
        return min(self.took[version])


def step_seconds(out: Path) -> float:
    """Seconds of the median step of a run, without the first steps."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line][3:]
    return 32 * 256 / statistics.median(rates)


def works(place: Path, only: str) -> list[Work]:
    setup = SETUPS["cpu"]
    synthetic(setup, place)
    train = [
        *("train", "--data", str(place / "ids.npy"), "--params", setup.params, "--seq-len", str(setup.seq_len)),
        *("--batch-size", str(setup.sequences), "--device", "cpu", "--max-steps", "14", "--eval-every", "0"),
        *("--sample-every", "0", "--log-every", "1", "--checkpoint-every", "0", "--eval-tokens", "256", "--quiet"),
    ]
    found = []
    for name in ("nat", "code"):
        text, documents = corpus(name), jsonl(name)
        warm(text)
        warm(documents)
        found += [
            Work(f"tokenizer train, {name}", ["tokenizer", "train", str(text), "--vocab-size", "32256"]),
            Work(f"tokenizer encode, {name}", ["tokenizer", "encode", str(text), "--tokenizer", "gpt2"]),
            Work(f"prepare, {name}", ["prepare", str(documents), "--tokenizer", "gpt2"]),
        ]
    found.append(Work("train, bf16", train, step_seconds))
    found.append(Work("train, fp32", [*train, "--precision", "fp32"], step_seconds))
    return [work for work in found if only in work.name]


def run(work: Work, version: str, python: str, place: Path) -> None:
    out = place / "out"
    command = [python, "-m", "ramlet", *work.command, "--out", str(out)]
    measured = measure(command)
    work.took[version].append(work.seconds(out) if work.seconds else measured.seconds)
    work.cpu[version].append(measured.cpu_seconds)
    shutil.rmtree(out) if out.is_dir() else out.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the interpreter of the earlier version")
    parser.add_argument("--now", default=sys.executable, help="the interpreter of this version")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="only tasks whose name contains this")
    parser.add_argument("--no-results", action="store_true", help="only print, save nothing")
    options = parser.parse_args()
    pythons = {"before": str(Path(options.before).absolute()), "now": options.now}
    with tempfile.TemporaryDirectory() as folder:
        found = works(Path(folder), options.only)
        for work in found:
            for turn in range(options.repeats):
                for version in ("before", "now") if turn % 2 else ("now", "before"):
                    run(work, version, pythons[version], Path(folder))
            print(work.name, work.took, file=sys.stderr)
    rows = [
        [
            work.name,
            *(f"{work.best(version):.3f} s" for version in pythons),
            f"{work.best('now') / work.best('before'):.3f}",
            f"{min(work.cpu['now']) / min(work.cpu['before']):.3f}",
        ]
        for work in found
    ]
    print(markdown_table(["task", "before", "now", "ratio", "ratio of CPU seconds"], rows))
    checks = []
    for work in found:
        now, before = work.best("now"), work.best("before")
        claim = f"{work.name}: time / time before ({now:.3f} / {before:.3f} s)"
        checks.append(check(claim, round(now / before, 3), f"<= {NOISE}", now <= NOISE * before))
    if not options.no_results:
        kept = {"machine": machine(), "works": [vars(work) | {"seconds": None} for work in found], "checks": checks}
        target = HERE / "results" / f"{datetime.date.today()}-versions.json"
        target.write_text(json.dumps(kept, indent=1) + "\n")
    print_checks(checks)


if __name__ == "__main__":
    main()
