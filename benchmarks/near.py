"""`ramlet prepare --near`: what it drops, its speed, memory and bytes, next to datatrove's MinHash and rensa.

    python benchmarks/near.py precision    # all pairs of 20,000 documents: none dropped below the threshold, recall
    python benchmarks/near.py speed        # against --dedup doc, datatrove's four stages and rensa
    python benchmarks/near.py memory       # 20 million documents in 512MB, and the scratch on disk
    python benchmarks/near.py same         # 256MB and 4GB, 1 and 2 threads, 200 times kill -9: the same bytes
    python benchmarks/near.py hostile      # one page a million times, a text of 2 GB: the speed of ordinary text

`precision`  near_text.py plants copies of every similarity among real documents; near_oracle.py compares all pairs on
             their shingles. Recall is that of documents that are similar to a kept, earlier one: bands find a pair of
             similarity s with 1 - (1 - s^rows)^bands, and every document counts with its most similar partner.
`speed`      ramlet processes the whole text and its time is that of the whole process: it reads, cleans, drops exact
             copies, compares and tokenizes. The other tools only drop near-duplicates, by MinHash alone, and get a
             sample, evenly spread; only their calls are timed.
`memory`     the scratch is what is under the dataset's .work, without the ids of the tasks and the ends of their
             documents, at its largest.
`hostile`    seconds per byte, compared with those of natural text in the same run. The copies of `almost` are just
             below the threshold, so that many meet in a band and all of them stay; there is no limit for its time.

Every run is a separate process; peak RSS is that of the whole process tree (measure.py). Prints Markdown tables and the
checks with measured value and limit; saves everything, dated, in benchmarks/results/. Exits with 1 if a check is not
met. To try it: --documents 500 --at-most 3MB --kills 5 --no-results, as the command takes them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bpe_train import HERE, check, peers_python, print_checks, ramlet_python
from corpora import DATA, parse_size
from measure import CommandFailed, machine, markdown_table, measure, megabytes, warm
from near_worker import TOOLS
from prepare import AS_IS, HEADER, Contender, Result, run_ramlet
from prepare_inputs import halves
from prepare_kills import differences, kill_rounds, kills_checks, kills_table

BYTES_AS_THEY_ARE = ["--tokenizer", "byte", "--end-token", "none", *AS_IS]
MOST_TIMES = 2.0  # the time of --dedup doc
LEAST_RATE = 40.0  # MB/s of natural text
LEAST_RATIO = 25.0  # times the rate of datatrove
SCRATCH = 300  # bytes per document
NOISE = 1.1  # of a time that should be the same

KILLED: dict[str, dict[str, Any]] = {
    "jsonl": {"inputs": ["a.jsonl", "b.jsonl"], "threads": 2, "settings": {"near": 0.8}},
    "without exact dedup, bytes": {
        "inputs": ["b.jsonl", "a.jsonl"],
        "threads": 1,
        "settings": {"near": 0.7, "dedup": "none", "tokenizer": "byte", "tokens_per_shard": 100_000},
    },
    "dedup by lines, characters": {
        "inputs": ["a.jsonl", "b.jsonl"],
        "threads": 3,
        "settings": {"near": 0.9, "dedup": "line", "tokenizer": "char"},
    },
    "short documents, packed": {
        "inputs": ["lines.txt"],
        "threads": 2,
        "settings": {"near": 0.8, "documents": "line", "pack": 256, "tokens_per_shard": 50_000},
    },
    "appended, with a cache": {
        "before": ["a.jsonl"],
        "inputs": ["b.jsonl"],
        "threads": 2,
        "cache": True,
        "settings": {"near": 0.8},
    },
}


def made(options: argparse.Namespace, kind: str, **how: int) -> Path:
    """An input, created by another process, because this one must stay small (measure.py says why)."""
    given = [part for name, value in how.items() if value for part in (f"--{name}", str(value))]
    command = [options.python, str(HERE / "near_text.py"), kind, *given]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def near(options: argparse.Namespace) -> list[str]:
    return ["--near", str(options.near)]


def precision(options: argparse.Namespace, scratch: Path) -> Result:
    path = made(options, "planted", documents=options.documents)
    ours = Contender(f"ramlet --near {options.near:g}", "planted", path.stat().st_size)
    manifest = run_ramlet(ours, options, [path], scratch / "ours", *near(options), *BYTES_AS_THEY_ARE)
    bands, rows = bands_and_rows(manifest, ours)
    command = [options.python, str(HERE / "near_oracle.py"), str(path), str(scratch / "ours")]
    judged = measure([*command, "--threshold", str(options.near), "--bands", str(bands), "--rows", str(rows)])
    found = json.loads(judged.output)
    table = [
        [name, f"{of['pairs']:,}", f"{of['with_a_kept_one']:,}", f"{of['of_these_dropped']:,}"]
        for name, of in found["by_similarity"].items()
    ]
    counted = manifest["ledger"]["documents"]["dropped"].get("near_duplicate", "no such rule")
    recall = found["found"] / max(1.0, found["promised"])
    above = found["well_above_found"] / max(1, found["well_above"])
    pairs = found["pairs_well_above_found"] / max(1, found["pairs_well_above"])
    shown = f"{found['found']:,} / {found['promised']:,.1f} with {bands} bands of {rows} rows; "
    shown += f"{found['promised_by_any']:,.1f} if the partners of a document were independent"
    sure = options.near + 0.05
    checks = [
        check("documents", found["documents"], f">= {options.documents}", found["documents"] >= options.documents),
        check(
            f"documents dropped below {options.near:g}, of {found['dropped']:,}",
            found["dropped_below"],
            "0",
            found["dropped_below"] == 0 < found["dropped"],
        ),
        check("exact copies that are left", found["exact_copies_kept"], "0", found["exact_copies_kept"] == 0),
        check("near duplicates in the ledger", counted, f"{found['dropped']}", counted == found["dropped"]),
        check(f"recall / what the bands promise ({shown})", round(recall, 4), ">= 0.99", recall >= 0.99),
        check(
            f"recall at {sure:.2f} and above ({found['well_above_found']:,} / {found['well_above']:,} documents)",
            round(above, 4),
            ">= 0.98",
            above >= 0.98,
        ),
        check(
            f"the same of pairs ({found['pairs_well_above_found']:,} / {found['pairs_well_above']:,})",
            round(pairs, 4),
            ">= 0.98",
            pairs >= 0.98,
        ),
    ]
    header = ["similarity, from", "pairs", "with a kept, earlier one", "of these dropped"]
    print(f"  the oracle took {judged.seconds:.0f} s", file=sys.stderr)
    return markdown_table(header, table), checks, {"run": ours.as_json(), "oracle": found}


def bands_and_rows(manifest: dict[str, Any], ours: Contender) -> tuple[int, int]:
    """Where ramlet tells them."""
    told = ours.reports[-1]["stats"]["near"]
    return told["bands"], told["rows"]


def run_peer(contender: Contender, options: argparse.Namespace, folder: Path, scratch: Path) -> None:
    out = scratch / "peer"
    shutil.rmtree(out, ignore_errors=True)
    command = [options.python, str(HERE / "near_worker.py"), contender.name, str(folder), str(out)]
    given = ["--threads", str(options.threads), "--threshold", str(options.near)]
    try:
        run = measure([*command, *given], {"HF_HUB_OFFLINE": "1", "HF_HOME": str(scratch / "hf")})
        contender.add(run, json.loads(run.output.strip().splitlines()[-1]))
    except CommandFailed as error:
        print(f"  {contender.name} failed: {error}", file=sys.stderr)


def speed(options: argparse.Namespace, scratch: Path) -> Result:
    contenders: list[Contender] = []
    checks = []
    for name in options.texts:
        whole = made(options, name, size=options.at_most)
        sample = made(options, name, size=min(options.sample, options.at_most or options.sample))
        halves(sample, scratch / name)
        warm(whole)
        size = whole.stat().st_size
        exact = Contender("ramlet --dedup doc", name, size)
        ours = Contender(f"ramlet --near {options.near:g}", name, size)
        peers = [Contender(peer, f"{name}, sample", sample.stat().st_size) for peer in options.peers]
        for number in range(options.repeats):
            for one, more in ((exact, []), (ours, near(options))):
                run_ramlet(one, options, [whole], scratch / "ours", "--tokenizer", "gpt2", *more)
            for peer in peers if number < options.slow_repeats else []:
                run_peer(peer, options, scratch / name, scratch)
        contenders += [exact, ours, *peers]
        if name == "natural":
            checks.append(check(f"{name}: MB", round(size / 1e6), ">= 500", size >= 5e8))
            rate = ours.rate
            checks.append(check(f"{name}: MB/s", round(rate, 1), f">= {LEAST_RATE:g}", rate >= LEAST_RATE))
        times = ours.seconds / exact.seconds
        claim = f"{name}: time / that of --dedup doc ({ours.seconds:.2f} s / {exact.seconds:.2f} s)"
        checks.append(check(claim, round(times, 2), f"<= {MOST_TIMES:g}", times <= MOST_TIMES))
        for peer in peers:
            if not peer.runs:
                checks.append(check(f"{name}: {peer.name} runs", "no", "yes", False))
                continue
            ratio = ours.rate / peer.rate
            claim = f"{name}: speedup over {peer.name} ({ours.rate:.1f} / {peer.rate:.2f} MB/s)"
            barred = peer.name == "datatrove"
            limit = f">= {LEAST_RATIO:g}" if barred else "no limit"
            checks.append(check(claim, round(ratio, 1), limit, ratio >= LEAST_RATIO or not barred))
    return markdown_table(HEADER, [one.row() for one in contenders if one.runs]), checks, contenders


class Scratch(threading.Thread):
    """The bytes under a folder's `.work` at their largest, without the tokens."""

    def __init__(self, dataset: Path) -> None:
        super().__init__(daemon=True)
        self.work, self.done = dataset / ".work", threading.Event()
        self.largest, self.at_largest = 0, dict[str, int]()
        self.with_tokens = 0

    def kind(self, path: Path) -> str:
        """The folder of a file; files in that of the tokens that are not of a split are of their own kind."""
        folder = path.relative_to(self.work).parts[0]
        ids = any(f".{split}." in path.name for split in ("train", "val"))
        return folder if folder != "tokens" or ids else f"{folder}/*{path.suffix}"

    def run(self) -> None:
        while not self.done.wait(0.25):
            found: dict[str, int] = {}
            for path in self.work.rglob("*"):
                try:
                    size = path.stat().st_size if path.is_file() else 0
                except OSError:  # renamed or removed since it was listed
                    continue
                kind = self.kind(path)
                found[kind] = found.get(kind, 0) + size
            own = sum(size for kind, size in found.items() if kind != "tokens")
            self.with_tokens = max(self.with_tokens, sum(found.values()))
            if own > self.largest:
                self.largest, self.at_largest = own, found


@contextmanager
def watched(dataset: Path) -> Iterator[Scratch]:
    scratch = Scratch(dataset)
    scratch.start()
    try:
        yield scratch
    finally:
        scratch.done.set()
        scratch.join()


def memory(options: argparse.Namespace, scratch: Path) -> Result:
    count = options.short_documents
    path = made(options, "short", documents=count)
    ours = Contender(f"ramlet --near {options.near:g} --memory 512MB", "short", path.stat().st_size)
    switches = ["--docs", "line", "--tokenizer", "gpt2", "--memory", "512MB"]
    with watched(scratch / "ours") as seen:
        manifest = run_ramlet(ours, options, [path], scratch / "ours", *near(options), *switches)
    documents = manifest["ledger"]["documents"]
    dropped = documents["dropped"].get("near_duplicate", 0)
    each = seen.largest / count
    parts = ", ".join(f"{kind} {megabytes(size)}" for kind, size in sorted(seen.at_largest.items()))
    print(f"  at its largest: {parts}", file=sys.stderr)
    checks = [
        check("documents", documents["read"], f">= {count}", documents["read"] >= count),
        check("near duplicates dropped, a tenth is planted", dropped, f">= {count // 11}", dropped >= count // 11),
        check("peak RSS, MB", round(ours.peak / 1e6, 1), "<= 512", ours.peak <= 512e6),
        check("scratch beyond the tokens, bytes per document", round(each, 1), f"<= {SCRATCH}", each <= SCRATCH),
    ]
    found = {"run": ours.as_json(), "scratch": seen.largest, "parts": seen.at_largest, "with_tokens": seen.with_tokens}
    return markdown_table(HEADER, [ours.row()]), checks, found


def same(options: argparse.Namespace, scratch: Path) -> Result:
    path = made(options, "planted", documents=options.documents)
    contenders, checks = [], []
    for budget in ("4GB", "256MB"):
        for threads in (2, 1):
            one = Contender(f"ramlet --memory {budget} --threads {threads}", "planted", path.stat().st_size)
            # The same path for all, moved away afterwards: the path is part of the run's id in the manifest.
            out, kept = scratch / "dataset", scratch / f"kept-{len(contenders)}"
            given = argparse.Namespace(**{**vars(options), "threads": threads})
            run_ramlet(one, given, [path], out, "--tokenizer", "gpt2", "--memory", budget, *near(options))
            out.rename(kept)
            if contenders:
                different = differences(scratch / "kept-0", kept)
                shown = ", ".join(different)[:500] or "none"
                checks.append(check(f"{one.name}: files that differ from the first", shown, "none", not different))
            if budget == "256MB":
                peak = round(one.peak / 1e6, 1)
                checks.append(check(f"{one.name}: peak RSS, MB", peak, "<= 256", one.peak <= 256e6))
            contenders.append(one)
    result = kill_rounds(
        options.kills,
        options.seed,
        options.ramlet_python,
        options.python,
        cases={name: KILLED[name] for name in options.cases},
        maker="near_text.py kills",
    )
    checks += kills_checks(result, options.kills)
    table = markdown_table(HEADER, [one.row() for one in contenders])
    found = {"runs": [one.as_json() for one in contenders], "kills": result}
    return f"{table}\n\n{kills_table(result)}", checks, found


def hostile(options: argparse.Namespace, scratch: Path) -> Result:
    switches = ["--tokenizer", "gpt2", "--memory", "512MB", *near(options)]
    wanted: dict[str, dict[str, int]] = {
        "natural": {"size": options.at_most},
        "cluster": {"documents": options.copies},
        "almost": {"documents": options.copies},
        "long": {"size": options.at_most or options.size},
    }
    contenders = {}
    manifests = {}
    for name in ["natural", *options.inputs]:
        path = made(options, name, **wanted[name])
        warm(path)
        contenders[name] = Contender(f"ramlet --near {options.near:g} --memory 512MB", name, path.stat().st_size)
        manifests[name] = run_ramlet(contenders[name], options, [path], scratch / "ours", *switches)
    checks = []
    ordinary = contenders["natural"]
    for name, one in contenders.items():
        checks.append(check(f"{name}: peak RSS, MB", round(one.peak / 1e6, 1), "<= 512", one.peak <= 512e6))
        if name == "natural":
            continue
        times = ordinary.rate / one.rate
        claim = f"{name}: seconds per byte / those of natural text ({one.rate:.1f} / {ordinary.rate:.1f} MB/s)"
        limit = "no limit" if name == "almost" else f"<= {NOISE:g}"
        checks.append(check(claim, round(times, 2), limit, times <= NOISE or name == "almost"))
    if "cluster" in manifests:
        kept = manifests["cluster"]["ledger"]["documents"]["kept"]
        most = max(1, options.copies // 1000)
        checks.append(check(f"copies left of {options.copies:,}", kept, f"<= {most}", kept <= most))
    table = markdown_table(HEADER, [one.row() for one in contenders.values()])
    return table, checks, list(contenders.values())


BARS = {"precision": precision, "speed": speed, "memory": memory, "same": same, "hostile": hostile}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    bars = parser.add_subparsers(dest="bar", required=True)
    every = {name: bars.add_parser(name, help=f"see above: {name}") for name in BARS}
    for bar in every.values():
        bar.add_argument("--near", type=float, default=0.8, help="the threshold [default: 0.8]")
        bar.add_argument("--threads", type=int, default=2)
        bar.add_argument("--python", help="the other tools' interpreter [default: that of benchmarks/data/venv]")
        bar.add_argument("--ramlet-python", help="ramlet's interpreter [default: .venv/bin/python]")
        bar.add_argument("--no-results", action="store_true", help="only print, save nothing")
    for name in ("precision", "same"):
        every[name].add_argument("--documents", type=int, default=20_000)
    for name in ("speed", "hostile"):
        every[name].add_argument("--at-most", type=parse_size, default=0, help="limit each text, to try it")
    every["speed"].add_argument("--texts", nargs="*", choices=["natural", "code"], default=["natural", "code"])
    every["speed"].add_argument("--sample", type=parse_size, default=parse_size("40MB"), help="for the other tools")
    every["speed"].add_argument("--peers", nargs="*", choices=TOOLS, default=list(TOOLS))
    every["speed"].add_argument("--repeats", type=int, default=3)
    every["speed"].add_argument("--slow-repeats", type=int, default=1, help="repeats of the other tools")
    every["memory"].add_argument("--short-documents", type=int, default=20_000_000)
    every["same"].add_argument("--kills", type=int, default=200)
    every["same"].add_argument("--seed", type=int, default=0)
    every["same"].add_argument("--cases", nargs="*", choices=KILLED, default=list(KILLED), help="of the kills")
    every["hostile"].add_argument("--copies", type=int, default=1_000_000, help="of the page")
    every["hostile"].add_argument("--size", type=parse_size, default=parse_size("2GB"), help="of the long document")
    hostile_inputs = ["cluster", "almost", "long"]
    every["hostile"].add_argument("--inputs", nargs="*", choices=hostile_inputs, default=hostile_inputs)
    return parser.parse_args()


def main() -> None:
    options = parse()
    options.ramlet_python = ramlet_python(options.ramlet_python)
    options.python = peers_python(options.python)
    with tempfile.TemporaryDirectory(dir=DATA, prefix="run-") as scratch:
        shown, checks, found = BARS[options.bar](options, Path(scratch))
    print(f"\n## {options.bar}\n\n{shown}\n")
    print_checks(checks)
    runs = [one.as_json() for one in found] if isinstance(found, list) else found
    settings = {name: str(value) for name, value in vars(options).items() if "python" not in name}
    record = {"settings": settings, "checks": checks, "runs": runs, "machine": machine()}
    if not options.no_results:
        today = datetime.date.today().isoformat()
        target = HERE / "results" / f"{today}-near.json"
        target.parent.mkdir(exist_ok=True)
        # A later run on the same day adds its bar to the file instead of replacing it.
        kept: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {"date": today, "bars": {}}
        kept["bars"][options.bar] = record
        target.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(f"\n{target}", flush=True)
    sys.exit(0 if all(one["met"] for one in checks) else 1)


if __name__ == "__main__":
    main()
