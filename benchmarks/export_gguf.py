"""Trained models in a real llama.cpp: 200 greedy tokens, compared with transformers.

    python benchmarks/export_gguf.py                       # about 30 minutes on one core
    python benchmarks/export_gguf.py --steps 100 --no-results

Four runs learn a page of Python: byte-level BPE and bytes in Llama's shape, BPE and characters in Qwen3's. Each is
exported with every dtype. llama.cpp (the wheel xllamacpp, one thread, fp32 KV cache, no flash attention) continues a
prompt, given as text, and so does transformers in fp32 with the numbers that are in the file, dequantized: a file in
q8_0 is another model than the run, and what is tested is that both programs run the same model. That the file has the
run's numbers, each rounded to the nearest of its dtype, is checked on its own.

llama.cpp also rounds the activations that it multiplies with the weights, to the dtype of the weights. So log
probabilities differ (the table has by how much), and equal texts need a model that is certain of each token (the table
has the least distance between the first and the second choice).

Runs in ramlet's own environment, with xllamacpp, gguf and transformers.
"""

from __future__ import annotations

import argparse
import argparse as text_of
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bpe_train import HERE, Check, check, print_checks
from measure import markdown_table
from ramlet.model.export import export_model
from ramlet.preparing.entry import prepare
from ramlet.tokenizer.tokenizer import Tokenizer
from ramlet.training.entry import train

sys.path.append(str(HERE.parent / "tests"))
from oracles_llama_cpp import LlamaCpp, assert_rounded, reference_greedy, transformers_of

TOKENS = 200
PAGE = Path(text_of.__file__).read_text(encoding="utf-8")[:30_000]
PROMPT = PAGE.partition("\n")[0]
"""The first line, which the page has once: behind a word that it has often, no model could be certain."""
END = "<|endoftext|>"
DTYPES = ("f32", "f16", "bf16", "q8_0")
RUNS = {
    "BPE, Llama": ("bpe", {"qk_norm": False}),
    "bytes, Llama": ("byte", {"qk_norm": False}),
    "BPE, Qwen3": ("bpe", {"qk_norm": True}),
    "characters, Qwen3": ("char", {"qk_norm": True}),
}
CLOSE = {"f32": 1e-4}
"""How far log probabilities may be apart."""


def make_run(folder: Path, kind: str, steps: int, **shape: Any) -> Path:
    page = folder / "page.py"
    page.write_text(PAGE, encoding="utf-8")
    tokenizer = kind
    if kind == "bpe":
        made = Tokenizer.train([page], vocab_size=512, special_tokens=[END])
        made.save(folder / "tokenizer.json")
        tokenizer = str(folder / "tokenizer.json")
    prepare([page], folder / "data", tokenizer=tokenizer, val_fraction=0)
    learning = {"params": 600_000, "seq_len": 256, "batch_size": 8, "max_steps": steps, "precision": "fp32"}
    train(folder / "data", folder / "run", device="cpu", seed=1, **learning, **shape)
    return folder / "run"


def compared(run: Path, out: Path, dtype: str) -> dict[str, Any]:
    export_model(run, out, to="gguf", dtype=dtype)
    path = out / "model.gguf"
    assert_rounded(path, run, dtype)
    tokenizer = Tokenizer.load(run)
    theirs = LlamaCpp(path, 256).greedy(PROMPT, TOKENS)
    ours = reference_greedy(transformers_of(path, run), tokenizer.encode(PROMPT), TOKENS, tokenizer.end_of_text)
    pairs = enumerate(zip(theirs.ids, ours.ids))
    same = next((at for at, (mine, other) in pairs if mine != other), min(len(theirs.ids), len(ours.ids)))
    both = list(zip(theirs.logprobs[:same], ours.logprobs))
    apart = max(abs(mine[each] - other[each]) for mine, other in both for each in mine if each in other)
    return {
        "dtype": dtype,
        "tokens": len(ours.ids),
        "same": same,
        "margin": min(ours.margins()),
        "apart": apart,
        "bytes": path.stat().st_size,
    }


def judged(found: list[dict[str, Any]]) -> list[Check]:
    fewest = min(one["same"] for one in found)
    checks = [check("equal greedy tokens, of every run and dtype", fewest, f"{TOKENS}", fewest >= TOKENS)]
    for dtype, limit in CLOSE.items():
        apart = max(one["apart"] for one in found if one["dtype"] == dtype)
        checks.append(
            check(f"{dtype}: log probabilities apart", f"{apart:.1e}", f"at most {limit:.0e}", apart <= limit)
        )
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="of training [default: 400]")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="[default: all]")
    parser.add_argument("--no-results", action="store_true", help="only print, save nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory(prefix="ramlet-gguf-") as scratch:
        for name in given.runs:
            kind, shape = RUNS[name]
            folder = Path(scratch) / name.replace(", ", "-")
            folder.mkdir()
            run = make_run(folder, kind, given.steps, **shape)
            found += [{"run": name, **compared(run, folder / dtype, dtype)} for dtype in DTYPES]
    rows = [
        [one["run"], one["dtype"], f"{one['same']} of {one['tokens']}", f"{one['margin']:.2f}", f"{one['apart']:.1e}"]
        for one in found
    ]
    print(markdown_table(["run", "dtype", "equal tokens", "least margin (nats)", "log probabilities apart"], rows))
    checks = judged(found)
    print_checks(checks)
    if not given.no_results:
        target = HERE / "results" / f"{datetime.date.today()}-gguf.json"
        target.write_text(json.dumps({"runs": found, "checks": checks}, indent=1) + "\n")
    return 0 if all(one["met"] for one in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
