"""What a step costs: Muon's update, 8-bit states, tokens per second against nanoGPT, and memory of random runs.

`update` is measured by recipe_update.py in a process per optimizer, `speed` by the contenders of train.py (AdamW on
both sides), `random` by the runs of budgets.py.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import mean

import budgets
from bpe_train import HERE, Check, check
from corpora import DATA
from engine_option import ENGINES
from measure import markdown_table, measure, megabytes
from recipe_race import GPU, Runner, grouped, numbers, scratch
from recipe_runs import Ramlet, Record, Records
from train import SETUPS, Contender, Setup, contenders, synthetic

UPDATE_SHARE = {"cuda": 0.08, "cpu": 0.15}
STATE_BYTES = 1.4
"""The most per parameter, of 8-bit Muon."""
SAME_LOSS = 0.003
SPEED = 1.10
MEMORY_SHARES = {"124M x 64": 0.15, "350M x 32": 0.30}
PEER = "nanoGPT"
OURS = ("ramlet", "ramlet without QK-norm", "ramlet fp8")
"""With the defaults, which is what the bar is about; the others say what the difference costs."""


def optimizers() -> tuple[str, ...]:
    from ramlet.engines import OPTIMIZERS

    return OPTIMIZERS


def update(given: argparse.Namespace, records: Records) -> None:
    code = Ramlet.now()
    for name in given.optimizers or optimizers():
        words = ["--optimizer", name, "--device", given.device]
        for option in ("threads", "steps", "params"):
            words += [f"--{option}", str(getattr(given, option))] if getattr(given, option) else []

        def make(words: list[str] = words) -> Record:
            worker = [sys.executable, str(HERE / "recipe_update.py"), *words]
            return dict(json.loads(measure(worker, code.environment).output.splitlines()[-1]))

        key = {"bar": "update", "contender": name, "code": code.code, "params": given.params}
        records.once(make, device=given.device, **key)


def report_update(records: list[Record]) -> tuple[str, list[Check]]:
    rows, checks = [], []
    for line in sorted(records, key=lambda line: (line["device"], line["contender"])):
        share = line["update_seconds"] / line["step_seconds"]
        states = line["state_bytes"] / line["parameters"]
        times = [f"{line[name] * 1000:.2f} ms" for name in ("step_seconds", "update_seconds")]
        size = f"{line['parameters'] / 1e6:.1f}M, {line['device']}, {line['precision']}"
        rows.append([f"{line['contender']}, {size}", *times, f"{share:.1%}", f"{states:.2f}"])
        if line["contender"] == "muon":
            limit = UPDATE_SHARE[line["device"]]
            checks.append(check(f"muon's update in a step, {size}", f"{share:.1%}", f"<= {limit:.0%}", share <= limit))
        if line["contender"] == "muon8bit" and line["device"] == "cuda":
            claim = f"bytes of muon8bit's states per parameter, {size}"
            checks.append(check(claim, f"{states:.2f}", f"<= {STATE_BYTES}", states <= STATE_BYTES))
    return markdown_table(["optimizer", "step", "update", "share", "bytes of state per parameter"], rows), checks


def eightbit(given: argparse.Namespace, records: Records) -> None:
    """The same run with each of the two optimizers."""
    race, now = replace(GPU, bar="eightbit"), Ramlet.now()
    for seed in given.seeds:
        for name in ("muon", "muon8bit"):
            code = replace(now, options=("--optimizer", name))
            Runner(race, given, records).ramlet(code, seed, given.steps, contender=name)


def report_eightbit(records: list[Record]) -> tuple[str, list[Check]]:
    found = {title: _compared(lines) for title, lines in grouped(records).items()}
    tables = [f"{title}\n\n{table}" for title, (table, _) in found.items()]
    return "\n\n".join(tables), [each for _, checks in found.values() for each in checks]


def _compared(records: list[Record]) -> tuple[str, list[Check]]:
    rows = [
        [
            f"{line['contender']}, seed {line['seed']}",
            *(f"{line['steps']:,}", f"{line['seconds']:.1f}", f"{line['loss']:.4f}"),
        ]
        for line in sorted(records, key=lambda line: (line["contender"], line["seed"]))
    ]
    losses = {name: [line["loss"] for line in records if line["contender"] == name] for name in ("muon", "muon8bit")}
    checks = []
    if all(losses.values()):
        above = mean(losses["muon8bit"]) / mean(losses["muon"]) - 1
        claim = "the loss of muon8bit above that of muon, mean of all seeds"
        checks.append(check(claim, f"{above:+.2%}", f"<= {SAME_LOSS:.1%}", above <= SAME_LOSS))
    return markdown_table(["run", "steps", "seconds", "validation loss"], rows), checks


def speed(given: argparse.Namespace, records: Records) -> None:
    code = Ramlet.now()
    for name in given.setups:
        setup = SETUPS[name]
        data = DATA / f"train-{setup.vocab}"
        if not (data / "ids.npy").exists():
            synthetic(setup, data)
        with scratch() as folder:
            found = contenders(setup, given.device, given.nanogpt.resolve(), data, folder)
            chosen = [one for one in found if one.name in given.contenders]
            for number in range(1, given.repeats + 1):
                for one in chosen:

                    def make(one: Contender = one, setup: Setup = setup) -> Record:
                        one.once(setup, given.device)
                        if one.error:
                            raise SystemExit(f"{one.name}: {one.error}")
                        return {"tokens_per_second": one.rates[-1], "peak": one.peaks[-1]}

                    own = PEER if one.name == PEER else code.code
                    key = {"bar": "speed", "contender": f"{one.name}, {name}", "code": own, "number": number}
                    records.once(make, device=given.device, **key, setup=name)


def report_speed(records: list[Record]) -> tuple[str, list[Check]]:
    rows, checks = [], []
    for name in sorted({line["setup"] for line in records}):
        rates, peaks = {}, {}
        for tool in (PEER, *OURS):
            lines = [line for line in records if line["contender"] == f"{tool}, {name}"]
            if lines:
                rates[tool] = max(line["tokens_per_second"] for line in lines)
                peaks[tool] = max(line["peak"] for line in lines)
                rows.append([f"{name}, {tool}", f"{rates[tool]:,.0f}", megabytes(peaks[tool])])
        limit = MEMORY_SHARES.get(name)
        for tool in OURS:
            if not {tool, PEER} <= rates.keys():
                continue
            ratio, share = (of[tool] / of[PEER] for of in (rates, peaks))
            claim = f"{name}, {tool}: tokens/s vs. nanoGPT, AdamW"
            checks.append(check(claim, f"{ratio:.2f}x", f">= {SPEED}", ratio >= SPEED))
            if limit is not None:
                claim = f"{name}, {tool}: peak memory / nanoGPT's"
                checks.append(check(claim, f"{share:.0%}", f"<= {limit:.0%}", share <= limit))
    return markdown_table(["model, sequences per step", "tokens/s", "peak"], rows), checks


def random_runs(given: argparse.Namespace, records: Records) -> None:
    """The same configurations by seed, however they are divided into parts."""
    code = Ramlet.now()
    budgets.make_ids()
    rng = random.Random(given.seed)
    drawn = [(number, budgets.drawn(rng, given.device) | {"engine": given.engine}) for number in range(given.runs)]
    part, parts = given.part
    mine = drawn[part - 1 :: parts]

    def one(numbered: tuple[int, Record]) -> None:
        number, chosen = numbered
        with scratch() as folder:
            who = f"ramlet, {given.device}, engine {given.engine}"
            key = {"bar": "random", "contender": who, "code": code.code, "seed": given.seed}
            run = budgets.run_once
            records.once(lambda: run(number, chosen, given.device, folder), device=given.device, **key, number=number)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(one, mine))


def report_random(records: list[Record]) -> tuple[str, list[Check]]:
    tables, checks = [], []
    for who in sorted({line["contender"] for line in records}):
        own = [line for line in records if line["contender"] == who]
        table, made = budgets.judged(own, own[0]["device"])
        tables.append(f"{who}\n\n{table}")
        checks += made
    return "\n\n".join(tables), checks


def part_of(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise argparse.ArgumentTypeError("write it like 2/3")
    return part, parts


def add_options(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def command(name: str, run: object, about: str, device: str = "cuda") -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=about, description=about)
        parser.set_defaults(run=run)
        parser.add_argument("--device", choices=["cpu", "cuda"], default=device)
        return parser

    parser = command("update", update, "the share of an optimizer's update in a step, and its states", "cpu")
    parser.add_argument("--optimizers", type=lambda text: text.split(","), help="[default: all]")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--params", help="another size, to try the script")
    parser = command("eightbit", eightbit, "the loss of muon8bit against that of muon")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3], help="1,2,3")
    parser.add_argument("--eval-tokens", type=int, default=1 << 20)
    for size in ("--params", "--seq-len", "--batch-size"):
        parser.add_argument(size, help="another one, to try the script")
    parser = command("speed", speed, "tokens per second and memory, AdamW against nanoGPT's")
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--setups", type=lambda text: text.split(","), default=list(MEMORY_SHARES))
    parser.add_argument("--contenders", type=lambda text: text.split(","), default=[PEER, *OURS])
    parser.add_argument("--repeats", type=int, default=2)
    parser = command("random", random_runs, "random runs with random budgets: none over, predictions close", "cpu")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--engine", choices=("auto", *ENGINES), default="auto")
    parser.add_argument("--part", type=part_of, default=(1, 1), help="2/3: the second third of them")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    parser.add_argument("--seed", type=int, default=1)
