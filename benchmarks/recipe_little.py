"""Little text through `ramlet init` and `ramlet run`, and `ramlet demo`: before and now.

A text is the first bytes of the given one, so many of 1 MB and of 10 MB; the megabyte at its end is held out from all
and evaluated by everyone in the same way. That is stricter than the validation split of each pipeline, which both
report too: the split depends on how the text was divided into documents.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

from bpe_train import Check, check
from corpora import corpus, parse_size
from measure import markdown_table, measure
from recipe_race import names, numbers, scratch
from recipe_runs import Ramlet, Record, Records, metrics

HELD_OUT = 1_000_000
LESS = 0.04
"""The least share by which bits per byte must be lower."""
ABOVE_BEST = 0.003
"""The most that the loss of the model that is kept may be above the best of its run."""
DEMO_BITS, DEMO_PYTHON = 1.30, 0.65
SAME_TIME = 1.05
"""More is not noise."""


def little(given: argparse.Namespace, records: Records) -> None:
    text = given.text or corpus("prose")
    for size in given.sizes:
        for seed in given.seeds:
            for name in given.contenders:
                code = Ramlet.now() if name == "now" else Ramlet.before(given.before)
                key = {"bar": "little", "contender": name, "code": code.code, "text": text.name, "bytes": size}

                def make(code: Ramlet = code, size: int = size, seed: int = seed) -> Record:
                    with scratch() as folder:
                        return pipeline(code, text, size, seed, given, folder)

                records.once(make, device=given.device, **key, time=given.time, seed=seed)


def pipeline(code: Ramlet, text: Path, size: int, seed: int, given: argparse.Namespace, folder: Path) -> Record:
    (folder / "text.txt").write_bytes(whole_lines(text, 0, size))
    held_out = folder / "held-out.txt"
    held_out.write_bytes(whole_lines(text, max(size, text.stat().st_size - HELD_OUT), HELD_OUT))
    file = folder / "pipeline.yaml"
    words = ["--out", file, "--time", given.time, "--quiet"]
    proposed = measure(code.command("init", folder / "text.txt", *words), code.environment)
    file.write_text(file.read_text().replace("\ntraining:\n", f"\ntraining:\n  seed: {seed}\n", 1))
    made = measure(code.command("run", file, "--quiet"), code.environment)
    work = folder / "my-model"
    run, data = work / "run", work / "dataset"
    evaluations = [line["eval"]["val"] for line in metrics(run) if "eval" in line]
    # Evaluated like those of the run, on as many of the same tokens.
    kept = code.loss(run, data, evaluations[-1]["tokens"], given.device)
    stats = json.loads((run / "stats.json").read_text())
    return {
        "seconds": round(proposed.seconds + made.seconds, 1),
        "parameters": stats["parameters"],
        "steps": stats["steps"],
        "last_loss": evaluations[-1]["loss"],
        "best_loss": min(line["loss"] for line in evaluations),
        "kept_loss": kept["loss"],
        "validation_bits_per_byte": code.loss(run, data, "all", given.device)["bits_per_byte"],
        "bits_per_byte": held_out_bits(code, work, held_out, given.device),
        "peak_rss": made.peak_rss,
    }


def held_out_bits(code: Ramlet, work: Path, text: Path, device: str) -> float:
    out = text.with_suffix("")
    every = ["--val-fraction", "0", "--no-filter", "--dedup", "none", "--quiet"]
    measure(code.command("prepare", text, "--tokenizer", work / "tokenizer", "--out", out, *every), code.environment)
    return float(code.loss(work / "run", out, "all", device)["bits_per_byte"])


def whole_lines(text: Path, start: int, size: int) -> bytes:
    """About so many bytes from there, in whole lines."""
    with text.open("rb") as file:
        file.seek(start)
        if start:
            file.readline()
        return file.read(size) + file.readline()


def report_little(records: list[Record]) -> tuple[str, list[Check]]:
    rows = [
        [
            f"{line['bytes'] / 1e6:g} MB, {line['contender']}, seed {line['seed']}",
            *(f"{line['parameters'] / 1e6:.2f}M", f"{line['steps']:,}", f"{line['seconds']:.0f}"),
            *(f"{line[name]:.4f}" for name in ("bits_per_byte", "validation_bits_per_byte")),
            *(f"{line[name]:.4f}" for name in ("kept_loss", "best_loss", "last_loss")),
        ]
        for line in sorted(records, key=lambda line: (line["bytes"], line["contender"], line["seed"]))
    ]
    checks = []
    for size in sorted({line["bytes"] for line in records}):
        sides = {
            name: [line for line in records if (line["bytes"], line["contender"]) == (size, name)]
            for name in ("before", "now")
        }
        label = f"{size / 1e6:g} MB"
        for line in sides["now"]:
            above = line["kept_loss"] / line["best_loss"] - 1
            claim = f"{label}, seed {line['seed']}: the kept model's loss above the best of the run"
            checks.append(check(claim, f"{above:.2%}", f"<= {ABOVE_BEST:.1%}", above <= ABOVE_BEST))
        if not all(sides.values()):
            continue
        for name, what in (("bits_per_byte", "held-out"), ("validation_bits_per_byte", "validation")):
            now, before = (mean(line[name] for line in sides[side]) for side in ("now", "before"))
            less = 1 - now / before
            claim = f"{label}: {what} bits per byte, lower by"
            checks.append(check(claim, f"{less:.1%} ({before:.4f} to {now:.4f})", f">= {LESS:.0%}", less >= LESS))
        checks.append(same_time(label, sides))
    header = ["run", "parameters", "steps", "seconds", "held-out bits per byte", "validation bits per byte"]
    return markdown_table([*header, "loss of the kept model", "best loss", "last loss"], rows), checks


def same_time(label: str, sides: dict[str, list[Record]]) -> Check:
    now, before = (mean(line["seconds"] for line in sides[name]) for name in ("now", "before"))
    value = f"{now / before:.2f} ({now:.0f} / {before:.0f} s)"
    return check(f"{label}: seconds / seconds before", value, f"<= {SAME_TIME}", now <= SAME_TIME * before)


def demo(given: argparse.Namespace, records: Records) -> None:
    for number in range(1, given.repeats + 1):
        for name in given.contenders:
            code = Ramlet.now() if name == "now" else Ramlet.before(given.before)

            def make(code: Ramlet = code) -> Record:
                with scratch() as folder:
                    return shown(code, folder / "demo", given.quick)

            key = {"bar": "demo", "contender": name, "code": code.code, "quick": given.quick, "number": number}
            records.once(make, device="cpu", **key)


def shown(code: Ramlet, folder: Path, quick: bool) -> Record:
    words = ["demo", "--out", folder, "--json", *(["--quick"] if quick else [])]
    measured = measure(code.command(*words), code.environment)
    told: dict[str, Any] = json.loads(measured.output)
    stats = json.loads((folder / "run" / "stats.json").read_text())
    return {
        "seconds": round(measured.seconds, 1),
        "steps": told["steps"],
        "python": told["python_lines"]["trained"]["share"],
        "lines": told["python_lines"]["trained"]["lines"],
        "last_bits_per_byte": stats["scores"]["val"]["bits_per_byte"],
        "bits_per_byte": code.loss(folder / "run", folder / "dataset", "all", "cpu")["bits_per_byte"],
        "peak_rss": measured.peak_rss,
    }


def report_demo(records: list[Record]) -> tuple[str, list[Check]]:
    rows = [
        [
            f"{line['contender']}, run {line['number']}" + (", --quick" if line["quick"] else ""),
            *(f"{line['steps']:,}", f"{line['seconds']:.0f}", f"{line['bits_per_byte']:.3f}"),
            f"{line['python']:.1%} of {line['lines']}",
        ]
        for line in sorted(records, key=lambda line: (line["contender"], line["number"]))
    ]
    full = [line for line in records if not line["quick"]]
    sides = {name: [line for line in full if line["contender"] == name] for name in ("before", "now")}
    checks = []
    if sides["now"]:
        bits, python = (mean(line[name] for line in sides["now"]) for name in ("bits_per_byte", "python"))
        checks.append(check("demo: bits per byte", f"{bits:.3f}", f"<= {DEMO_BITS}", bits <= DEMO_BITS))
        checks.append(
            check("demo: lines that are Python", f"{python:.1%}", f">= {DEMO_PYTHON:.0%}", python >= DEMO_PYTHON)
        )
    if all(sides.values()):
        checks.append(same_time("demo", sides))
    return markdown_table(["run", "steps", "seconds", "bits per byte", "lines that are Python"], rows), checks


def add_options(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[argparse.ArgumentParser]:
    made = []
    for name, run, about in (
        ("little", little, "1 MB and 10 MB of prose through `ramlet init` and `ramlet run`"),
        ("demo", demo, "`ramlet demo`: bits per byte, the share of lines that are Python, seconds"),
    ):
        parser = commands.add_parser(name, help=about, description=about)
        parser.set_defaults(run=run)
        both = ["before", "now"]
        parser.add_argument("--before", help="interpreter or checkout of the version before")
        parser.add_argument("--contenders", type=names(both), default=both, help=",".join(both))
        made.append(parser)
    little_parser, demo_parser = made
    little_parser.add_argument("--text", type=Path, help="instead of the corpus `prose` of corpora.py")
    little_parser.add_argument("--sizes", type=sizes, default=[10**6, 10**7], help="1MB,10MB")
    little_parser.add_argument("--seeds", type=numbers, default=[1, 2, 3], help="1,2,3")
    little_parser.add_argument("--time", default="1h", help="the limit for `ramlet init`")
    little_parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="for the evaluations")
    demo_parser.add_argument("--repeats", type=int, default=1, help="the demo has one seed")
    demo_parser.add_argument("--quick", action="store_true", help="to try the script")
    return made


def sizes(text: str) -> list[int]:
    return [parse_size(part) for part in text.split(",")]
