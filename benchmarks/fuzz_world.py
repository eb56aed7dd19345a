"""The small world that benchmarks/fuzz.py corrupts, and which command reads which of its files.

python benchmarks/fuzz_world.py FOLDER native     # with a model that this engine has trained
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from engine_option import with_engine

__all__ = ["KINDS", "Kind", "make_world"]

Command = list[str] | Callable[[], None]


@dataclass(frozen=True)
class Kind:
    name: str
    file: str
    """A glob pattern; one of its matches is corrupted."""
    commands: list[Command]
    models: bool = False
    """Whether its commands train or load a model."""


def _words(*lines: str) -> list[Command]:
    return [line.split() for line in lines]


def loader() -> None:
    import ramlet

    for path in ("arr.npy", "data", "packed"):
        with ramlet.Loader(path, seq_len=None if path == "packed" else 16, batch_size=2) as made:
            for _ in zip(range(3), made):
                pass


def stream() -> None:
    import ramlet

    with ramlet.StreamLoader("in", tokenizer="tok", seq_len=16, batch_size=2, epochs=1) as made:
        for _ in zip(range(20), made):
            pass


def dataset() -> None:
    import ramlet

    for path in ("data", "packed"):
        made = ramlet.Dataset(path)
        for _ in zip(range(20), made.documents("train")):
            pass


def _reading(name: str) -> list[Command]:
    return _words(
        f"tokenizer encode {name} -T tok -o ids.new -m MEMORY",
        f"tokenizer train {name} -o new -v 300 -m MEMORY",
        f"tokenizer train {name} -o new --type char -m MEMORY",
        f"prepare {name} -o new -T tok -m MEMORY",
        f"prepare {name} -o new -T byte --docs line --dedup line -m MEMORY --on-error skip",
    )


_DATASET = [
    *_words(
        "data inspect data",
        "data verify data -m MEMORY",
        "data verify packed -m MEMORY",
        "data export data --to nanogpt -o new -m MEMORY",
        "data export packed --to npy -o new -m MEMORY",
        "data export data --to megatron -o new -m MEMORY",
        "data merge data other -o new -m MEMORY",
        "report data -m MEMORY",
        "report packed -m MEMORY",
        "prepare in/a.jsonl -o data --append -m MEMORY",
        "prepare in/a.txt -o data -T byte --docs line --dedup none --tokens-per-shard 4000 -m MEMORY",
    ),
    loader,
    dataset,
]
_TOKENIZER = _words(
    "tokenizer show tok --text words",
    "tokenizer encode in/a.txt -T tok -o ids.new -m MEMORY",
    "tokenizer decode ids.bin -T tok",
    "prepare in/a.txt -o new -T tok -m MEMORY",
    "report tok -m MEMORY",
)
_HALF = _words("prepare in/a.txt -o half -T byte --docs line --dedup line --tokens-per-shard 4000 -m MEMORY")
_RUN = _words(
    "generate run -p the -n 4 --device cpu -m MEMORY",
    "eval run -d data --tokens 64 --device cpu -m MEMORY",
    "export run new -m MEMORY",
)
_TRAIN = "train --data data --params 20k --seq-len 16 --batch-size 2 --max-steps 4 --checkpoint-every 2 --device cpu"
_RESUMED = _words(f"{_TRAIN} -o run -m MEMORY", f"{_TRAIN} -o stopped -m MEMORY", *(" ".join(one) for one in _RUN))

KINDS = [
    *(Kind(f"input {ending}", f"in/a.{ending}", _reading(f"in/a.{ending}")) for ending in ("txt", "jsonl", "parquet")),
    *(
        Kind(f"input {ending}", f"in/a.{inner}.{ending}", _reading(f"in/a.{inner}.{ending}"))
        for inner, ending in (("txt", "gz"), ("jsonl", "zst"), ("txt", "xz"), ("jsonl", "bz2"))
    ),
    Kind("input folder", "in/*", [*_reading("in"), stream]),
    Kind("tokenizer.json", "tok/tokenizer.json", [*_TOKENIZER, stream]),
    Kind("vocab.json", "pair/vocab.json", _words("tokenizer show pair", "prepare in/a.txt -o new -T pair -m MEMORY")),
    Kind("merges.txt", "pair/merges.txt", _words("tokenizer show pair", "prepare in/a.txt -o new -T pair -m MEMORY")),
    Kind("tiktoken", "t.tiktoken", _words("tokenizer show t.tiktoken --pattern gpt2", "tokenizer show t.tiktoken")),
    Kind("tokenizer stats", "tok/stats.json", _words("report tok -m MEMORY", "tokenizer train in/a.txt -o tok -v 300")),
    Kind("file of ids", "ids.bin", _words("tokenizer decode ids.bin -T tok")),
    Kind("manifest", "*/dataset_metadata.json", _DATASET),
    Kind("dataset tokenizer", "data/tokenizer.json", _DATASET),
    Kind(
        "dataset stats", "data/stats.json", _words("report data -m MEMORY", *(" ".join(one) for one in _DATASET[-3:-2]))
    ),
    Kind("shard", "*/train/*.bin", _DATASET),
    Kind("index", "*/train/*.idx", _DATASET),
    Kind("adopting note", "data/.adopting.json", _words("data verify data --adopt -m MEMORY")),
    Kind("array", "arr.npy", [loader]),
    Kind("array note", "arr.npy.json", [loader, *_words("prepare in/a.txt -o arr.npy --format npy -T byte -m MEMORY")]),
    Kind("prepare plan", "half/.work/plan.json", [*_HALF, *_words("report half")]),
    Kind("prepare inputs", "half/.work/inputs/*", _HALF),
    Kind("prepare notes", "half/.work/scan/*", _HALF),
    Kind("dedup cache", "cache/*", _words("prepare in/a.jsonl -o new -T byte --dedup-cache cache -m MEMORY")),
    Kind("prepare config", "prepare.yaml", _words("prepare prepare.yaml -m MEMORY")),
    Kind(
        "pipeline",
        "pipeline.yaml",
        _words("run pipeline.yaml --dry-run", "run pipeline.yaml --only data --dry-run -m MEMORY"),
    ),
    Kind("pipeline record", "work/.pipeline.json", _words("run pipeline.yaml --dry-run")),
    Kind("report settings", "reported/settings.yaml", _words("report reported -m MEMORY")),
    Kind("report metrics", "reported/metrics.jsonl", _words("report reported -m MEMORY")),
    Kind("report measures", "reported/measures.json", _words("report reported -m MEMORY")),
    Kind("init", "in/*", _words("init in -o new.yaml -m MEMORY"), models=True),
    Kind("model config", "run/config.json", _RUN, models=True),
    Kind("generation config", "run/generation_config.json", _RUN, models=True),
    Kind("model tokenizer", "run/tokenizer.json", _RUN, models=True),
    Kind("model weights", "run/model.safetensors", _RUN, models=True),
    Kind("run settings", "*/settings.yaml", _RESUMED, models=True),
    Kind("run stats", "run/stats.json", [*_RESUMED, *_words("report run -m MEMORY")], models=True),
    Kind("run metrics", "*/metrics.jsonl", [*_RESUMED, *_words("report run -m MEMORY")], models=True),
    Kind("checkpoint state", "stopped/checkpoints/*/state.json", _RESUMED[1:2], models=True),
    Kind("checkpoint tensors", "stopped/checkpoints/*/*.safetensors", _RESUMED[1:2], models=True),
    Kind(
        "train config",
        "model.yaml",
        _words(f"{_TRAIN} --config model.yaml -o new -m MEMORY".replace("--params 20k ", "")),
        models=True,
    ),
]


def make_world(folder: Path, engine: str | None) -> None:
    import numpy as np

    import ramlet
    from ramlet.tokenizer.files import tiktoken, vocab_merges
    from ramlet.tokenizer.folder import train_to_folder
    from ramlet.tokenizer.settings import TrainSettings

    folder.mkdir(parents=True)
    os.chdir(folder)
    chance = Random(1)
    known = [
        "the",
        "a",
        "one",
        "red",
        "old",
        "small",
        "house",
        "tree",
        "river",
        "sees",
        "finds",
        "keeps",
        "under",
        "near",
    ]
    lines = [" ".join(chance.choices(known, k=chance.randint(4, 12))) + f" {chance.random():.3f}" for _ in range(300)]
    text = "\n".join(lines) + "\n"
    rows = "".join(json.dumps({"id": at, "text": line, "meta": {"a": [1]}}) + "\n" for at, line in enumerate(lines))
    _inputs(Path("in"), text, rows, lines)
    with ramlet.Meter(ramlet.Budget.parse("4GB")) as meter:
        train_to_folder(["in/a.txt"], Path("tok"), TrainSettings(vocab_size=300), meter=meter)
    tokenizer = ramlet.Tokenizer.load("tok")
    model: Any = tokenizer._model
    vocab_merges.write(model, "pair")
    tiktoken.write(model, "t.tiktoken")
    np.asarray(tokenizer.encode(text[:2000]), np.uint16).tofile("ids.bin")
    settings: dict[str, Any] = {"tokenizer": "byte", "documents": "line", "dedup": "none", "tokens_per_shard": 4000}
    ramlet.prepare("in/a.txt", "data", **settings)
    ramlet.prepare("in/a.jsonl", "other", **settings)
    ramlet.prepare("in/a.txt", "packed", **settings, pack=64)
    ramlet.prepare("in/a.txt", "arr.npy", tokenizer="byte", output_format="npy")
    ramlet.prepare("in/a.txt", "cached", tokenizer="byte", documents="line", dedup_cache="cache")
    Path("data/.adopting.json").write_text(json.dumps([["train/shard_00090.bin", "train/shard_00091.bin"]]))
    _unfinished(settings)
    _reported()
    Path("prepare.yaml").write_text(
        "inputs: [in/a.txt, in/a.jsonl]\nout: new\ntokenizer: byte\ndedup: line\nmin_chars: 3\n"
    )
    Path("pipeline.yaml").write_text(
        "work: work\ntext: [in/a.txt]\ntokenizer: {vocab_size: 300}\ndata: {dedup: line}\n"
        "model: {params: 20k, seq_len: 16}\ntraining: {max_steps: 3, batch_size: 2}\nmemory: 2GB\n"
    )
    Path("work").mkdir()
    Path("work/.pipeline.json").write_text(_RECORD)
    Path("model.yaml").write_text("n_layer: 1\nn_head: 2\nn_embd: 16\nrope_theta: 10000\nrms_norm_eps: 0.00001\n")
    if engine:
        _trained(engine)


def _inputs(folder: Path, text: str, rows: str, lines: list[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    (folder / "a.txt").write_text(text)
    (folder / "a.jsonl").write_text(rows)
    (folder / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "a.txt.xz").write_bytes(lzma.compress(text.encode()))
    (folder / "a.jsonl.bz2").write_bytes(bz2.compress(rows.encode()))
    (folder / "a.jsonl.zst").write_bytes(pa.compress(rows.encode(), codec="zstd", asbytes=True))
    pq.write_table(pa.table({"text": lines}), folder / "a.parquet", row_group_size=50)


def _unfinished(settings: dict[str, Any]) -> None:
    """Leaves the files of a `prepare` that was stopped between its stages."""
    import ramlet
    from ramlet.preparing.run import prepare_to
    from ramlet.preparing.settings import PrepareSettings

    class Stopping(ramlet.Meter):
        def stage(self, name: str) -> None:
            super().stage(name)
            if name == "tokenizing":
                raise KeyboardInterrupt

    with Stopping(ramlet.Budget.parse("4GB")) as meter:
        try:
            prepare_to("in/a.txt", Path("half"), PrepareSettings(**{**settings, "dedup": "line"}), meter=meter)
        except KeyboardInterrupt:
            return
    raise SystemExit("prepare was not stopped: its stages have been renamed")


def _reported() -> None:
    """Writes a run as `ramlet report` reads it."""
    run = Path("reported")
    run.mkdir()
    shape = {"vocab_size": 256, "context": 16, "layers": 1, "width": 8, "heads": 2, "kv_heads": 2, "feed_forward": 64}
    settings = {
        "settings": {"max_steps": 9},
        "data": [{"path": "data"}],
        "job": {"shape": shape, "steps": 9},
        "plan": {"memory": 1},
    }
    (run / "settings.yaml").write_text(json.dumps(settings, indent=1))
    steps = [
        {"step": at, "loss": 3.0 / at, "lr": 1e-3, "tokens": at * 32, "seconds": at, "memory": 1} for at in range(1, 9)
    ]
    steps += [{"step": 8, "eval": {"val": {"loss": 1.0}}}, {"step": 8, "sample": "the old house"}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    measures = {"measures": [{"name": "m", "points": [{"label": "x", "value": 1.0}]}]}
    (run / "measures.json").write_text(json.dumps(measures))


_RECORD = json.dumps(
    {
        "format": "ramlet pipeline",
        "version": 1,
        "file": "../pipeline.yaml",
        "stages": {
            "tokenizer": {
                "state": "done",
                "fingerprint": "x",
                "settings": {"vocab_size": 300},
                "reads": {},
                "resumes": True,
            }
        },
    }
)


def _trained(engine: str) -> None:
    from ramlet.cli import main

    for out in ("run", "stopped"):
        if main(with_engine([*_TRAIN.split(), "-o", out, "-q"], engine)):
            raise SystemExit("could not train a model")
    for name in ("model.safetensors", "stats.json"):
        Path("stopped", name).unlink()  # as if it had been killed after its last checkpoint
    for path in Path("stopped").glob("checkpoints/*/state.json"):
        # Older checkpoints have no checksum of it, so every value that was changed is read.
        state = json.loads(path.read_text())
        del state["crc32"]
        path.write_text(json.dumps(state))


if __name__ == "__main__":
    make_world(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
