"""Training directly from text: nothing is prepared, nothing is stored, and an interruption loses nothing.

    python examples/streaming.py [--out FOLDER]                       a minute or two on two cores
    python examples/streaming.py --steps 12 --params 60k              a few seconds

Use a stream for text that is too large to store a second time as tokens, or for a quick try. It skips what `prepare`
does: text is not cleaned or deduplicated, it is shuffled in blocks instead of as a whole, and nothing is set aside for
validation, so you name a dataset for that. In all other cases prepare a dataset.

The source here is the code of Python's standard library. It can be a file, a folder, a glob,
`s3://bucket/*.jsonl.gz` or the name of a dataset on the hub, `org/name`.

The same with a command; after Ctrl-C, run it again to resume:

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("stream-example"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--params", default="500k")
    parser.add_argument("--memory", default="1GB")
    given = parser.parse_args()
    out, memory = given.out, given.memory

    library = Path(sysconfig.get_paths()["stdlib"])
    source = [str(library / name) for name in ("email", "http", "logging")]
    ramlet.Tokenizer.train(source, vocab_size=1_500, special_tokens=["<|endoftext|>"], memory=memory).save(
        out / "tokenizer"
    )

    # The batches that training uses, for your own loop: the text in sequences, as it is read.
    with ramlet.StreamLoader(source, tokenizer=out / "tokenizer", seq_len=128, batch_size=4) as loader:
        batch = next(iter(loader))
    print(f"a batch of the stream: {batch['input_ids'].shape[0]} sequences of {batch['input_ids'].shape[1]} tokens")

    # Validation data that is not in the stream: all of `json`, without a split of its own.
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
    # The same call resumes at the same place in the text, and ends with the same weights as an uninterrupted run.
    result = train()
    print(f"{result.steps} steps, {result.tokens:,} tokens, loss {result.loss:.3f}")
    print(f"held out: {result.scores['held-out']['bits_per_byte']:.3f} bits per byte")
    stored = [path.name for path in (out / "run").rglob("*") if path.suffix in (".bin", ".npy")]
    print(f"tokens stored on disk: {len(stored)} files")


if __name__ == "__main__":
    main()
