"""From code to prose: adapts a model to a second domain, and measures what it forgets of the first.

    python examples/domain_adaptation.py [--out FOLDER]                      two minutes on two cores
    python examples/domain_adaptation.py --steps 10 --params 60k             a few seconds

The base model is trained on Python code (part of the standard library). Then it is adapted to the English of Python's
language reference, once on prose alone and once with half of the sequences still code. Every evaluation uses both kinds
of text; the table at the end shows what was gained and what was lost.

The same with commands:

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
    """Text that comes with Python: folders of code, and a file of prose."""
    from pydoc_data.topics import topics

    library = Path(sysconfig.get_paths()["stdlib"])
    prose = folder / "prose.txt"
    prose.write_text("\n\n".join(topics.values()), encoding="utf-8")
    return [str(library / name) for name in ("email", "http", "json", "logging")], prose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("adaptation-example"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--params", default="500k")
    parser.add_argument("--memory", default="1GB")
    given = parser.parse_args()
    out, memory = given.out, given.memory
    out.mkdir(parents=True, exist_ok=True)
    code, prose = gather(out)

    # One tokenizer, trained on both kinds of text, because a model can only use the tokens of its own tokenizer.
    tokenizer = ramlet.Tokenizer.train(
        [*code, prose], vocab_size=1_500, special_tokens=["<|endoftext|>"], memory=memory
    )
    tokenizer.save(out / "tokenizer")
    for inputs, name in ((code, "code"), ([prose], "prose")):
        # Documents of 8 kB, because a document is either for training or for validation.
        ramlet.prepare(inputs, out / name, tokenizer=out / "tokenizer", document_bytes=8 << 10, memory=memory)

    def train(data: object, run: str, **settings: object) -> ramlet.TrainResult:
        common = {"seq_len": 128, "batch_size": 16, "max_steps": given.steps, "lr": 2e-3, "sample_every": 0}
        looks = {"eval_every": max(1, given.steps // 4), "eval_tokens": 12_000}
        return ramlet.train(data, out / run, memory=memory, **common, **looks, **settings)

    train(out / "code", "base", params=given.params)
    adapting = {"init_from": str(out / "base"), "evals": {"general": out / "code"}}
    train(out / "prose", "adapted", **adapting)
    train([(out / "prose", 0.5), (out / "code", 0.5)], "mixed", **adapting)

    # The base model is evaluated too, so that the table shows differences.
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
