"""What the default recipe of `ramlet train` gains: ramlet before, ramlet now and nanoGPT in one run.

    python benchmarks/recipe.py text                                           # the texts and datasets
    python benchmarks/recipe.py gpu --data DATASET --nanogpt PATH --before CHECKOUT --steps 300,350,400
    python benchmarks/recipe.py cpu --data DATASET --before CHECKOUT
    python benchmarks/recipe.py little --before CHECKOUT
    python benchmarks/recipe.py demo --before CHECKOUT
    python benchmarks/recipe.py update --threads 2                             # and with --device cuda
    python benchmarks/recipe.py eightbit --data DATASET
    python benchmarks/recipe.py speed --nanogpt PATH
    python benchmarks/recipe.py random --runs 200                              # --device cuda --runs 140 --part 1/3
    python benchmarks/recipe.py report FILE...                                 # tables from the records of all runs

Every run is one line of the file of --records, and a command that is repeated only does what is missing there. So a bar
can be measured in parts (--seeds, --contenders, --part), on several machines, and `report` makes one table of all
files. The version before is an interpreter, or a built checkout, of an earlier commit:

    git worktree add ../before COMMIT && make -C ../before build

Every command prints a Markdown table and the checks with measured value and limit of its bar, and saves them with the
runs, dated, in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from functools import partial
from pathlib import Path

import recipe_little
import recipe_race
import recipe_step
import recipe_text
from bpe_train import HERE, print_checks
from corpora import DATA
from measure import CommandFailed
from recipe_runs import Records

REPORTS = {
    "gpu": partial(recipe_race.report, recipe_race.GPU),
    "cpu": partial(recipe_race.report, recipe_race.CPU),
    "little": recipe_little.report_little,
    "demo": recipe_little.report_demo,
    "update": recipe_step.report_update,
    "eightbit": recipe_step.report_eightbit,
    "speed": recipe_step.report_speed,
    "random": recipe_step.report_random,
}


def report(records: Records, bars: list[str], *, save: bool) -> bool:
    """Prints and saves the results of the bars that have records; whether all limits are met."""
    met = True
    for bar in bars:
        found = records.latest(bar)
        if not found:
            continue
        others = len(records.of(bar=bar)) - len(found)
        note = f"; {others} runs of other code are not shown (--any-code)" if others else ""
        table, checks = REPORTS[bar](found)
        print(f"\n{bar}{note}\n\n{table}\n")
        print_checks(checks)
        met = met and all(each["met"] for each in checks)
        if save:
            target = HERE / "results" / f"{datetime.date.today()}-recipe-{bar}.json"
            target.write_text(json.dumps({"runs": found, "checks": checks}, indent=1) + "\n")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=DATA / "recipe.jsonl", help="[default: data/recipe.jsonl]")
    parser.add_argument("--any-code", action="store_true", help="records of other versions of the code count too")
    parser.add_argument("--no-results", action="store_true", help="only print, save nothing")
    commands = parser.add_subparsers(dest="command", required=True)
    recipe_text.add_options(commands)
    recipe_race.add_options(commands)
    recipe_little.add_options(commands)
    recipe_step.add_options(commands)
    all_of = commands.add_parser("report", help="tables from the records of all runs")
    all_of.add_argument("files", type=Path, nargs="*", help="[default: that of --records]")
    given = parser.parse_args()
    if given.command == "text":
        recipe_text.make(given)
        return 0
    if given.command == "report":
        records = Records(given.files or [given.records], given.any_code)
        return 0 if report(records, list(REPORTS), save=not given.no_results) else 1
    records = Records([given.records], given.any_code)
    try:
        given.run(given, records)
    except CommandFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    finally:
        met = report(records, [given.command], save=not given.no_results)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
