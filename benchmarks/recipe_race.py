"""The seconds from the start of a process to a validation loss: ramlet now, ramlet before, and nanoGPT.

The rivals run once per seed, and their loss at the end is the target. A run of ours counts, with its whole time, if the
model it leaves is at or below the target: how fast a loss is reached on the way says nothing, because the learning rate
decays at the end. So runs of increasing length are tried until one is good enough. All models are evaluated on the same
sequences, outside of the time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
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


class Runner:
    """The runs of a race that have no record yet, one at a time."""

    def __init__(self, race: Race, given: argparse.Namespace, records: Records) -> None:
        self.race = override(race, given)
        self.given, self.records = given, records
        self.device: str = given.device or race.device
        self.data: Path = given.data.resolve()

    def once(self, contender: str, code: str, seed: int, steps: int, make: Callable[[], Record]) -> Record:
        key = {"bar": self.race.bar, "contender": contender, "code": code, "seed": seed, "asked_steps": steps}
        return self.records.once(make, device=self.device, **key, **self.text_and_size)

    @property
    def text_and_size(self) -> Record:
        """Only runs with the same ones can be compared."""
        return {"data": self.data.name, "size": " ".join(self.race.words), "eval_tokens": self.given.eval_tokens}

    def ramlet(self, code: Ramlet, seed: int, steps: int, contender: str = "") -> Record:
        def make() -> Record:
            with scratch() as folder:
                words = ("--data", self.data, "--device", self.device, "--max-steps", steps, "--seed", seed)
                took = code.train(folder / "run", *words, *self.race.words)
                return took | code.loss(folder / "run", self.data, self.given.eval_tokens, self.device)

        return self.once(contender or code.name, code.code, seed, steps, make)

    def nanogpt(self, seed: int, steps: int) -> Record:
        given, words = self.given, self.race.words
        if given.nanogpt is None:
            raise SystemExit("--nanogpt is needed: a checkout of nanoGPT")
        peer = NanoGPT(given.nanogpt.resolve(), self.device, tuple(f"--{size}" for size in given.nanogpt_sizes))
        length, batch = (int(words[words.index(name) + 1]) for name in ("--seq-len", "--batch-size"))

        def make() -> Record:
            with scratch() as folder:
                ids = nanogpt_data(self.data, folder / "data")
                took = peer.train(folder / "out", ids, steps=steps, seq_len=length, batch=batch, seed=seed)
                return took | peer.loss(folder / "out", self.data, given.eval_tokens, length)

        return self.once("nanogpt", peer.code, seed, steps, make)

    def before(self) -> Ramlet:
        return Ramlet.before(self.given.before, amount(self.race.params))

    def ours(self, seed: int, lengths: list[int]) -> None:
        """Runs of increasing length, up to the first that reaches every target."""
        lines = [line for line in self.records.latest(self.race.bar) if self.text_and_size.items() <= line.items()]
        targets = [line["loss"] for line in lines if line["seed"] == seed and line["contender"] in self.race.limits]
        for steps in sorted(lengths):
            run = self.ramlet(Ramlet.now(), seed, steps)
            known = len(targets) >= len(self.race.limits)
            if known and run["loss"] <= min(targets) and not self.given.all:
                return

    def pace(self) -> Record:
        """The time of a step, with its part of the evaluations, and that before the first one, from two short runs."""
        code = self.before()

        def make() -> Record:
            with scratch() as folder:
                words = ("--data", self.data, "--device", self.device, *self.race.words)
                short, longer = (code.train(folder / str(steps), *words, "--max-steps", steps) for steps in (10, 50))
            step = (longer["seconds"] - short["seconds"]) / (longer["steps"] - short["steps"])
            return {"step_seconds": step, "start_seconds": short["seconds"] - short["steps"] * step}

        key = {"bar": "pace", "contender": "before", "code": code.code, "data": self.data.name}
        return self.records.once(make, device=self.device, **key, params=self.race.params)


def gpu(given: argparse.Namespace, records: Records) -> None:
    """Rivals of 1,000 steps; ours of the given numbers of steps."""
    runner = Runner(GPU, given, records)
    for seed in given.seeds:
        if "nanogpt" in given.contenders:
            runner.nanogpt(seed, given.rival_steps)
        if "before" in given.contenders:
            runner.ramlet(runner.before(), seed, given.rival_steps)
        if "now" in given.contenders:
            runner.ours(seed, given.steps)


def cpu(given: argparse.Namespace, records: Records) -> None:
    """The version before runs for `--minutes`; ours for shares of its steps, if their number is not given."""
    runner = Runner(CPU, given, records)
    pace = runner.pace()
    steps = int((60 * given.minutes - pace["start_seconds"]) / pace["step_seconds"])
    for seed in given.seeds:
        if "before" in given.contenders:
            runner.ramlet(runner.before(), seed, steps)
        if "now" in given.contenders:
            runner.ours(seed, given.steps or [round(share * steps) for share in given.shares])


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
    tables, checks = [], []
    for title, lines in grouped(records).items():
        table, made = report_of_one(race, lines)
        tables.append(f"{title}\n\n{table}")
        checks += made
    return "\n\n".join(tables), checks


def grouped(records: list[Record]) -> dict[str, list[Record]]:
    """Runs that can be compared, by their text and size."""
    found: dict[str, list[Record]] = {}
    for line in records:
        found.setdefault(f"{line['data']}, {line['size']}, {line['eval_tokens']:,} tokens to evaluate", []).append(line)
    return found


def report_of_one(race: Race, records: list[Record]) -> tuple[str, list[Check]]:
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
