"""The engines on a CPU: native, torch, nanoGPT on torch and llm.c's CPU trainer; what they need, and what they compute.

    python benchmarks/engines.py speed --sizes 1M,3M --contenders native,torch    # tokens per second
    python benchmarks/engines.py together                 # two runs at the same time, against one alone
    python benchmarks/engines.py memory                   # the demo's run, 10M, 124M with 8-bit states
    python benchmarks/engines.py random --runs 200        # memory as planned, none over its budget or refused that fits
    python benchmarks/engines.py parity                   # the losses of 500 steps, native and torch
    python benchmarks/engines.py bits                     # threads, budgets, vectors, kills: the same bits
    python benchmarks/engines.py report FILE...           # tables from the records of all runs

nanoGPT's train.py and llm.c's train_gpt2.c are run unchanged, from checkouts (nanogpt_worker.py, llmc_worker.c). All
train with AdamW on the same ids, take turns, and run in processes of their own; ramlet through its command line. Tokens
per second are those of the median step without the first ones, of the best of --repeats runs. Memory is the peak RSS of
the whole process tree.

Every run is one line of the file of --records, and a command that is repeated only does what is missing there; runs of
other code are made again (--any-code counts them). Every command prints a Markdown table and the checks with measured
value and limit, and saves them with the runs, dated, in benchmarks/results/.
"""

from __future__ import annotations

import sys

import engines_random
import engines_same
import engines_speed
from bar_commands import run_bars

REPORTS = {
    "speed": engines_speed.report_speed,
    "together": engines_speed.report_together,
    "memory": engines_speed.report_memory,
    "random": engines_random.report_random,
    "parity": engines_same.report_parity,
    "bits": engines_same.report_bits,
}


def main() -> int:
    return run_bars("engines", __doc__ or "", REPORTS, (engines_speed, engines_random, engines_same))


if __name__ == "__main__":
    sys.exit(main())
