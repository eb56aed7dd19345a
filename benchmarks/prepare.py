"""`ramlet prepare`: from raw text to shards, compared with other tools, and within its budget.

    python benchmarks/prepare.py --bar 1     # jsonl to GPT-2 ids: speed and memory, against datatrove and nanoGPT
    python benchmarks/prepare.py --bar 2     # --memory 384MB, dedup by lines, 1.4 GB: same bytes as with 4GB
    python benchmarks/prepare.py --bar 3     # dedup of 100 million lines in 512MB, against sort -u
    python benchmarks/prepare.py --bar 4     # 1 GB and 10 GB with --memory 1GB: the same peak
    python benchmarks/prepare.py --bar 5     # 300 times kill -9: the same dataset

Bar 1: ramlet cleans, drops duplicates and processes the whole corpus; its time is that of the whole process. The other
tools do not clean or deduplicate, and get a sample (20 MB of nat, 40 MB of code, documents spread evenly over the
corpus), because they process one or two MB/s; only their calls are timed, not their imports, and their memory is that
for the sample: all to their advantage. Rates are bytes of the jsonl file per second. With cleaning off, ramlet's ids on
the sample must be the same as theirs.

Every run is a separate process, and the tools take turns; numbers are medians of --repeats. Peak RSS is that of the
whole process tree (measure.py). Prints Markdown tables and the checks with measured value and limit; saves everything,
dated, in benchmarks/results/. To try it: --at-most 2MB --lines 100000 --small 5MB --large 20MB --kills 10 --no-results.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bpe_train import HERE, Check, check, made, peers_python, print_checks, ramlet_python, without_timeline
from corpora import DATA, parse_size
from measure import CommandFailed, Measurement, machine, markdown_table, measure, median, megabytes, warm
from prepare_inputs import halves
from prepare_kills import differences, kill_rounds, kills_checks, kills_table

PEERS = ["datatrove", "nanogpt"]
LEAST_RATIO = {"nat": 25.0, "code": 40.0}
MEMORY_SHARE = 0.1
AS_IS = ["--no-normalize", "--no-filter", "--val-fraction", "0"]


@dataclass
class Contender:
    """A tool on an input, and the results of its runs."""

    name: str
    text: str
    size: int
    runs: list[Measurement] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds of the tool's call alone if it reports them, else of the whole process."""
        return median([report.get("call_seconds") or run.seconds for run, report in zip(self.runs, self.reports)])

    @property
    def rate(self) -> float:
        return self.size / 1e6 / self.seconds

    @property
    def peak(self) -> int:
        return max(run.peak_rss for run in self.runs)

    @property
    def peak_process(self) -> int:
        return max(run.peak_process for run in self.runs)

    def stage_seconds(self, *names: str) -> float:
        """Seconds of ramlet's stages, from its stats.json."""
        stages = [report["stats"]["memory"]["stages"] for report in self.reports]
        return median([sum(of[name]["seconds"] for name in names) for of in stages])

    def row(self) -> list[str]:
        whole = median([run.seconds for run in self.runs])
        cells = [self.text, self.name, f"{self.size / 1e6:,.1f}", f"{whole:.2f}", f"{self.seconds:.2f}"]
        return [*cells, f"{self.rate:.2f}", megabytes(self.peak), megabytes(self.peak_process)]

    def add(self, run: Measurement, report: dict[str, Any]) -> None:
        self.runs.append(run)
        self.reports.append(report)
        line = f"  {self.name:<24} {self.text:<14} {run.seconds:9.2f} s  {megabytes(run.peak_rss):>10}"
        print(line, file=sys.stderr, flush=True)

    def as_json(self) -> dict[str, Any]:
        runs = [{**run.as_json(), **report} for run, report in zip(self.runs, self.reports)]
        return {"name": self.name, "text": self.text, "bytes": self.size, "runs": runs}


HEADER = ["text", "prepared by", "MB", "process, s", "timed, s", "MB/s", "peak RSS", "largest process"]
Result = tuple[str, list[Check], Any]


def made_input(options: argparse.Namespace, *arguments: str) -> Path:
    """Created by another process, because this one must stay small (measure.py says why)."""
    command = [options.python, str(HERE / "prepare_inputs.py"), *arguments]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def jsonl(options: argparse.Namespace, name: str, size: int = 0) -> Path:
    size = min(size or options.at_most, options.at_most or size)
    return made_input(options, "jsonl", name, *(["--size", str(size)] if size else []))


def run_ramlet(
    contender: Contender, options: argparse.Namespace, inputs: list[Path], out: Path, *more: str
) -> dict[str, Any]:
    """Runs `ramlet prepare` into a new folder, which is kept; returns its manifest."""
    shutil.rmtree(out, ignore_errors=True)
    command = [options.ramlet_python, "-m", "ramlet", "prepare", *map(str, inputs), "--out", str(out)]
    run = measure([*command, "--threads", str(options.threads), *more])
    stats = without_timeline(json.loads((out / "stats.json").read_text()))
    contender.add(run, {"stats": stats, "options": list(more)})
    manifest: dict[str, Any] = json.loads((out / "dataset_metadata.json").read_text())
    return manifest


def run_peer(contender: Contender, options: argparse.Namespace, folder: Path, scratch: Path) -> None:
    out = scratch / contender.name
    command = [options.python, str(HERE / "prepare_worker.py"), contender.name, str(DATA / "gpt2.json")]
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(scratch / "hf"), "TOKENIZERS_PARALLELISM": "true"}
    try:
        run = measure([*command, str(folder), str(out), "--threads", str(options.threads)], environment)
        contender.add(run, json.loads(run.output.strip().splitlines()[-1]))
    except CommandFailed as error:
        print(f"  {contender.name} failed: {error}", file=sys.stderr)
    shutil.rmtree(out, ignore_errors=True)


def ids_of(dataset: Path, manifest: dict[str, Any]) -> tuple[int, str]:
    """(tokens, SHA-256 of all ids in order) of the train split."""
    digest = hashlib.sha256()
    for shard in manifest["splits"]["train"]["shards"]:
        with (dataset / shard["file"]).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return manifest["splits"]["train"]["tokens"], digest.hexdigest()


def bar_1(options: argparse.Namespace, scratch: Path) -> Result:
    contenders: list[Contender] = []
    checks: list[Check] = []
    for name, sample_size in (("nat", options.nat_sample), ("code", options.code_sample)):
        whole, sample = jsonl(options, name), jsonl(options, name, sample_size)
        folder = scratch / f"{name}-sample"
        parts = halves(sample, folder)
        for path in (whole, *parts):
            warm(path)
        ours = Contender("ramlet", name, whole.stat().st_size)
        peers = [Contender(peer, f"{name}, sample", sample.stat().st_size) for peer in options.peers]
        for number in range(options.repeats):
            run_ramlet(ours, options, [whole], scratch / "ours", "--tokenizer", "gpt2")
            for peer in peers if number < options.slow_repeats else []:
                run_peer(peer, options, folder, scratch)
        plain = Contender("ramlet, tokens only", f"{name}, sample", sample.stat().st_size)
        switches = ["--tokenizer", "gpt2", "--dedup", "none", *AS_IS]
        ids = ids_of(scratch / "plain", run_ramlet(plain, options, parts, scratch / "plain", *switches))
        contenders += [ours, *peers, plain]
        for peer in peers:
            checks += against_peer(name, ours, peer, ids)
    return markdown_table(HEADER, [one.row() for one in contenders if one.runs]), checks, contenders


def against_peer(name: str, ours: Contender, peer: Contender, ids: tuple[int, str]) -> list[Check]:
    if not peer.runs:
        return [check(f"{name}: {peer.name} runs", "no", "yes", False)]
    ratio, least = ours.rate / peer.rate, LEAST_RATIO[name]
    claim = f"{name}: speedup over {peer.name} ({ours.rate:.1f} / {peer.rate:.2f} MB/s)"
    checks = [check(claim, round(ratio, 1), f">= {least:g}", ratio >= least)]
    share = ours.peak / peer.peak
    claim = f"{name}: peak RSS / {peer.name}'s ({megabytes(ours.peak)} / {megabytes(peer.peak)})"
    checks.append(check(claim, round(share, 3), f"< {MEMORY_SHARE}", share < MEMORY_SHARE))
    report = peer.reports[0]
    theirs = (report["tokens"], report["ids_sha256"]) if "ids_sha256" in report else (report["tokens"],)
    same = ids[: len(theirs)] == theirs
    what = "ids" if len(theirs) > 1 else "number of ids"  # nanoGPT's script shuffles before it splits
    checks.append(check(f"{name}: {what}, with cleaning off", "same" if same else "different", "same", same))
    return checks


def bar_2(options: argparse.Namespace, scratch: Path) -> Result:
    code, nat = jsonl(options, "code"), jsonl(options, "nat")
    again = scratch / "code-again.jsonl"
    os.link(code, again)
    inputs = [code, nat, again]
    size = sum(path.stat().st_size for path in inputs)
    contenders = {
        memory: Contender(f"ramlet --memory {memory}", "code, nat, code", size) for memory in ("384MB", "4GB")
    }
    for path in inputs:
        warm(path)
    for _ in range(options.repeats):
        for memory, contender in contenders.items():
            # The same path for both, moved away afterwards: the path is part of the run's id in the manifest.
            out, kept = scratch / "dataset", scratch / f"kept-{memory}"
            switches = ["--tokenizer", "gpt2", "--dedup", "line", "--memory", memory]
            run_ramlet(contender, options, inputs, out, *switches)
            shutil.rmtree(kept, ignore_errors=True)
            out.rename(kept)
    different = differences(scratch / "kept-4GB", scratch / "kept-384MB")
    tight, roomy = contenders["384MB"], contenders["4GB"]
    shown = ", ".join(different)[:500] or "none"
    checks = [
        check("input, MB", round(size / 1e6), ">= 1300", size >= 1.3e9),
        check("peak RSS at 384MB, MB", round(tight.peak / 1e6, 1), "<= 384", tight.peak <= 384e6),
        check("files that differ from those with 4GB, except stats.json", shown, "none", not different),
    ]
    return markdown_table(HEADER, [tight.row(), roomy.row()]), checks, [tight, roomy]


def digest_of(options: argparse.Namespace, source: Path) -> dict[str, Any]:
    command = [options.python, str(HERE / "prepare_worker.py"), "lines-digest", str(source)]
    got: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return got


def bar_3(options: argparse.Namespace, scratch: Path) -> Result:
    path = made_input(options, "lines", "--lines", str(options.lines))
    size = path.stat().st_size
    ours = Contender("ramlet --memory 512MB", "lines", size)
    sort = Contender("sort -u -S 512M", "lines", size)
    unique = scratch / "unique.txt"
    switches = [
        "--docs",
        "line",
        "--dedup",
        "doc",
        "--tokenizer",
        "byte",
        "--end-token",
        "none",
        "--memory",
        "512MB",
        *AS_IS,
    ]
    manifest: dict[str, Any] = {}
    for _ in range(options.repeats):
        warm(path)
        manifest = run_ramlet(ours, options, [path], scratch / "ours", *switches)
        warm(path)
        command = ["sort", "-u", "-S", "512M", f"--parallel={options.threads}", "-T", str(scratch)]
        sort.add(measure([*command, "-o", str(unique), str(path)], {"LC_ALL": "C"}), {})
    kept = manifest["ledger"]["documents"]["kept"]
    exact, found = digest_of(options, unique), digest_of(options, scratch / "ours")
    alone = ours.stage_seconds("scanning", "comparing")
    ratio = sort.seconds / alone
    rows = [ours.row(), sort.row()]
    stages = ["lines", "only its scanning and comparing", rows[0][2], ""]
    rows.insert(1, [*stages, f"{alone:.2f}", f"{size / 1e6 / alone:.2f}", "", ""])
    same = (kept, found["lines"], found["digest"]) == (exact["lines"], exact["lines"], exact["digest"])
    counts = f"{kept:,} / {exact['lines']:,}"
    times = f"{sort.seconds:.2f} s / {alone:.2f} s"
    checks = [
        check(f"distinct lines, count and digest ({counts})", "same" if same else "different", "same", same),
        check("peak RSS, MB", round(ours.peak / 1e6, 1), "<= 512", ours.peak <= 512e6),
        check(f"dedup alone, speedup over sort -u ({times})", round(ratio, 2), "> 1", ratio > 1),
    ]
    return markdown_table(HEADER, rows), checks, [ours, sort]


def bar_4(options: argparse.Namespace, scratch: Path) -> Result:
    contenders = []
    switches = ["--docs", "line", "--tokenizer", "gpt2", "--dedup", "doc", "--memory", "1GB"]
    for size in (options.small, options.large):
        path = made(options, "synthetic", size)
        contenders.append(Contender("ramlet --memory 1GB", path.stem, size))
        for _ in range(options.repeats if size == options.small else 1):
            run_ramlet(contenders[-1], options, [path], scratch / "ours", *switches)
        shutil.rmtree(scratch / "ours")
    small, large = contenders
    apart = max(small.peak, large.peak) / min(small.peak, large.peak)
    claim = f"ratio of the peaks ({megabytes(large.peak)} / {megabytes(small.peak)})"
    checks = [
        check(claim, round(apart, 3), "<= 1.1", apart <= 1.1),
        check("peak RSS, MB", round(max(small.peak, large.peak) / 1e6, 1), "<= 1000", large.peak <= 1e9 >= small.peak),
    ]
    return markdown_table(HEADER, [one.row() for one in contenders]), checks, contenders


def bar_5(options: argparse.Namespace, scratch: Path) -> Result:
    result = kill_rounds(options.kills, options.seed, options.ramlet_python, options.python)
    return kills_table(result), kills_checks(result, options.kills), result


BARS = {1: bar_1, 2: bar_2, 3: bar_3, 4: bar_4, 5: bar_5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bar", type=int, choices=BARS, action="append", help="which checks [default: all]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slow-repeats", type=int, default=3, help="repeats of the other tools in bar 1")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, help="tools to compare with in bar 1")
    parser.add_argument("--nat-sample", type=parse_size, default=parse_size("20MB"), help="size of their nat sample")
    parser.add_argument("--code-sample", type=parse_size, default=parse_size("40MB"), help="size of their code sample")
    parser.add_argument("--at-most", type=parse_size, default=0, help="limit each corpus in bars 1 and 2, to try it")
    parser.add_argument("--lines", type=int, default=100_000_000, help="lines of bar 3")
    parser.add_argument("--small", type=parse_size, default=parse_size("1GB"), help="smaller input of bar 4")
    parser.add_argument("--large", type=parse_size, default=parse_size("10GB"), help="larger input of bar 4")
    parser.add_argument("--kills", type=int, default=300, help="kills of bar 5")
    parser.add_argument("--seed", type=int, default=0, help="seed of bar 5")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", help="the other tools' interpreter [default: that of benchmarks/data/venv]")
    parser.add_argument("--ramlet-python", help="ramlet's interpreter [default: .venv/bin/python]")
    parser.add_argument("--no-results", action="store_true", help="only print, save nothing")
    options = parser.parse_args()
    options.ramlet_python = ramlet_python(options.ramlet_python)
    options.python = peers_python(options.python)
    if not (DATA / "gpt2.json").exists():
        subprocess.run([options.python, HERE / "gpt2_vocabulary.py", DATA / "gpt2.json"], check=True)

    today = datetime.date.today().isoformat()
    target = HERE / "results" / f"{today}-prepare.json"
    for bar in options.bar or BARS:
        print(f"bar {bar}", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=DATA, prefix="run-") as scratch:
            shown, checks, found = BARS[bar](options, Path(scratch))
        print(f"\n## Bar {bar}\n\n{shown}\n")
        print_checks(checks)
        if options.no_results:
            continue
        target.parent.mkdir(exist_ok=True)
        # A later run on the same day adds its bars to the file instead of replacing it.
        kept: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {"date": today, "bars": {}}
        kept["machine"] = machine()
        settings = {name: str(value) for name, value in vars(options).items() if "python" not in name}
        runs = [one.as_json() for one in found] if isinstance(found, list) else found
        kept["bars"][str(bar)] = {"settings": settings, "checks": checks, "runs": runs}
        target.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(f"\n{target}", flush=True)


if __name__ == "__main__":
    main()
