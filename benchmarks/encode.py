"""Encoding with GPT-2's vocabulary, two threads: ramlet and other libraries in the same run.

    python benchmarks/encode.py                          # both corpora in 8 MB batches: MB/s, peak RSS, ids compared
    python benchmarks/encode.py --flat --gigabytes 10    # memory over 10 GB of words that almost never repeat

Every run is a separate process (encode_worker.py), and the libraries take turns; numbers are medians of --repeats.
`ramlet` and `gigatoken` get the same lists of documents as bytes, the rows with `-str` the same lists as str, and
those with `-buffer` each batch as one buffer of bytes, which gigatoken's documentation calls its fastest input. Each
of ramlet's rows is compared with gigatoken's row with the same input. ramlet's ids are uint16, gigatoken's uint32 (not
converted, to its advantage). tiktoken and HF tokenizers are slow and encode every third batch of nat and every tenth of
code; on these batches the ids of all libraries must be the same. Peak RSS is that of the whole process, including
Python, NumPy and the 8 MB batch.

With --flat the text comes through a pipe from a process that is not measured. A library that exceeds --stop-at is
stopped, and its row shows how far it got: gigatoken 0.10.0 uses about 5 bytes for each byte of such text.

Prints a Markdown table and the checks with measured value and limit; saves everything, dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bpe_train import HERE, check, made, peers_python, print_checks, ramlet_python
from corpora import DATA, parse_size
from measure import CommandFailed, Measurement, machine, markdown_table, measure, median, megabytes, warm

LIBRARIES = ["ramlet", "ramlet-str", "ramlet-buffer", "gigatoken", "gigatoken-str", "gigatoken-buffer"]
LIBRARIES += ["tiktoken", "hf"]
SAMPLE_EVERY = {"nat": 3, "code": 10}  # nat: often enough to include every script
FLAT_WITHIN = 1.05  # samples can fall anywhere in a batch, so the peaks of the two halves are compared

Runs = dict[tuple[str, str], list[tuple[Measurement, dict[str, Any]]]]


def run_once(library: str, source: Any, options: argparse.Namespace, extra: list[str]) -> tuple[Measurement, Any]:
    python = options.ramlet_python if library.startswith("ramlet") else options.python
    command = [python, str(HERE / "encode_worker.py"), library, str(DATA / "gpt2.json")]
    environment = {"RAYON_NUM_THREADS": str(options.threads), "TOKENIZERS_PARALLELISM": "true"}
    run = measure([*command, "--threads", str(options.threads), *extra], environment, stdin=source)
    return run, json.loads(run.output.strip().splitlines()[-1])


def run_corpora(options: argparse.Namespace) -> Runs:
    runs: Runs = {}
    for name in ("nat", "code"):
        path = made(options, name)
        warm(path)
        for round_number in range(options.repeats):
            for library in options.libraries:
                slow = library in {"tiktoken", "hf"}
                if slow and round_number:
                    continue
                extra = ["--every", str(SAMPLE_EVERY[name])] if slow else []
                with path.open("rb") as source:
                    try:
                        got = run_once(library, source, options, [*extra, "--digest-every", str(SAMPLE_EVERY[name])])
                    except CommandFailed as error:
                        print(f"  {library} failed: {error}", file=sys.stderr)
                        continue
                runs.setdefault((name, library), []).append(got)
                rate = got[1]["bytes"] / 1e6 / got[1]["seconds"]
                print(f"  {library:<17} {name:<5} {rate:7.1f} MB/s  {megabytes(got[0].peak_rss)}", file=sys.stderr)
    return runs


def rate_of(results: list[tuple[Measurement, dict[str, Any]]]) -> float:
    return median([report["bytes"] / 1e6 / report["seconds"] for _, report in results])


def judge_corpora(runs: Runs) -> tuple[str, list[dict[str, Any]]]:
    rows, checks = [], []
    for name in ("nat", "code"):
        reference = next((runs[name, peer][0][1] for peer in ("hf", "tiktoken") if (name, peer) in runs), None)
        ours = runs.get((name, "ramlet"))
        for library in LIBRARIES:
            results = runs.get((name, library))
            if results is None:
                continue
            ids = "not compared"
            if reference is not None:
                mine = results[0][1]["digests"]
                shared = mine.keys() & reference["digests"].keys()
                equal = sum(mine[number] == reference["digests"][number] for number in shared)
                ids = f"{equal} of {len(shared)} batches"
                if library.startswith("ramlet"):
                    claim = f"{name}: {library}: same ids as HF (or tiktoken, without HF)"
                    checks.append(check(claim, ids, "all", equal == len(shared) > 0))
            peak = max(run.peak_rss for run, _ in results)
            rate = rate_of(results)
            shown = f"{rate_of(ours) / rate:.2f}" if ours else ""
            version = results[0][1]["version"]
            rows.append([name, f"{library} ({version})", f"{rate:.1f}", megabytes(peak), shown, ids])
        if ours is None:
            checks.append(check(f"{name}: encodes", "no", "yes", False))
            continue
        for mine, peers in (
            ("ramlet", ["gigatoken"]),
            ("ramlet-str", ["gigatoken-str"]),
            ("ramlet-buffer", ["gigatoken-buffer"]),
        ):
            theirs = [rate_of(runs[name, peer]) for peer in peers if (name, peer) in runs]
            if theirs and (name, mine) in runs:
                rate = rate_of(runs[name, mine])
                claim = f"{name}: {mine}'s speedup over {' or '.join(peers)} ({rate:.1f} / {max(theirs):.1f} MB/s)"
                checks.append(check(claim, round(rate / max(theirs), 2), ">= 1.2", rate / max(theirs) >= 1.2))
                peak = max(run.peak_rss for run, _ in runs[name, mine])
                checks.append(check(f"{name}: {mine}: peak RSS, MB", round(peak / 1e6, 1), "<= 200", peak <= 200e6))
    header = ["corpus", "library", "MB/s", "peak RSS", "ramlet's speed / its", "same ids as HF (or tiktoken)"]
    return markdown_table(header, rows), checks


def run_flat(options: argparse.Namespace) -> Runs:
    runs: Runs = {}
    for library in [name for name in options.libraries if name in {"ramlet", "gigatoken"}]:
        size = f"{options.gigabytes}GB"
        text = subprocess.Popen(
            [options.python, str(HERE / "synthetic.py"), size, "--never-repeating"], stdout=subprocess.PIPE
        )
        assert text.stdout is not None
        try:
            got = run_once(
                library, text.stdout, options, ["--digest-every", "1000000000", "--stop-at", str(options.stop_at)]
            )
        except CommandFailed as error:
            print(f"  {library} failed: {error}", file=sys.stderr)
            continue
        finally:
            text.stdout.close()
            text.wait()
        runs["never repeating", library] = [got]
    return runs


def resident_at(memory: list[list[int]], amount: float) -> int | None:
    """Resident bytes after `amount` bytes were encoded; None if the run stopped before."""
    return next((resident for encoded, resident in memory if encoded >= amount), None)


def at(memory: list[list[int]], amount: float) -> str:
    resident = resident_at(memory, amount)
    return "stopped" if resident is None else megabytes(resident)


def judge_flat(runs: Runs, total: float) -> tuple[str, list[dict[str, Any]]]:
    points = [0.99 * total * share for share in (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)]
    rows, checks = [], []
    for (_, library), ((run, report),) in runs.items():
        memory = report["memory"]
        rate = report["bytes"] / 1e6 / report["seconds"]
        cells = [at(memory, point) for point in points]
        rows.append([library, f"{rate:.1f}", *cells, megabytes(run.peak_rss)])
        if library == "ramlet":
            finished = report["bytes"] >= 0.99 * total
            checks.append(check("encoded, GB", round(report["bytes"] / 1e9, 2), f">= {total / 1e9}", finished))
            first, second = (
                max(resident for encoded, resident in memory if (encoded > total / 2) == later)
                for later in (False, True)
            )
            growth = second / first
            claim = f"RSS constant (peak {second / 1e6:.0f} MB in the second half / {first / 1e6:.0f} MB in the first)"
            checks.append(check(claim, round(growth, 3), f"<= {FLAT_WITHIN}", growth <= FLAT_WITHIN))
            checks.append(check("peak RSS, MB", round(run.peak_rss / 1e6, 1), "<= 200", run.peak_rss <= 200e6))
    header = ["library", "MB/s", *(f"RSS at {point / 1e9:.2g} GB" for point in points), "peak RSS"]
    return markdown_table(header, rows), checks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flat", action="store_true", help="measure memory over text that never repeats, not speed")
    parser.add_argument("--gigabytes", type=float, default=10, help="size of --flat's text")
    parser.add_argument("--stop-at", type=parse_size, default=parse_size("8GB"), help="RSS limit of --flat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", help="the other libraries' interpreter [default: that of benchmarks/data/venv]")
    parser.add_argument("--ramlet-python", help="ramlet's interpreter [default: .venv/bin/python]")
    parser.add_argument("--no-results", action="store_true", help="only print, save nothing")
    options = parser.parse_args()
    options.python = peers_python(options.python)
    options.ramlet_python = ramlet_python(options.ramlet_python)
    if not (DATA / "gpt2.json").exists():
        subprocess.run([options.python, HERE / "gpt2_vocabulary.py", DATA / "gpt2.json"], check=True)

    part = "flat" if options.flat else "corpora"
    runs = run_flat(options) if options.flat else run_corpora(options)
    shown, checks = judge_flat(runs, options.gigabytes * 1e9) if options.flat else judge_corpora(runs)
    print(f"\n## Bar 4, {part}\n\n{shown}\n")
    print_checks(checks)
    if not options.no_results:
        today = datetime.date.today().isoformat()
        target = Path(HERE, "results", f"{today}-encode.json")
        target.parent.mkdir(exist_ok=True)
        kept: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {"date": today}
        kept["machine"] = machine()
        kept[part] = {
            "settings": {"threads": options.threads, "repeats": options.repeats, "gigabytes": options.gigabytes},
            "checks": checks,
            "runs": [
                {"text": text, "library": library, **run.as_json(), "worker": report}
                for (text, library), results in runs.items()
                for run, report in results
            ],
        }
        target.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(f"\n{target}")


if __name__ == "__main__":
    main()
