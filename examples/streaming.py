"""Training straight from text: nothing is prepared, nothing is stored, and an interruption costs nothing.

    python examples/streaming.py [--out FOLDER]                       a minute or two on two cores
    python examples/streaming.py --steps 12 --params 60k              a few seconds

A stream is for text that is too large to keep a second time as tokens, or that is tried once. What `prepare` does
is then left undone: text is not cleaned, duplicates stay, the order is shuffled in blocks rather than over all of it,
and nothing is kept for validation, so a set for that is named. For all else a dataset is the better way.

The source here is the code of Python's standard library. A file, a folder, a glob, `s3://bucket/*.jsonl.gz` or the
name of a dataset on the hub, `org/name`, goes in the same place.

The command that this stands for, which Ctrl-C stops and the same command goes on with:

    ramlet train --stream FOLDER --tokenizer tokenizer --eval held-out=data --params 500k --max-steps 200 --out run
"""

from __future__ import annotations

import argparse
import os
import signal
import sysconfig
from pathlib import Path

import ramlet
from ramlet.training.listener import Listener


class StopsAtHalf(Listener):
    """Presses Ctrl-C in the middle of the run, as a user might."""

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, memory: int) -> None:
        if step == steps // 2:
            os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, default=Path("stream-example"))
    asked.add_argument("--steps", type=int, default=200)
    asked.add_argument("--params", default="500k")
    asked.add_argument("--memory", default="1GB")
    given = asked.parse_args()
    out, memory = given.out, given.memory

    library = Path(sysconfig.get_paths()["stdlib"])
    source = [str(library / name) for name in ("email", "http", "logging")]
    ramlet.Tokenizer.train(source, vocab_size=1_500, special_tokens=["<|endoftext|>"], memory=memory).save(
        out / "tokenizer"
    )

    # What the trainer sees, for a loop of your own: the text as it is read, cut into sequences.
    with ramlet.StreamLoader(source, tokenizer=out / "tokenizer", seq_len=128, batch_size=4) as loader:
        batch = next(iter(loader))
    print(f"a batch of the stream: {batch['input_ids'].shape[0]} sequences of {batch['input_ids'].shape[1]} tokens")

    # Of other text than the stream reads: `json`, all of it, for it has no training part that matters here.
    ramlet.prepare(
        library / "json", out / "held-out", tokenizer=out / "tokenizer", val_fraction=0, document_bytes=4 << 10
    )

    def train(listener: Listener | None = None) -> ramlet.TrainResult:
        return ramlet.train(
            None,
            out / "run",
            stream=source,
            tokenizer=out / "tokenizer",
            evals={"held-out": out / "held-out"},
            params=given.params,
            seq_len=128,
            batch_size=16,
            max_steps=given.steps,
            eval_every=max(1, given.steps // 4),
            shuffle_buffer=200,
            sample_every=0,
            memory=memory,
            listener=listener,
        )

    try:
        train(StopsAtHalf())
    except ramlet.Interrupted as stopped:
        print(stopped)
    # The same call goes on: it knows the place in the text, and ends with the weights of a run that never stopped.
    result = train()
    print(f"{result.steps} steps, {result.tokens:,} tokens, loss {result.loss:.3f}")
    print(f"held out: {result.scores['held-out']['bits_per_byte']:.3f} bits per byte")
    stored = [path.name for path in (out / "run").rglob("*") if path.suffix in (".bin", ".npy")]
    print(f"tokens stored on disk: {len(stored)} files")


if __name__ == "__main__":
    main()
