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

import sys
from functools import partial

import recipe_little
import recipe_race
import recipe_step
import recipe_text
from bar_commands import run_bars

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


def main() -> int:
    return run_bars("recipe", __doc__ or "", REPORTS, (recipe_text, recipe_race, recipe_little, recipe_step))


if __name__ == "__main__":
    sys.exit(main())
