"""Random runs with the native or the JAX engine: memory as planned, none over its budget, none refused that fits.

Each run is the real command in a process of its own, on text of Python's standard library, for a few steps with
evaluation, checkpoints and samples. It is first refused with 2 MB, which names the smallest budget; then it runs with
that, with more, or with a little less. If that is refused, it must run with the budget that this error names. Memory is
the peak RSS of the whole process tree.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import yaml

from bpe_train import Check, check
from measure import CommandFailed, markdown_table, measure
from ramlet.engines import OPTIMIZERS
from ramlet.errors import SettingsError
from ramlet.model.sizing import shape_for
from ramlet.settings.declared import argv
from ramlet.training.settings import RunSettings
from recipe_race import scratch
from recipe_runs import Ramlet, Record, Records
from small_text import dataset

TEXTS = {512: 400_000, 2000: 3_500_000, 8192: 3_600_000}
"""Bytes of text, by vocabulary."""
STEPS = 3
LARGEST_FLOPS = 3e11
WITHIN = {"native": 0.01, "jax": 0.05}
SHARES = (0.9, 1.0, 1.0, 1.0, 1.02, 1.1, 1.5, 3.0, 10.0)
"""Budgets, as multiples of the smallest that is named."""


def drawn(rng: random.Random) -> dict[str, Any]:
    """One configuration that can be trained for a few steps in reasonable time."""
    while True:
        vocab = rng.choice(tuple(TEXTS))
        params = int(1e5 * 300 ** rng.random())
        seq_len = rng.choice((32, 64, 128, 256, 512))
        sequences = rng.choice((1, 2, 3, 4, 8, 12, 16, 32))
        if 6 * params * seq_len * sequences * STEPS > LARGEST_FLOPS:
            continue
        tied, groups = rng.choice((True, True, False)), rng.choice((1, 1, 2))
        try:
            shape_for(params, vocab_size=vocab, context=seq_len, tied=tied, kv_groups=groups)
        except SettingsError:
            continue  # too few for this vocabulary
        return {
            "vocab": vocab,
            "share": rng.choice(SHARES),
            "params": params,
            "seq_len": seq_len,
            "batch_size": sequences,
            "tied": tied,
            "kv_groups": groups,
            "qk_norm": rng.choice((True, False)),
            "optimizer": rng.choice(("auto", *OPTIMIZERS)),
            "precision": rng.choice(("auto", "bf16", "fp32")),
            "recompute": rng.choice((None, None, True, False)),
            "dropout": rng.choice((0.0, 0.0, 0.1)),
            "document_mask": rng.choice((False, True)),
            "average": rng.choice((0.0, 0.0, 0.5)),
            "sample_every": rng.choice((0, 2)),
            "threads": rng.choice((1, 2)),
        }


def run_once(chosen: dict[str, Any], data: Path, folder: Path, engine: str = "native") -> Record:
    settings = {name: value for name, value in chosen.items() if name not in ("vocab", "share", "threads")}
    settings |= {"max_steps": STEPS, "eval_every": 2, "eval_tokens": 2048, "checkpoint_every": 2, "log_every": 1}
    now = Ramlet.now()

    def once(megabytes: int, out: Path) -> Record:
        words = ["train", "--data", data, "--out", out, "--engine", engine, "--device", "cpu", "--quiet"]
        words += ["--threads", chosen["threads"], "--memory", f"{megabytes}MB", *argv(RunSettings, settings)]
        try:
            measured = measure(now.command(*words), now.environment)
        except CommandFailed as failure:
            said = str(failure).strip().splitlines()[-1]
            named = re.search(r"needs at least (\d+)MB", said)
            if named is None or (out / "metrics.jsonl").exists():
                return {"budget": megabytes * 10**6, "error": said[:400]}
            return {"budget": megabytes * 10**6, "least": int(named[1])}
        stats = json.loads((out / "stats.json").read_text())
        plan = yaml.safe_load((out / "settings.yaml").read_text())["plan"]
        return {
            "budget": megabytes * 10**6,
            "peak": measured.peak_rss,
            "predicted": stats["memory"]["predicted"],
            "parts": plan["parts"],
            "choice": plan["choice"],
            "stages": {name: usage["peak"] for name, usage in stats["memory"]["stages"].items()},
            "seconds": round(measured.seconds, 1),
        }

    refused = once(2, folder / "refused")
    if "least" not in refused:
        return {**chosen, "error": "2 MB was not refused", **refused}
    least = refused["least"]
    found = once(math.ceil(least * chosen["share"]), folder / "run")
    if chosen["share"] < 1 and "least" in found:
        least = found["least"]
        found = once(least, folder / "run")
    return {**chosen, "least": least * 10**6, "refused": "least" in found, **found, "named": least * 10**6}


def random_runs(given: argparse.Namespace, records: Records) -> None:
    """The same configurations by seed, however many of them are run."""
    code = Ramlet.now().code
    rng = random.Random(given.seed)
    for number in range(given.runs):
        chosen = drawn(rng)
        if number < given.first:
            continue
        data = dataset(TEXTS[chosen["vocab"]], chosen["vocab"])
        key = {"bar": "random", "contender": given.engine, "code": code, "seed": given.seed, "number": number}
        with scratch() as folder:
            records.once(
                lambda chosen=chosen, data=data, folder=folder: run_once(chosen, data, folder, given.engine),
                device="cpu",
                **key,
            )


def report_random(records: list[Record]) -> tuple[str, list[Check]]:
    kept = [line for line in records if "peak" in line]
    failed = [line for line in records if "peak" not in line]
    over = [line for line in kept if line["peak"] > line["budget"]]
    errors = sorted((line["predicted"] / line["peak"] - 1 for line in kept), key=abs)
    within = max((WITHIN[line.get("contender", "native")] for line in records), default=0.0)
    good = sum(abs(error) <= within for error in errors)
    apart = [abs(line["predicted"] - line["peak"]) for line in kept]
    kept.sort(key=lambda line: abs(line["predicted"] / line["peak"] - 1), reverse=True)
    names = ("params", "vocab", "seq_len", "batch_size", "optimizer", "precision", "threads")
    rows = [
        [
            *(str(line[name]) for name in names),
            *(f"{line[name] / 1e6:,.1f}" for name in ("budget", "predicted", "peak")),
            f"{line['predicted'] / line['peak'] - 1:+.1%}",
        ]
        for line in kept[:12]
    ]
    table = markdown_table([*names, "budget MB", "plan MB", "peak MB", "plan / peak"], rows)
    table += "".join(f"\nfailed: {line['number']}: {line.get('error') or line}" for line in failed[:10])
    smallest = [line["named"] / line["peak"] for line in kept if line["budget"] == line["named"]]
    worst = f"{min(errors):+.1%} to {max(errors):+.1%}, at most {max(apart) / 1e6:.1f} MB" if errors else "-"
    return table, [
        check("runs over their budget", f"{len(over)} of {len(kept)}", "0", not over),
        check("runs refused or failed with a budget that was named as enough", str(len(failed)), "0", not failed),
        check(
            f"plans within {within:.0%} of the peak", f"{good} of {len(errors)}; {worst}", "all", good == len(errors)
        ),
        check(
            "the smallest budget that is named, as a multiple of the peak with it",
            f"{min(smallest):.3f} to {max(smallest):.3f} ({len(smallest)} runs)" if smallest else "-",
            ">= 1",
            min(smallest, default=1) >= 1,
        ),
    ]


def add_options(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "random models, options and budgets: memory as planned, none over"
    parser = commands.add_parser("random", help=about, description=about)
    parser.set_defaults(run=random_runs)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="skip the runs before this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=tuple(WITHIN), default="native")
