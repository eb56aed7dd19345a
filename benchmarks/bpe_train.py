"""BPE training: ramlet and other tools in the same run, 32,000 merges, GPT-2's pattern, two threads.

    python benchmarks/bpe_train.py --bar 1     # both corpora, every tool: speed and memory
    python benchmarks/bpe_train.py --bar 2     # --memory 128MB against a large budget: same result, time, memory
    python benchmarks/bpe_train.py --bar 3     # 12 GB synthetic, --memory 512MB (12 GB of disk, tens of minutes)

Every run is a fresh process. The tools take turns, so that a slow minute of the machine affects all of them; the
numbers are medians of --repeats runs. ramlet runs through its command line, so its time includes starting Python and
writing the tokenizer. For the other tools both the whole process and the training call alone are shown; ratios compare
ramlet's whole process with the other tool's call alone, to ramlet's disadvantage. Peak RSS is that of the whole process
tree (measure.py).

Prints a Markdown table and the checks with measured value and limit; saves everything, dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import filecmp
import json
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpora import DATA, corpus, parse_size
from measure import CommandFailed, Measurement, machine, markdown_table, measure, median, megabytes, warm

HERE = Path(__file__).resolve().parent
SLOW = {"hf", "rustbpe", "bpeasy"}


@dataclass
class Contender:
    """A tool on a corpus, and the results of its runs."""

    name: str
    corpus: Path
    memory: str | None  # ramlet's budget; None for another tool
    runs: list[Measurement]
    reports: list[dict[str, Any]]
    failure: str = ""
    trained: Path | None = None

    @property
    def seconds(self) -> float:
        return median([run.seconds for run in self.runs])

    @property
    def call_seconds(self) -> float | None:
        calls = [report["call_seconds"] for report in self.reports if report.get("call_seconds")]
        return median(calls) if calls else None

    @property
    def fastest_view(self) -> float:
        """Seconds of the training call alone if known, else of the whole process."""
        return self.call_seconds or self.seconds

    @property
    def peak_rss(self) -> int:
        return max(run.peak_rss for run in self.runs)

    @property
    def peak_anonymous(self) -> int:
        return max(run.peak_anonymous for run in self.runs)

    @property
    def rate(self) -> float:
        return self.corpus.stat().st_size / 1e6 / self.seconds


def peers_python(given: str | None) -> str:
    """The interpreter of the other tools' environment, by default benchmarks/data/venv, created if missing."""
    if given:
        return given
    folder = DATA / "venv"
    python = folder / "bin" / "python"
    stamp = folder / "requirements.txt"
    wanted = (HERE / "requirements.txt").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        if not python.exists():
            venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", HERE / "requirements.txt"], check=True)
        stamp.write_text(wanted)
    return str(python)


def made(options: argparse.Namespace, name: str, size: int = 0) -> Path:
    """The corpus, created by another process if missing: this one must stay small (measure.py says why)."""
    command = [options.python, str(HERE / "corpora.py"), name, *(["--size", str(size)] if size else [])]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return corpus(name, size)


def ramlet_python(given: str | None) -> str:
    own = HERE.parent / ".venv" / "bin" / "python"
    return given or (str(own) if own.exists() else sys.executable)


def without_timeline(stats: Any) -> Any:
    if isinstance(stats, dict):
        return {name: without_timeline(value) for name, value in stats.items() if name != "timeline"}
    return stats


def stages_of(stats: Any) -> dict[str, Any]:
    """The stages in ramlet's stats.json, {"counting": {"seconds": ...}, ...}, at any depth."""
    if not isinstance(stats, dict):
        return {}
    if isinstance(stats.get("stages"), dict):
        return dict(stats["stages"])
    return next((found for value in stats.values() if (found := stages_of(value))), {})


def run_once(contender: Contender, options: argparse.Namespace, scratch: Path) -> None:
    target = scratch / f"{contender.name}-{contender.corpus.stem}-{contender.memory}"
    if contender.memory is not None:
        shutil.rmtree(target, ignore_errors=True)
        command = [
            *(options.ramlet_python, "-m", "ramlet", "tokenizer", "train", str(contender.corpus)),
            *("--vocab-size", str(options.vocab_size), "--memory", contender.memory),
            *("--threads", str(options.threads), "--out", str(target)),
        ]
        environment = {}
    else:
        command = [options.python, str(HERE / "train_worker.py"), contender.name, str(contender.corpus)]
        command += [str(options.vocab_size), str(target)]
        environment = {"RAYON_NUM_THREADS": str(options.threads), "TOKENIZERS_PARALLELISM": "true"}
    run = measure(command, environment)
    contender.runs.append(run)
    contender.trained = target
    if contender.memory is not None:
        contender.reports.append({"stats": without_timeline(json.loads((target / "stats.json").read_text()))})
    else:
        contender.reports.append(json.loads(run.output.strip().splitlines()[-1]))
    print(
        f"  {contender.name:<10} {contender.memory or '':>6} {contender.corpus.stem:<12} "
        f"{run.seconds:8.2f} s  {megabytes(run.peak_rss):>9}",
        file=sys.stderr,
    )


def run_all(contenders: list[Contender], options: argparse.Namespace, scratch: Path) -> None:
    for path in {contender.corpus for contender in contenders}:
        warm(path)
    for round_number in range(options.repeats):
        for contender in contenders:
            if contender.failure or (contender.name in SLOW and round_number >= options.slow_repeats):
                continue
            try:
                run_once(contender, options, scratch)
            except CommandFailed as error:
                contender.failure = str(error)
                print(f"  {contender.name} failed: {error}", file=sys.stderr)


def merges_of(contender: Contender) -> list[tuple[str, str]] | None:
    assert contender.trained is not None
    if contender.memory is None:
        merges = json.loads(contender.trained.read_text())["merges"]
    else:
        merges = json.loads((contender.trained / "tokenizer.json").read_text())["model"]["merges"]
    if merges is None:
        return None
    return [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in merges]


def same_merges(one: Contender, other: Contender) -> str:
    """ "identical", or the first difference."""
    left, right = merges_of(one), merges_of(other)
    if left is None or right is None:
        return "does not report merges"
    if left == right:
        return f"identical ({len(left):,})"
    first = next((i for i, pair in enumerate(zip(left, right)) if pair[0] != pair[1]), min(len(left), len(right)))
    return f"differ starting at merge {first:,} ({len(left):,} and {len(right):,})"


def counting_rate(contender: Contender) -> float | None:
    """MB/s of ramlet's counting stage, from its stats.json."""
    rates = []
    for report in contender.reports:
        counting = stages_of(report["stats"]).get("counting")
        if counting:
            rates.append(contender.corpus.stat().st_size / 1e6 / counting["seconds"])
    return median(rates) if rates else None


def distinct_pieces(stats: Any) -> int:
    """The number of distinct pieces in ramlet's stats.json: the first number whose key contains "distinct"."""
    if not isinstance(stats, dict):
        return 0
    for name, value in stats.items():
        found = value if "distinct" in name and isinstance(value, int) else distinct_pieces(value)
        if found:
            return found
    return 0


Check = dict[str, Any]


def check(claim: str, value: float | str, limit: float | str, met: bool) -> Check:
    return {"claim": claim, "value": value, "limit": limit, "met": met}


def print_checks(checks: list[Check]) -> None:
    """The checks, each with the measured value."""
    for one in checks:
        print(f"- {'met' if one['met'] else 'NOT MET'}: {one['claim']}: {one['value']} ({one['limit']})")


def find(contenders: list[Contender], name: str, stem: str, memory: str | None = None) -> Contender | None:
    for one in contenders:
        if one.name == name and one.corpus.stem == stem and one.memory == memory and one.runs:
            return one
    return None


def bar_1(options: argparse.Namespace) -> tuple[list[Contender], Any]:
    contenders = []
    for path in (made(options, "nat"), made(options, "code")):
        contenders.append(Contender("ramlet", path, options.roomy, [], []))
        contenders += [Contender(peer, path, None, [], []) for peer in options.peers]

    def judge() -> list[Check]:
        checks = []
        for stem in ("nat", "code"):
            ours = find(contenders, "ramlet", stem, options.roomy)
            if ours is None:
                checks.append(check(f"{stem}: trains", "no", "yes", False))
                continue
            for peer, least in (("gigatoken", 2.5), ("hf", 30.0 if stem == "code" else None)):
                theirs = find(contenders, peer, stem)
                if theirs is None:
                    continue
                if least is not None:
                    ratio = theirs.fastest_view / ours.seconds
                    claim = f"{stem}: speedup over {peer} ({theirs.fastest_view:.2f} s / {ours.seconds:.2f} s)"
                    checks.append(check(claim, round(ratio, 2), f">= {least}", ratio >= least))
                same = same_merges(ours, theirs)
                checks.append(check(f"{stem}: merges vs. {peer}", same, "identical", same.startswith("identical")))
            peak = ours.peak_rss
            checks.append(check(f"{stem}: peak RSS, MB", round(peak / 1e6, 1), "<= 150", peak <= 150e6))
        return checks

    return contenders, judge


def bar_2(options: argparse.Namespace) -> tuple[list[Contender], Any]:
    contenders = [
        Contender("ramlet", path, memory, [], [])
        for path in (made(options, "nat"), made(options, "code"))
        for memory in (options.roomy, "128MB")
    ]

    def judge() -> list[Check]:
        checks = []
        for stem in ("nat", "code"):
            roomy = find(contenders, "ramlet", stem, options.roomy)
            tight = find(contenders, "ramlet", stem, "128MB")
            if roomy is None or tight is None:
                checks.append(check(f"{stem}: trains at both budgets", "no", "yes", False))
                continue
            assert roomy.trained
            assert tight.trained
            files = roomy.trained / "tokenizer.json", tight.trained / "tokenizer.json"
            same = "identical" if filecmp.cmp(files[0], files[1], shallow=False) else "differ"
            checks.append(check(f"{stem}: tokenizer.json at 128MB", same, "identical", same == "identical"))
            peak, ratio = tight.peak_rss, tight.seconds / roomy.seconds
            checks.append(check(f"{stem}: peak RSS, MB", round(peak / 1e6, 1), "<= 128", peak <= 128e6))
            claim = f"{stem}: time vs. {options.roomy} ({tight.seconds:.2f} s / {roomy.seconds:.2f} s)"
            checks.append(check(claim, round(ratio, 2), "<= 1.5", ratio <= 1.5))
        return checks

    return contenders, judge


def bar_3(options: argparse.Namespace) -> tuple[list[Contender], Any]:
    path = made(options, "synthetic", options.size)
    contenders = [Contender("ramlet", path, memory, [], []) for memory in ("512MB", options.unbounded)]

    def judge() -> list[Check]:
        tight = find(contenders, "ramlet", path.stem, "512MB")
        roomy = find(contenders, "ramlet", path.stem, options.unbounded)
        checks = [check("finishes at 512MB", "yes" if tight else "no", "yes", tight is not None)]
        if tight is None:
            return checks
        checks.append(check("peak RSS, MB", round(tight.peak_rss / 1e6, 1), "<= 512", tight.peak_rss <= 512e6))
        distinct = distinct_pieces(tight.reports[0]["stats"])
        checks.append(check("distinct pieces", f"{distinct:,}", "> 20,000,000", distinct > 20_000_000))
        rate = counting_rate(tight)
        checks.append(check("counting, MB/s", round(rate or 0, 1), ">= 100", rate is not None and rate >= 100))
        if roomy is not None:
            same = same_merges(tight, roomy)
            checks.append(check(f"merges vs. --memory {options.unbounded}", same, "identical", same[:5] == "ident"))
        return checks

    return contenders, judge


def table(contenders: list[Contender]) -> str:
    rows = []
    for one in contenders:
        label = f"{one.name} --memory {one.memory}" if one.memory else one.name
        if not one.runs:
            rows.append([one.corpus.stem, label, "failed", "", "", "", "", "", ""])
            continue
        hf = find(contenders, "hf", one.corpus.stem)
        ours = next((c for c in contenders if c.memory and c.runs and c.corpus == one.corpus), None)
        rows.append(
            [
                one.corpus.stem,
                label,
                f"{one.seconds:.2f}",
                f"{one.call_seconds:.2f}" if one.call_seconds else "",
                f"{one.rate:.0f}",
                megabytes(one.peak_rss),
                megabytes(one.peak_anonymous),
                f"{one.fastest_view / ours.seconds:.2f}" if ours else "",
                same_merges(one, hf) if hf else "",
            ]
        )
    header = ["corpus", "trainer", "s", "call alone, s", "MB/s", "peak RSS", "anonymous part"]
    header += ["time / ramlet's", "merges vs. HF's"]
    return markdown_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bar", type=int, choices=[1, 2, 3], action="append", help="which checks [default: 1 and 2]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slow-repeats", type=int, default=3, help="repeats of HF, rustbpe and bpeasy (minutes each)")
    parser.add_argument(
        "--peers", nargs="*", default=["gigatoken", "hf", "rustbpe"], help="tools to compare with; also bpeasy"
    )
    parser.add_argument("--vocab-size", type=int, default=32256, help="256 bytes and 32,000 merges")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--roomy", default="4GB", help="large --memory for bars 1 and 2")
    parser.add_argument("--unbounded", default="16GB", help="large --memory for bar 3")
    parser.add_argument("--size", type=parse_size, default=parse_size("12GB"), help="size of bar 3's corpus")
    parser.add_argument("--python", help="the other tools' interpreter [default: that of benchmarks/data/venv]")
    parser.add_argument("--ramlet-python", help="ramlet's interpreter [default: .venv/bin/python]")
    parser.add_argument("--no-results", action="store_true", help="only print, save nothing")
    options = parser.parse_args()
    bars = options.bar or [1, 2]
    options.ramlet_python = ramlet_python(options.ramlet_python)
    options.python = peers_python(options.python)

    results: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": machine(), "bars": {}}
    settings = ("vocab_size", "threads", "repeats", "slow_repeats")
    results["settings"] = {name: getattr(options, name) for name in settings}
    for bar in bars:
        print(f"bar {bar}", file=sys.stderr)
        contenders, judge = {1: bar_1, 2: bar_2, 3: bar_3}[bar](options)
        with tempfile.TemporaryDirectory(dir=DATA, prefix="run-") as scratch:
            run_all(contenders, options, Path(scratch))
            shown, checks = table(contenders), judge()
        print(f"\n## Bar {bar}\n\n{shown}\n")
        print_checks(checks)
        results["bars"][str(bar)] = {
            "checks": checks,
            "contenders": [
                {
                    "name": one.name,
                    "corpus": one.corpus.name,
                    "corpus_bytes": one.corpus.stat().st_size,
                    "memory": one.memory,
                    "failure": one.failure,
                    "runs": [{**run.as_json(), **report} for run, report in zip(one.runs, one.reports)],
                }
                for one in contenders
            ],
        }
    if not options.no_results:
        folder = HERE / "results"
        folder.mkdir(exist_ok=True)
        # A later run on the same day adds its bars to the file instead of replacing it.
        target = folder / f"{results['date']}-bpe_train.json"
        if target.exists():
            results["bars"] = {**json.loads(target.read_text())["bars"], **results["bars"]}
        target.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(f"\n{target}")


if __name__ == "__main__":
    main()
