"""From code to prose: a model learns a second domain, and what that costs the first is measured.

    python examples/domain_adaptation.py [--out FOLDER]                      two minutes on two cores
    python examples/domain_adaptation.py --steps 10 --params 60k             a few seconds

The base model learns Python code (part of the standard library). Then it is adapted to the English of Python's own
language reference, once as it comes and once with half of the sequences still code. Every evaluation looks at both
kinds of text, so that the table at the end can say what was won and what was lost.

The commands that this stands for:

    ramlet train --data code --out base --params 500k ...
    ramlet train --data prose --init-from base --eval general=code --out adapted ...
    ramlet train --data prose=0.5 --data code=0.5 --init-from base --eval general=code --out mixed ...
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import ramlet


def gather(folder: Path) -> tuple[list[str], Path]:
    """Text that every machine with Python has: folders of code, and a file of prose."""
    from pydoc_data.topics import topics

    library = Path(sysconfig.get_paths()["stdlib"])
    prose = folder / "prose.txt"
    prose.write_text("\n\n".join(topics.values()), encoding="utf-8")
    return [str(library / name) for name in ("email", "http", "json", "logging")], prose


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, default=Path("adaptation-example"))
    asked.add_argument("--steps", type=int, default=200)
    asked.add_argument("--params", default="500k")
    asked.add_argument("--memory", default="1GB")
    given = asked.parse_args()
    out, memory = given.out, given.memory
    out.mkdir(parents=True, exist_ok=True)
    code, prose = gather(out)

    # One tokenizer for both, learned from both: a model knows the tokens of its tokenizer and no others.
    tokenizer = ramlet.Tokenizer.train(
        [*code, prose], vocab_size=1_500, special_tokens=["<|endoftext|>"], memory=memory
    )
    tokenizer.save(out / "tokenizer")
    for inputs, name in ((code, "code"), ([prose], "prose")):
        # Documents of 8 kB, for a document goes to training or to validation as a whole.
        ramlet.prepare(inputs, out / name, tokenizer=out / "tokenizer", document_bytes=8 << 10, memory=memory)

    def train(data: object, run: str, **settings: object) -> ramlet.TrainResult:
        common = {"seq_len": 128, "batch_size": 16, "max_steps": given.steps, "lr": 2e-3, "sample_every": 0}
        looks = {"eval_every": max(1, given.steps // 4), "eval_tokens": 12_000}
        return ramlet.train(data, out / run, memory=memory, **common, **looks, **settings)

    train(out / "code", "base", params=given.params)
    adapting = {"init_from": str(out / "base"), "evals": {"general": out / "code"}}
    train(out / "prose", "adapted", **adapting)
    train([(out / "prose", 0.5), (out / "code", 0.5)], "mixed", **adapting)

    # Where each run began is evaluated too, so the figures are differences within one table.
    sets = {"domain": out / "prose", "general": out / "code"}
    scores = {
        run: ramlet.evaluate(out / run, sets, tokens=12_000, memory=memory) for run in ("base", "adapted", "mixed")
    }
    print(f"{'':10}{'domain':>10}{'general':>10}{'forgotten':>12}")
    for run, score in scores.items():
        forgotten = score["general"].loss - scores["base"]["general"].loss
        print(f"{run:10}{score['domain'].loss:>10.3f}{score['general'].loss:>10.3f}{forgotten:>+12.3f}")


if __name__ == "__main__":
    main()
