"""The best model size, batch size and number of epochs for a small text, by validation loss.

    python benchmarks/small_text.py                      # an hour on two cores
    python benchmarks/small_text.py --device cuda --jobs 8

Source code of Python's standard library, in two sizes; models of several sizes; 8 and 32 sequences per step; 4, 10 and,
for the smaller text, 25 epochs; compared with the rule in training/course.py. Prints a Markdown table; saves
everything, dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bpe_train import HERE
from corpora import DATA
from learning_rate import ramlet, trained
from measure import machine, markdown_table
from ramlet import Dataset
from ramlet.demo.stdlib_text import gather
from ramlet.training.course import course_for, largest_for
from train import _gpu

SEQ_LEN = 128
PASSES = (4, 10, 25)
BATCHES = (8, 32)
TEXTS = (
    (450_000, 1000, (100_000, 300_000, 1_000_000), PASSES),
    (3_500_000, 2000, (300_000, 1_000_000, 3_000_000, 10_000_000), PASSES[:2]),
)
"""Bytes, vocabulary, model sizes, epochs."""


def dataset(size: int, vocab: int) -> Path:
    out = DATA / f"small-{size}-{vocab}"
    if not (out / "dataset_metadata.json").exists():
        text, tokenizer = DATA / f"small-{size}.jsonl", DATA / f"small-{size}-{vocab}-tokenizer"
        DATA.mkdir(exist_ok=True)
        gather(text, most=size)
        ramlet(
            "tokenizer", "train", text, "--vocab-size", vocab, "--special-token", "<|endoftext|>", "--out", tokenizer
        )
        ramlet("prepare", text, "--tokenizer", tokenizer, "--document-bytes", 4096, "--val-fraction", 0.1, "--out", out)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    parser.add_argument("--no-results", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    asked = []
    for size, vocab, models, often in TEXTS:
        data = dataset(size, vocab)
        tokens = Dataset(data).splits["train"].tokens
        for params, batch, passes in itertools.product(models, BATCHES, often):
            asked.append((data, tokens, params, batch, passes, max(1, passes * tokens // (batch * SEQ_LEN))))
    asked.sort(key=lambda one: -one[1] * one[2] * one[4])  # long runs first

    def one(run: tuple[Path, int, int, int, int, int]) -> float:
        data, _, params, batch, _, steps = run
        return trained(data, params, SEQ_LEN, batch, steps, given.device)

    with ThreadPoolExecutor(given.jobs) as pool:
        losses = dict(zip(asked, pool.map(one, asked), strict=True))
    rows, kept = [], []
    for tokens, params in sorted({(run[1], run[2]) for run in asked}):
        found = {(run[3], run[4]): losses[run] for run in asked if run[1:3] == (tokens, params)}
        course = course_for(params, text=tokens, seq_len=SEQ_LEN)
        chosen = f"{course.sequences} x {course.tokens / tokens:.1f}" if params <= largest_for(tokens) else "too large"
        cells = [f"{found[key]:.3f}" if key in found else "" for key in itertools.product(BATCHES, PASSES)]
        rows.append([f"{tokens:,}", f"{params:,}", *cells, chosen])
        kept.append({"tokens": tokens, "params": params, "losses": [[*key, value] for key, value in found.items()]})
    header = ["tokens", "parameters", *(f"{b} per step, {p} epochs" for b in BATCHES for p in PASSES), "the rule"]
    print(markdown_table(header, rows))
    if not given.no_results:
        target = given.out or HERE / "results" / f"{datetime.date.today()}-small_text-{given.device}.json"
        target.write_text(json.dumps({"machine": machine() | _gpu(given.device), "runs": kept}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
