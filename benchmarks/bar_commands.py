"""The command line of a script with several bars, whose runs are records (recipe_runs.py): recipe.py and engines.py."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType

from bpe_train import HERE, Check, print_checks
from corpora import DATA
from measure import CommandFailed
from recipe_runs import Record, Records

Report = Callable[[list[Record]], tuple[str, list[Check]]]
"""The table of a bar's records, and the checks."""


def report(script: str, reports: Mapping[str, Report], records: Records, bars: Iterable[str], *, save: bool) -> bool:
    """Prints and saves the results of the bars that have records; whether all limits are met."""
    met = True
    for bar in bars:
        found = records.latest(bar)
        if not found:
            continue
        others = len(records.of(bar=bar)) - len(found)
        note = f"; {others} runs of other code are not shown (--any-code)" if others else ""
        table, checks = reports[bar](found)
        print(f"\n{bar}{note}\n\n{table}\n")
        print_checks(checks)
        met = met and all(each["met"] for each in checks)
        if save:
            target = HERE / "results" / f"{datetime.date.today()}-{script}-{bar}.json"
            target.write_text(json.dumps({"runs": found, "checks": checks}, indent=1) + "\n")
    return met


def run_bars(script: str, about: str, reports: Mapping[str, Report], rooms: Iterable[ModuleType]) -> int:
    """Runs the command of `sys.argv`; each of the modules adds its own (`add_options`)."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = DATA / f"{script}.jsonl"
    parser.add_argument("--records", type=Path, default=default, help=f"[default: data/{default.name}]")
    parser.add_argument("--any-code", action="store_true", help="records of other versions of the code count too")
    parser.add_argument("--no-results", action="store_true", help="only print, save nothing")
    commands = parser.add_subparsers(dest="command", required=True)
    for room in rooms:
        room.add_options(commands)
    all_of = commands.add_parser("report", help="tables from the records of all runs")
    all_of.add_argument("files", type=Path, nargs="*", help="[default: that of --records]")
    given = parser.parse_args()
    if given.command == "report":
        records = Records(given.files or [given.records], given.any_code)
        return 0 if report(script, reports, records, reports, save=not given.no_results) else 1
    records = Records([given.records], given.any_code)
    met = True
    try:
        given.run(given, records)
    except CommandFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    finally:
        if given.command in reports:
            met = report(script, reports, records, [given.command], save=not given.no_results)
    return 0 if met else 1
