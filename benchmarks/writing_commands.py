"""Every ramlet command that writes, on very small inputs; kills.py and pairs.py run them.

build(forks, world)                 # creates the inputs: texts, tokenizers, datasets, a run
place = fresh(case, world, folder)  # copies the inputs of a case, always to the same path
snapshot(place)                     # all files, without times and memory, which differ between runs
"""

from __future__ import annotations

import json
import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import Forks

__all__ = ["CASES", "PREPARE", "READ", "TRAIN", "Case", "build", "differences", "fresh", "snapshot"]

_WORDS = ("the", "old", "small", "house", "tree", "river", "sees", "finds", "keeps", "leaves", "under", "over", "near")
READ = "--docs line --threads 2 --memory 2GB --quiet"
PREPARE = f"{READ} --tokenizer byte --tokens-per-shard 1500 --val-fraction 0.2"
TRAIN = (
    "train --data data --params 30k --seq-len 16 --batch-size 4 --lr 3e-3 --device cpu --precision fp32 --seed 5 "
    "--log-every 1 --eval-every 4 --eval-tokens 64 --checkpoint-every 2 --sample-every 0 --memory 8GB "
    "--threads 1 --quiet"
)
_WSD = "--schedule wsd --warmup 1"
_PIPELINE = """\
text: in
work: model
memory: 2GB
threads: 1
docs: line
tokenizer: {vocab_size: 290}
data: {val_fraction: 0.2}
report: true
"""


@dataclass(frozen=True)
class Case:
    """A command, and the files before it runs."""

    words: str
    out: str
    reads: tuple[str, ...] = ()
    """Its inputs: names in `build`'s world, or `name=other` for one under another name."""
    checks: str = ""
    """What `out` is before and must be at any moment: dataset, tokenizer, model, or file (the old or the new one)."""
    share: float = 1.0
    """Its share of the kills, relative to the others."""
    models: bool = False
    """Whether a model is trained or read."""


CASES: dict[str, Case] = {
    "tokenizer train": Case(f"tokenizer train in --vocab-size 300 --out tok {READ}", "tok", ("in",)),
    "tokenizer train --force": Case(
        f"tokenizer train in --vocab-size 300 --out tok --force {READ}", "tok", ("in", "tok=small-tok"), "tokenizer"
    ),
    "tokenizer encode": Case(
        f"tokenizer encode --tokenizer tok in --out ids.bin {READ}", "ids.bin", ("in", "tok", "ids.bin"), "file"
    ),
    "prepare": Case(f"prepare in --out out {PREPARE}", "out", ("in",), share=2),
    "prepare --append": Case(
        f"prepare more --out out --append {READ} --tokens-per-shard 1500", "out", ("more", "out=data"), "dataset", 2
    ),
    "prepare --pack --dedup-cache": Case(
        f"prepare in --out out --pack 32 --dedup line --dedup-cache seen {PREPARE}", "out", ("in", "seen")
    ),
    "prepare --near --dedup-cache": Case(
        f"prepare in --out out --near 0.5 --dedup none --dedup-cache known {PREPARE}", "out", ("in", "known")
    ),
    "prepare --near --append": Case(
        f"prepare more --out out --append --near 0.5 {READ} --tokens-per-shard 1500",
        "out",
        ("more", "out=data"),
        "dataset",
    ),
    "prepare --format npy": Case(f"prepare in --out ids.npy --format npy {READ} --tokenizer char", "ids.npy", ("in",)),
    "data merge": Case("data merge data other --out out --quiet", "out", ("data", "other")),
    "data merge --link": Case("data merge data other --link --out out --quiet", "out", ("data", "other")),
    **{
        f"data export {to}": Case(f"data export data --to {to} --out out --quiet", "out", ("data",))
        for to in ("nanogpt", "llm.c", "megatron", "npy", "hf")
    },
    "data verify --adopt": Case("data verify out --adopt --quiet", "out", ("out=with-shards",), "dataset"),
    "report": Case("report data tok --out page.html --quiet", "page.html", ("data", "tok", "page.html"), "file"),
    "export hf": Case("export run --to hf model --quiet", "model", ("run",), models=True),
    "export gguf": Case("export bpe-run --to gguf model --quiet", "model", ("bpe-run",), models=True),
    "export gguf-ready": Case("export bpe-run --to gguf-ready model --quiet", "model", ("bpe-run",), models=True),
    "train": Case(f"{TRAIN} --max-steps 6 --out new", "new", ("data",), share=2, models=True),
    "train --no-resume": Case(
        f"{TRAIN} --max-steps 6 --lr 1e-3 --no-resume --out new", "new", ("data", "new=run"), "model", 2, models=True
    ),
    "train --resume": Case(
        f"{TRAIN} --max-steps 9 --resume --out new", "new", ("data", "new=run"), "model", models=True
    ),
    "train --resume, wsd": Case(
        f"{TRAIN} {_WSD} --max-steps 9 --resume --out new", "new", ("data", "new=wsd-run"), "model", models=True
    ),
    "train --average": Case(f"{TRAIN} --average 0.5 --max-steps 6 --out new", "new", ("data",), models=True),
    "run": Case("run pipeline.yaml --quiet", "model", ("in", "pipeline.yaml"), share=0.3),
}


def build(forks: Forks, world: Path, *, models: bool = True) -> None:
    """Creates the inputs of the commands."""
    world.mkdir(parents=True)
    for name, seed in (("in", 1), ("more", 2)):
        (world / name).mkdir()
        for part in range(3):
            chance = random.Random(10 * seed + part)
            lines = (" ".join(chance.choice(_WORDS) for _ in range(chance.randint(4, 12))) for _ in range(60))
            (world / name / f"{part}.txt").write_text("\n".join(lines) + "\n")
    (world / "pipeline.yaml").write_text(_PIPELINE)
    (world / "ids.bin").write_bytes(b"what was there before")
    (world / "page.html").write_text("<!DOCTYPE html>what was there before")
    commands = [
        f"tokenizer train in --vocab-size 300 --out tok {READ}",
        f"tokenizer train in --vocab-size 280 --out small-tok {READ}",
        f"prepare in --out data {PREPARE}",
        f"prepare more --out other {PREPARE}",
        f"prepare more --out with-shards {PREPARE}",
        f"prepare in --out bpe-data {READ} --tokenizer tok",
        f"prepare more --out scrap --dedup line --dedup-cache seen {PREPARE}",
        f"prepare more --out near-scrap --near 0.5 --dedup none --dedup-cache known {PREPARE}",
    ]
    if models:
        commands += [
            f"{TRAIN} --max-steps 4 --out run",
            f"{TRAIN} {_WSD} --max-steps 6 --out wsd-run",
            f"{TRAIN.replace('--data data', '--data bpe-data')} --max-steps 2 --out bpe-run",
        ]
    for words in commands:
        ended = forks.run(words.split(), world)
        assert ended.code == 0, (words, ended.said)
    for at in range(2):
        shutil.copy2(world / "data/train/shard_00000.bin", world / f"with-shards/train/shard_moved{at}.bin")


def fresh(case: Case, world: Path, place: Path) -> Path:
    """A folder with only the inputs of the case; modification times are kept, because commands compare them."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for entry in case.reads:
        name, _, other = entry.partition("=")
        source = world / (other or name)
        if source.is_dir():
            shutil.copytree(source, place / name)
        else:
            shutil.copy2(source, place / name)
    return place


_VOLATILE = {
    *("seconds", "memory", "tokens_per_second", "measured", "peak", "parts", "predicted", "budget", "stages"),
    *("notes", "reuse", "journal", "crc32"),
}
"""Keys that differ between runs: times, memory, predictions from measured memory, lengths and checksums of these."""


def snapshot(place: Path) -> dict[str, bytes]:
    """Every file and empty folder, without what differs between runs."""
    found = {}
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                found[f"{name}/"] = b""
        else:
            found[name] = _lasting(path)
    return found


def _lasting(path: Path) -> bytes:
    content = path.read_bytes()
    try:
        if path.name in ("stats.json", "settings.yaml", "state.json"):
            import yaml

            parsed = yaml.safe_load(content) if path.suffix == ".yaml" else json.loads(content)
            return json.dumps(_without(parsed), sort_keys=True).encode()
        if path.name == "metrics.jsonl":
            lines = [_without(json.loads(line)) for line in content.splitlines()]
            return json.dumps(lines, sort_keys=True).encode()
    except ValueError:
        return content
    if path.name == "pipeline.json":
        # The record contains modification times, and fingerprints that depend on them.
        return re.sub(rb', \d{19}\]|"fingerprint": "\w+"', b"", content)
    if path.suffix == ".html":
        # Tables and charts contain seconds and memory, so compare only the headings, and that the page is complete.
        return b"\n".join([*re.findall(rb"<h[123][^>]*>.*?</h[123]>", content), content[-10:]])
    return content


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(each) for key, each in value.items() if key not in _VOLATILE}
    return [_without(each) for each in value] if isinstance(value, list) else value


def differences(wanted: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    """Names that only one of them has, or whose contents differ."""
    return [
        f"{name} is missing"
        if name not in found
        else f"{name} is left over"
        if name not in wanted
        else f"{name} differs"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]
