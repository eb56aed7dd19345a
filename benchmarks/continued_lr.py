"""Learning rates for continued training: how much a model learns of new text, and how much it forgets of old text.

    python benchmarks/continued_lr.py                        # CPU: a model of 100k parameters, half an hour
    python benchmarks/continued_lr.py --device cuda --jobs 8

A model is trained from scratch on the source code of Python's standard library, and then on other text (READMEs,
changelogs and licenses under /usr/share/doc) with 1/100 to all of the from-scratch learning rate, for 100, 300 and
1,000 steps, with several seeds. Each run is the real command. Prints for every rate the loss on the new text and the
increase on the old; saves everything, dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from bpe_train import HERE
from corpora import DATA
from learning_rate import ramlet
from measure import machine, markdown_table
from ramlet.demo.stdlib_text import gather
from ramlet.training.recipe import CONTINUED, default_rate
from train import _gpu

FACTORS = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Multiples of the from-scratch rate."""
PROSE = Path("/usr/share/doc")
MOST_PROSE = 12_000_000
LARGEST_FILE = 200_000


class Model(NamedTuple):
    params: int
    seq_len: int
    batch: int
    steps: int
    """Of the training from scratch, on the first text."""


MODELS = {
    "cpu": [Model(100_000, 128, 8, 1500)],
    "cuda": [Model(300_000, 128, 8, 1500), Model(1_000_000, 256, 8, 1800), Model(10_000_000, 256, 32, 1500)],
}
STEPS = (100, 300, 1000)
SEEDS = {"cpu": (1,), "cuda": (1, 2, 3)}


def prose(target: Path) -> None:
    """Writes the second text, one document per line."""
    size = 0
    with target.open("w", encoding="utf-8") as out:
        for path in sorted(PROSE.rglob("*")):
            named = path.name == "copyright" or path.suffix in (".md", ".rst", ".txt")
            if named and path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST_FILE:
                text = path.read_text(encoding="utf-8", errors="replace")
                out.write(json.dumps({"text": text}) + "\n")
                size += len(text)
                if size > MOST_PROSE:
                    return


def datasets(vocab: int) -> tuple[Path, Path]:
    """The first text and the second, both with the tokenizer of the first."""
    DATA.mkdir(exist_ok=True)
    tokenizer = DATA / f"continued-tokenizer-{vocab}"
    found = []
    for name, make in (("sources", gather), ("prose", prose)):
        out, text = DATA / f"continued-{name}-{vocab}", DATA / f"continued-{name}.jsonl"
        found.append(out)
        if (out / "dataset_metadata.json").exists():
            continue
        if not text.exists():
            make(text)
        if not tokenizer.exists():
            words = ["--vocab-size", vocab, "--special-token", "<|endoftext|>", "--out", tokenizer]
            ramlet("tokenizer", "train", text, *words)
        ramlet("prepare", text, "--tokenizer", tokenizer, "--document-bytes", 8192, "--out", out)
    return found[0], found[1]


def vocabulary(params: int) -> int:
    return 1024 if params < 1_000_000 else 2048 if params < 3_000_000 else 8192


def size_words(model: Model, device: str, steps: int, evaluated: int) -> list[Any]:
    return [
        *("--batch-size", model.batch, "--max-steps", steps, "--seq-len", model.seq_len),
        *("--eval-every", 0, "--eval-tokens", evaluated, "--sample-every", 0, "--checkpoint-every", 0),
        *("--device", device),
    ]


def base(model: Model, device: str, evaluated: int) -> Path:
    out = DATA / f"continued-base-{device}-{model.params}"
    if not (out / "stats.json").exists():
        data, _ = datasets(vocabulary(model.params))
        words = size_words(model, device, model.steps, evaluated)
        ramlet("train", "--data", data, "--out", out, "--params", model.params, *words)
        print(f"{model.params:,} parameters from scratch: {out}", file=sys.stderr)
    return out


def adapted(model: Model, device: str, steps: int, factor: float, seed: int, evaluated: int) -> tuple[float, float]:
    """The loss on the new text, and the increase of the loss on the old text."""
    old, new = datasets(vocabulary(model.params))
    start = base(model, device, evaluated)
    parameters = json.loads((start / "stats.json").read_text())["parameters"]
    with tempfile.TemporaryDirectory(prefix="ramlet-continued-") as folder:
        out = Path(folder, "run")
        rate = ["--lr", factor * default_rate(parameters), "--seed", seed]
        words = size_words(model, device, steps, evaluated)
        ramlet("train", "--data", new, "--out", out, "--init-from", start, "--eval", f"general={old}", *rate, *words)
        scores = json.loads((out / "stats.json").read_text())["scores"]
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        rise = [line["forgetting"]["general"] for line in lines if "forgetting" in line][-1]
    found = float(scores["val"]["loss"]), float(rise)
    print(
        f"{model.params:,}, {steps:,} steps, x {factor:g}, seed {seed}: {found[0]:.4f} {found[1]:+.4f}", file=sys.stderr
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    parser.add_argument("--eval-tokens", type=int, default=32_768)
    parser.add_argument("--data-only", action="store_true", help="only create the datasets")
    parser.add_argument("--no-results", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    models = MODELS[given.device]
    for model in models:
        datasets(vocabulary(model.params))
    if given.data_only:
        return 0
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda model: base(model, given.device, given.eval_tokens), models))
        asked = list(itertools.product(models, STEPS, FACTORS, SEEDS[given.device]))
        asked.sort(key=lambda one: (one[3], -one[0].params * one[1]))  # the first seed first, and long runs first
        found = dict(
            zip(
                asked,
                pool.map(lambda one: adapted(one[0], given.device, *one[1:], given.eval_tokens), asked),
                strict=True,
            )
        )
    rows, kept = [], []
    for model, steps in itertools.product(models, STEPS):
        cells = []
        for factor in FACTORS:
            runs = [found[model, steps, factor, seed] for seed in SEEDS[given.device]]
            cells.append(f"{statistics.mean(r[0] for r in runs):.3f} / {statistics.mean(r[1] for r in runs):+.3f}")
            kept.append({"model": model._asdict(), "steps": steps, "factor": factor, "new_and_rise": runs})
        rows.append([f"{model.params / 1e6:g}M", f"{steps:,}", *cells])
    header = ["parameters", "steps", *(f"x {factor:g}{' (default)' * (factor == CONTINUED)}" for factor in FACTORS)]
    print(markdown_table(header, rows))
    if not given.no_results:
        target = given.out or HERE / "results" / f"{datetime.date.today()}-continued_lr-{given.device}.json"
        target.write_text(json.dumps({"machine": machine() | _gpu(given.device), "runs": kept}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
