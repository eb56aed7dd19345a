"""The seconds from the start of a process to a validation loss: ramlet now, ramlet before, and nanoGPT.

The rivals run once per seed, and their loss at the end is the target. A run of ours counts, with its whole time, if the
model it leaves is at or below the target: how fast a loss is reached on the way says nothing, because the learning rate
decays at the end. So runs of increasing length are tried until one is good enough. All models are evaluated on the same
sequences, outside of the time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bpe_train import Check, check
from measure import markdown_table
from recipe_runs import NanoGPT, Ramlet, Record, Records, by_seed, nanogpt_data

EVAL_TOKENS = 1 << 20


@dataclass(frozen=True)
class Race:
    bar: str
    device: str
    params: str
    words: tuple[str, ...]
    """Of every run of ramlet."""
    limits: dict[str, float]
    """The most of each rival's seconds."""


GPU = Race(
    "gpu",
    "cuda",
    "124M",
    ("--params", "124M", "--seq-len", "1024", "--batch-size", "32"),
    {"nanogpt": 1 / 3, "before": 1 / 2},
)
CPU = Race("cpu", "cpu", "10M", ("--params", "10M", "--threads", "2"), {"before": 6 / 10})


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one run, whose checkpoints would fill a small disk."""
    with tempfile.TemporaryDirectory(prefix="ramlet-recipe-") as folder:
        yield Path(folder)


def ramlet_run(race: Race, code: Ramlet, data: Path, steps: int, seed: int, tokens: int, device: str) -> Record:
    with scratch() as folder:
        words = ("--data", data, "--device", device, "--max-steps", steps, "--seed", seed, *race.words)
        took = code.train(folder / "run", *words)
        return took | code.loss(folder / "run", data, tokens, device)


def gpu(given: argparse.Namespace, records: Records) -> None:
    """Rivals of 1,000 steps; ours of the given numbers of steps."""
    race, device = GPU, given.device or GPU.device
    race = override(race, given)
    data = given.data.resolve()
    if "nanogpt" in given.contenders:
        if given.nanogpt is None:
            raise SystemExit("--nanogpt is needed: a checkout of nanoGPT")
        peer = NanoGPT(given.nanogpt.resolve(), device, tuple(f"--{size}" for size in given.nanogpt_sizes))
        length, batch = (int(race.words[race.words.index(name) + 1]) for name in ("--seq-len", "--batch-size"))

        def theirs(seed: int) -> Record:
            with scratch() as folder:
                ids = nanogpt_data(data, folder / "data")
                shape = {"seq_len": length, "batch": batch}
                took = peer.train(folder / "out", ids, steps=given.rival_steps, seed=seed, **shape)
                return took | peer.loss(folder / "out", data, given.eval_tokens, length)

        for seed in given.seeds:
            key = {"bar": race.bar, "contender": "nanogpt", "code": peer.code, "data": data.name, "seed": seed}
            records.once(lambda seed=seed: theirs(seed), device=device, **key, steps=given.rival_steps)  # type: ignore[misc]
    if "before" in given.contenders:
        rival(race, given, records, data, given.rival_steps, device)
    if "now" in given.contenders:
        ours(race, given, records, data, given.steps, device)


def cpu(given: argparse.Namespace, records: Records) -> None:
    """The version before runs for `--minutes`; ours for shares of its steps, if their number is not given."""
    race, device = override(CPU, given), given.device or CPU.device
    data = given.data.resolve()
    before = Ramlet.before(given.before, amount(race.words[1]))
    key = {"bar": "cpu pace", "contender": "before", "code": before.code, "data": data.name}
    pace = records.once(lambda: measured_pace(race, before, data, device), device=device, **key)
    steps = int((60 * given.minutes - pace["start_seconds"]) / pace["step_seconds"])
    if "before" in given.contenders:
        rival(race, given, records, data, steps, device)
    if "now" in given.contenders:
        lengths = given.steps or [round(share * steps) for share in given.shares]
        ours(race, given, records, data, lengths, device)


def measured_pace(race: Race, code: Ramlet, data: Path, device: str) -> Record:
    """The time of a step, with its part of the evaluations, and that before the first one, from two short runs."""
    with scratch() as folder:
        words = ("--data", data, "--device", device, *race.words)
        short = code.train(folder / "short", *words, "--max-steps", 10)
        longer = code.train(folder / "longer", *words, "--max-steps", 50)
    step = (longer["seconds"] - short["seconds"]) / (longer["steps"] - short["steps"])
    return {"step_seconds": step, "start_seconds": short["seconds"] - short["steps"] * step}


def rival(race: Race, given: argparse.Namespace, records: Records, data: Path, steps: int, device: str) -> None:
    code = Ramlet.before(given.before, amount(race.words[1]))
    for seed in given.seeds:
        key = {"bar": race.bar, "contender": "before", "code": code.code, "data": data.name, "seed": seed}

        def make(seed: int = seed) -> Record:
            return ramlet_run(race, code, data, steps, seed, given.eval_tokens, device)

        records.once(make, device=device, **key, steps=steps)


def ours(race: Race, given: argparse.Namespace, records: Records, data: Path, steps: list[int], device: str) -> None:
    """Of each seed the runs up to the first that reaches every target."""
    code = Ramlet.now()
    for seed in given.seeds:
        rivals = [line for line in records.latest(race.bar) if line["contender"] != "now" and line["seed"] == seed]
        targets = [line["loss"] for line in rivals if line["data"] == data.name]
        for length in sorted(steps):
            key = {"bar": race.bar, "contender": "now", "code": code.code, "data": data.name, "seed": seed}

            def make(seed: int = seed, length: int = length) -> Record:
                return ramlet_run(race, code, data, length, seed, given.eval_tokens, device)

            run = records.once(make, device=device, **key, steps=length)
            if len(targets) >= len(race.limits) and run["loss"] <= min(targets) and not given.all:
                break


def override(race: Race, given: argparse.Namespace) -> Race:
    """With another size, to try the script."""
    words = list(race.words)
    for name in ("params", "seq_len", "batch_size"):
        flag, value = f"--{name.replace('_', '-')}", getattr(given, name, None)
        if value is not None:
            if flag in words:
                words[words.index(flag) + 1] = str(value)
            else:
                words += [flag, str(value)]
    return Race(race.bar, race.device, words[1], tuple(words), race.limits)


def amount(text: str) -> int:
    from ramlet.settings.kinds import Count

    return Count().read(text)


def reached(race_records: list[Record], rival_name: str) -> dict[int, tuple[Record, Record | None]]:
    """By seed: the rival's run, and the shortest of ours that is at or below its loss."""
    rivals = {line["seed"]: line for line in race_records if line["contender"] == rival_name}
    own = by_seed(line for line in race_records if line["contender"] == "now")
    found = {}
    for seed, target in sorted(rivals.items()):
        good = [line for line in own.get(seed, []) if line["loss"] <= target["loss"]]
        found[seed] = target, min(good, key=lambda line: line["seconds"], default=None)
    return found


def report(race: Race, records: list[Record]) -> tuple[str, list[Check]]:
    rows = [
        [
            f"{line['contender']}, seed {line['seed']}",
            f"{line['parameters'] / 1e6:.1f}M",
            f"{line['steps']:,}",
            f"{line['seconds']:.1f}",
            f"{line['evaluating_seconds']:.1f}" if "evaluating_seconds" in line else "",
            f"{line['loss']:.4f}",
            f"{line['bits_per_byte']:.4f}" if line["bits_per_byte"] else "",
        ]
        for line in sorted(records, key=lambda line: (line["contender"], line["seed"], line["steps"]))
    ]
    header = ["run", "parameters", "steps", "seconds", "of which its evaluations", "validation loss", "bits per byte"]
    checks = []
    for name, limit in race.limits.items():
        pairs = reached(records, name)
        if not pairs:
            continue
        met = {seed: (own, target) for seed, (target, own) in pairs.items() if own is not None}
        shares = {seed: own["seconds"] / target["seconds"] for seed, (own, target) in met.items()}
        shown = ", ".join(
            f"seed {seed}: {own['seconds']:.1f} of {target['seconds']:.1f} s in {own['steps']:,} steps"
            for seed, (own, target) in met.items()
        )
        all_met = len(met) == len(pairs)
        value = f"{median(shares.values()):.2f} ({shown})" if shares else "never reached"
        claim = f"{race.bar}: seconds to the loss of {name} / its seconds, median of {len(pairs)} seeds"
        value += "" if all_met else "; not reached by every seed"
        good = all_met and median(shares.values()) <= limit
        checks.append(check(claim, value, f"<= {limit:.2f}", good))
        if all("evaluating_seconds" in target for _, target in met.values()) and met:
            bare = [own["seconds"] / (target["seconds"] - target["evaluating_seconds"]) for own, target in met.values()]
            claim = f"{race.bar}: the same without the evaluations of {name}"
            checks.append(check(claim, f"{median(bare):.2f}", f"<= {limit:.2f}", median(bare) <= limit))
    return markdown_table(header, rows), checks


def add_options(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[argparse.ArgumentParser]:
    made = []
    for name, run, about in (
        ("gpu", gpu, "124M, 32 x 1024 tokens per step: seconds to nanoGPT's loss and to that of before"),
        ("cpu", cpu, "10M on two cores: seconds to the loss that the version before reaches in ten minutes"),
    ):
        parser = commands.add_parser(name, help=about, description=about)
        parser.set_defaults(run=run)
        contenders = ["nanogpt", "before", "now"] if name == "gpu" else ["before", "now"]
        parser.add_argument("--data", type=Path, required=True, help="a dataset of `ramlet prepare`, with validation")
        parser.add_argument("--before", help="interpreter or checkout of the version before; else its defaults, by now")
        parser.add_argument("--contenders", type=names(contenders), default=contenders, help=",".join(contenders))
        parser.add_argument("--seeds", type=numbers, default=[1, 2, 3], help="1,2,3")
        parser.add_argument("--eval-tokens", type=int, default=EVAL_TOKENS)
        parser.add_argument("--all", action="store_true", help="all numbers of steps, also after the first good one")
        parser.add_argument("--device", choices=["cpu", "cuda"], help="another one, to try the script")
        for size in ("--params", "--seq-len", "--batch-size"):
            parser.add_argument(size, help="another one, to try the script")
        made.append(parser)
    gpu_parser, cpu_parser = made
    gpu_parser.add_argument("--steps", type=numbers, default=[300, 350, 400, 450, 500], help="of ours: 300,350,400")
    gpu_parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    gpu_parser.add_argument("--nanogpt-sizes", nargs="*", default=[], help="n_layer=2 and the like, to try the script")
    gpu_parser.add_argument("--rival-steps", type=int, default=1000, help="of nanoGPT and of the version before")
    cpu_parser.add_argument("--steps", type=numbers, help="of ours; otherwise --shares of those of the version before")
    cpu_parser.add_argument("--shares", type=shares, default=[0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6])
    cpu_parser.add_argument("--minutes", type=float, default=10.0, help="of the version before")
    return made


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def shares(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def names(known: list[str]) -> object:
    def read(text: str) -> list[str]:
        found = text.split(",")
        if not set(found) <= set(known):
            raise argparse.ArgumentTypeError(f"choose from {', '.join(known)}")
        return found

    return read


__all__ = ["CPU", "GPU", "Race", "add_options", "names", "numbers", "reached", "report", "scratch"]
