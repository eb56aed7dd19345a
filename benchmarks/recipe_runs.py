"""What the bars of recipe.py share: the versions of ramlet, nanoGPT, and the records of their runs.

Every run is a process of its own and becomes one line of a file of records, so a bar can be measured in parts, on
several machines and days, and a command that is repeated only does what is missing. A record of other code than the
present one (`code`, a checksum of the package) does not count as done.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from bpe_train import HERE
from measure import machine, measure
from train import _gpu

Record = dict[str, Any]

CHECKSUM = """
import hashlib, pathlib, ramlet
files = sorted(pathlib.Path(ramlet.__file__).parent.rglob("*"))
digest = hashlib.sha256(b"".join(path.read_bytes() for path in files if path.suffix in (".py", ".so")))
print(digest.hexdigest()[:12])
"""


def rate_before(params: int) -> float:
    """The default learning rate until AdamW and cosine were the default."""
    return min(2.5e-3, 6e-4 * (125e6 / params) ** 0.44)


def recipe_before(params: int) -> tuple[str, ...]:
    """The defaults of that time as options of this version."""
    from ramlet.settings.declared import argv
    from ramlet.training.settings import RunSettings

    rate = float(f"{rate_before(params):.4g}")
    return tuple(argv(RunSettings, {"optimizer": "adamw", "qk_norm": False, "schedule": "cosine", "lr": rate}))


@dataclass(frozen=True)
class Ramlet:
    """A version of ramlet: its interpreter, and the folder of its package if it is not installed there."""

    name: str
    python: str = sys.executable
    package: str = ""
    options: tuple[str, ...] = ()
    """Of every `ramlet train`."""

    @classmethod
    def now(cls) -> Ramlet:
        return cls("now", package=str(HERE.parent / "python"))

    @classmethod
    def before(cls, given: str | None, params: int | None = None) -> Ramlet:
        """From an interpreter or a checkout; without either the present code with the defaults of before."""
        if given is None:
            if params is None:
                raise SystemExit("--before is needed: the interpreter, or a built checkout, of the version before")
            return cls("before", package=cls.now().package, options=recipe_before(params))
        path = Path(given).absolute()
        if not path.is_dir():
            return cls("before", str(path))
        own = path / ".venv" / "bin" / "python"
        return cls("before", str(own) if own.exists() else sys.executable, str(path / "python"))

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": self.package} if self.package else {}

    def command(self, *words: object) -> list[str]:
        return [self.python, "-m", "ramlet", *map(str, words)]

    @cached_property
    def code(self) -> str:
        """Changes with the package and the options."""
        command = [self.python, "-c", CHECKSUM]
        done = subprocess.run(command, env={**os.environ, **self.environment}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{self.python} cannot import ramlet: {done.stderr.strip().splitlines()[-1]}")
        return " ".join([done.stdout.strip(), *self.options])

    def read(self, *words: object) -> Any:
        """The JSON output of a command, whose time does not count."""
        return json.loads(measure(self.command(*words, "--json"), self.environment).output)

    def train(self, out: Path, *words: object) -> Record:
        """A run, timed from the start of its process to its end."""
        command = self.command("train", "--out", out, "--quiet", *words, *self.options)
        measured = measure(command, self.environment)
        stats = json.loads((out / "stats.json").read_text())
        rates = [line["tokens_per_second"] for line in metrics(out) if line.get("tokens_per_second")]
        return {
            "seconds": round(measured.seconds, 2),
            "steps": stats["steps"],
            "parameters": stats["parameters"],
            "tokens_per_second": sorted(rates)[len(rates) // 2] if rates else None,
            "peak_rss": measured.peak_rss,
            "device_peak": stats["memory"]["device_peak"],
        }

    def loss(self, run: Path, data: Path, tokens: int | str, device: str) -> Record:
        """The score of the model that a run has left."""
        scores = self.read("eval", run, "--data", f"val={data}", "--tokens", tokens, "--device", device)["scores"]
        return {"loss": scores["val"]["loss"], "bits_per_byte": scores["val"]["bits_per_byte"]}


def metrics(run: Path) -> list[Record]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@dataclass(frozen=True)
class NanoGPT:
    """nanoGPT's own train.py, unchanged, with the defaults of its config/train_gpt2.py but for what is given."""

    checkout: Path
    device: str
    sizes: tuple[str, ...] = ()
    """n_layer, n_head and the like, instead of its defaults (124M)."""

    @property
    def code(self) -> str:
        return " ".join(["nanoGPT", *self.sizes])

    def train(self, out: Path, data: Path, *, steps: int, seq_len: int, batch: int, seed: int) -> Record:
        """Warmup over a tenth of the steps, decay over all, evaluated as often as it does by default, every 1,000."""
        words = [
            *(f"--dataset={data}", f"--out_dir={out}", f"--device={self.device}", f"--compile={self.device == 'cuda'}"),
            *(f"--batch_size={batch}", f"--block_size={seq_len}", "--gradient_accumulation_steps=1"),
            *(f"--max_iters={steps}", f"--lr_decay_iters={steps}", f"--warmup_iters={steps // 10}"),
            *(f"--eval_interval={min(1000, steps)}", "--log_interval=10", *self.sizes),
        ]
        worker = [sys.executable, str(HERE / "nanogpt_worker.py"), f"--seed={seed}", str(self.checkout), *words]
        measured = measure(worker)
        report = json.loads(measured.output.strip().splitlines()[-1])
        return {
            "seconds": round(measured.seconds, 2),
            "evaluating_seconds": report["evaluating_seconds"],
            "steps": steps,
            "peak_rss": measured.peak_rss,
            "device_peak": report["reserved"],
        }

    def loss(self, run: Path, data: Path, tokens: int, seq_len: int) -> Record:
        """By ramlet's evaluation, on the same sequences."""
        command = [sys.executable, str(HERE / "nanogpt_loss.py"), self.checkout, run / "ckpt.pt", data]
        given = ["--tokens", str(tokens), "--seq-len", str(seq_len), "--device", self.device]
        output = measure([*map(str, command), *given], Ramlet.now().environment).output
        scored: Record = json.loads(output.splitlines()[-1])  # its model prints too
        return scored


def nanogpt_data(data: Path, folder: Path) -> Path:
    """The dataset in nanoGPT's format; its vocabulary is rounded up to a multiple of 64, as nanoGPT advises."""
    now = Ramlet.now()
    measure(now.command("data", "export", data, "--to", "nanogpt", "--out", folder, "--quiet"), now.environment)
    size = json.loads((data / "dataset_metadata.json").read_text())["vocab_size"]
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": size + -size % 64}))
    return folder


@dataclass
class Records:
    """The lines of one or more files; new ones are appended to the first."""

    files: list[Path]
    any_code: bool = False
    """Also records of other versions of the code count."""
    lines: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = Lock()
        for file in self.files:
            if file.exists():
                self.lines += [json.loads(line) for line in file.read_text().splitlines()]

    def of(self, **key: Any) -> list[Record]:
        return [line for line in self.lines if all(line.get(name) == value for name, value in key.items())]

    def latest(self, bar: str) -> list[Record]:
        """Those of a bar; of each contender, on each device, only those of the code that was measured last."""
        found = self.of(bar=bar)
        codes = {(line["contender"], line["device"]): line["code"] for line in found}
        return [line for line in found if self.any_code or line["code"] == codes[line["contender"], line["device"]]]

    def once(self, make: Callable[[], Record], *, device: str, **key: Any) -> Record:
        """The record with this key; runs it if there is none."""
        known = self.of(device=device, **{name: key[name] for name in key if name != "code" or not self.any_code})
        if known:
            return known[-1]
        print(" ".join(str(value) for value in key.values()), file=sys.stderr, flush=True)
        line = {**key, "device": device, "machine": machine() | _gpu(device), **make()}
        with self._lock:
            self.lines.append(line)
            self.files[0].parent.mkdir(parents=True, exist_ok=True)
            with self.files[0].open("a") as file:
                file.write(json.dumps(line) + "\n")
        return line


def by_seed(records: Iterable[Record]) -> dict[int, list[Record]]:
    """The records of each seed, the shortest runs first."""
    found: dict[int, list[Record]] = {}
    for line in sorted(records, key=lambda line: line["steps"]):
        found.setdefault(line["seed"], []).append(line)
    return found
