"""The commands that `limits.py` runs: every one with --memory, with each option that affects memory.

A case is a command with placeholders: {text} is the input, {out} the output; {vocabulary}, {chars}, {wordpiece},
{dataset}, {other}, {inspected}, {run} and {questions} are created by `make_fixtures`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine_option import with_engine
from limits_texts import TEXTS

__all__ = ["CASES", "Case", "make_fixtures"]

ALL = tuple(TEXTS)
SOME = ("prose", "distinct words", "one word", "symbols", "random bytes")
NEAR = ("near copies of huge documents", "near copies of a page")
PLAIN = tuple(name for name in ALL if name not in ("texts that grow", "huge documents of symbols", *NEAR))
SMALL = ("short lines", "tiny files")
ROUGH = ("texts that grow", "huge documents of symbols", "symbols", "huge documents", "all of Unicode")
REGEX = r"\p{{L}}+|\s+|[^\p{{L}}\s]+"
KEEP = "--max-line-chars 0 --max-symbols 1 --max-repeated 1 --max-invalid 1"
"""So that cleaning also keeps text that is not prose."""


@dataclass(frozen=True)
class Case:
    group: str
    words: str
    texts: tuple[str, ...] = ("prose",)
    weight: float = 1.0
    """How often it is drawn, relative to the others."""


def _training() -> list[Case]:
    train = "tokenizer train {text} --out {out} --quiet"
    bpe = [
        Case(f"tokenizer train, {pattern}", f"{train} -v {size} --pattern {pattern} --threads {threads}", texts)
        for pattern, size, threads, texts in (
            ("gpt2", 300, 1, PLAIN),
            ("gpt2", 2000, 2, PLAIN),
            ("gpt2", 20000, 4, ("prose", "many words")),
            ("cl100k", 1500, 1, SOME),
            ("o200k", 1000, 2, PLAIN),
            ("o200k", 100000, 1, ("prose", "many words", "tiny files")),
            ("llama3", 1000, 4, SOME),
            ("qwen2", 2000, 2, SOME),
        )
    ]
    return [
        *bpe,
        Case("tokenizer train, a regex", f"{train} -v 900 --pattern {REGEX} --threads 2", SOME),
        Case("tokenizer train, special tokens", f"{train} -v 1000 -s <|a|> -s <|endoftext|> --threads 2", SOME),
        Case("tokenizer train, lines", f"{train} -v 1000 --docs line --tie-break bytes --threads 2", SOME),
        Case("tokenizer train, char", f"{train} --type char --threads 1", PLAIN),
        Case("tokenizer train, char", f"{train} --type char --threads 4 -v 5000 --unknown unk", PLAIN),
        Case("tokenizer train, byte", f"{train} --type byte", ("prose", "random bytes")),
    ]  # fmt: skip


def _encoding() -> list[Case]:
    encode = "tokenizer encode {text} --out {out}/ids.bin --quiet"
    return [
        Case("tokenizer encode, bpe", f"{encode} -T {{vocabulary}} --threads 2", PLAIN),
        Case("tokenizer encode, bpe", f"{encode} -T gpt2 --threads 1", SOME),
        Case("tokenizer encode, bpe", f"{encode} -T {{vocabulary}} --threads 4 --docs line", SOME),
        Case("tokenizer encode, special tokens", f"{encode} -T {{vocabulary}} --allow-special all", SOME),
        Case("tokenizer encode, char", f"{encode} -T {{chars}} --threads 2", ("prose", "one word", "gzip")),
    ]


def _preparing() -> list[Case]:
    prepare, as_npy = (f"prepare {{text}} --out {{out}}{file} --quiet --allow-empty" for file in ("", "/ids.npy"))
    return [
        Case("prepare, bpe", f"{prepare} -T {{vocabulary}} --threads 2 {KEEP}", ALL),
        Case("prepare, gpt2", f"{prepare} -T gpt2 --threads 1 {KEEP}", (*SOME, *ROUGH)),
        Case("prepare, byte", f"{prepare} -T byte --threads 4 {KEEP}", (*SOME, *ROUGH)),
        Case("prepare, char", f"{prepare} -T char --threads 2 {KEEP}", (*SOME, *ROUGH)),
        Case("prepare, --dedup line", f"{prepare} -T byte --dedup line --threads 2", (*SOME, *SMALL)),
        Case("prepare, --dedup none", f"{prepare} -T byte --dedup none --threads 1 {KEEP}", (*SOME, *ROUGH)),
        Case("prepare, --dedup-cache", f"{prepare} -T byte --dedup-cache {{out}}-cache --docs line --threads 2", SOME),
        Case("prepare, --near", f"{prepare} -T byte --near 0.8 --threads 2 {KEEP}", (*SOME, *ROUGH, *NEAR)),
        Case("prepare, --near", f"{prepare} -T gpt2 --near 0.7 --threads 1 --dedup none {KEEP}", (*ROUGH, *NEAR)),
        Case("prepare, --near", f"{prepare} -T {{vocabulary}} --near 0.9 --dedup-cache {{out}}-cache {KEEP}", NEAR),
        Case("prepare, --exclude", f"{prepare} -T byte --exclude {{other}} --threads 2 {KEEP}", (*SOME, *ROUGH)),
        Case("prepare, --docs line", f"{prepare} -T byte --docs line --threads 2", (*SOME, "short lines")),
        Case("prepare, --pack", f"{prepare} -T byte --pack 64 --docs line --threads 1", (*SOME, "short lines")),
        Case("prepare, --pack", f"{prepare} -T {{vocabulary}} --pack 512 --threads 2 {KEEP}", ("jsonl", *ROUGH)),
        Case("prepare, --format npy", f"{as_npy} --format npy -T byte", SOME),
        Case("prepare, --no-normalize", f"{prepare} -T byte --no-normalize --threads 2 {KEEP}", (*SOME, *ROUGH)),
        Case("prepare, --no-filter", f"{prepare} -T {{vocabulary}} --no-filter --threads 2", (*SOME, *ROUGH)),
        Case("prepare, --max-tokens", f"{prepare} -T byte --max-tokens 100 --min-tokens 3 --threads 2", SOME),
        Case("prepare, shards", f"{prepare} -T byte --tokens-per-shard 5000 --threads 2", ("prose", "tiny files")),
        Case("prepare, HF", f"{prepare} -T {{wordpiece}} --threads 1 {KEEP}", ("prose", "jsonl", "symbols"), 0.2),
    ]  # fmt: skip


def _datasets() -> list[Case]:
    return [
        Case("data verify", "data verify {dataset} --quiet"),
        Case("data inspect", "data inspect {dataset} --samples 20 --sample-tokens 1000 --no-repetition"),
        Case("data inspect, --repetition", "data inspect {inspected} --repetition"),
        Case("data merge", "data merge {dataset} {other} --out {out} --quiet"),
        *(Case(f"data export, {to}", f"data export {{dataset}} --to {to} --out {{out}} --quiet")
          for to in ("nanogpt", "llm.c", "megatron", "npy")),
        Case("data export, hf", "data export {dataset} --to hf --out {out} --quiet", weight=0.2),
        Case("report", "report {dataset} --out {out}/page.html --quiet"),
        Case("report", "report {run} --out {out}/page.html --quiet"),
    ]  # fmt: skip


def _models() -> list[Case]:
    # Precision and optimizer are fixed: chosen by the budget, they would change the result.
    model = "--params 60k --seq-len 32 --batch-size 4 --threads 1 --device cpu --precision fp32 --optimizer adamw"
    steps = "--max-steps 4 --eval-every 2 --eval-tokens 1024 --quiet"
    return [
        Case("train", f"train --data {{dataset}} --out {{out}} {model} {steps}", weight=0.1),
        Case("train", f"train --data {{dataset}} --out {{out}} {model} --document-mask {steps}", weight=0.1),
        Case("train", f"train --stream {{text}} -T {{vocabulary}} --out {{out}} {model} {steps}", weight=0.1),
        Case("eval", "eval {run} --data {dataset} --tokens 4096 --device cpu --quiet", weight=0.1),
        Case("eval --task", "eval {run} --task {questions} --device cpu --quiet", weight=0.1),
        Case("generate", "generate {run} --prompt abc --max-tokens 40 --seed 1 --device cpu --quiet", weight=0.1),
        Case("plan", "plan --params 1M --device cpu --threads 1 --quiet", weight=0.1),
        Case("export", "export {run} {out}/model --quiet", weight=0.1),
        Case("export, gguf", "export {run} {out}/model --to gguf --dtype q8_0 --quiet", weight=0.1),
    ]


CASES = (*_training(), *_encoding(), *_preparing(), *_datasets(), *_models())


def make_fixtures(
    folder: Path, texts: dict[str, Path], python: str = sys.executable, engine: str = "native"
) -> dict[str, Path]:
    """Creates what commands need in addition to a text, without a memory limit."""
    made = {name: folder / name for name in ("vocabulary", "chars", "dataset", "other", "run")}
    prose = str(texts["prose"])

    def ramlet(*words: object) -> None:
        command = [python, "-m", "ramlet", *with_engine([*map(str, words), "--quiet"], engine)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    ramlet("tokenizer", "train", prose, "-v", 2000, "-s", "<|endoftext|>", "--out", made["vocabulary"])
    ramlet("tokenizer", "train", prose, "--type", "char", "--out", made["chars"])
    for name, text in (("dataset", prose), ("other", texts["jsonl"])):
        ramlet("prepare", text, "-T", made["vocabulary"], "--val-fraction", 0.05, "--docs", "line", "--out", made[name])
    ramlet(
        *("train", "--data", made["dataset"], "--out", made["run"], "--params", "60k", "--seq-len", 32),
        *("--batch-size", 4, "--max-steps", 4, "--eval-tokens", 1024, "--device", "cpu", "--threads", 1),
    )
    made["inspected"] = folder / "inspected"  # `data inspect --repetition` writes into it
    shutil.copytree(made["dataset"], made["inspected"])
    made["questions"] = folder / "questions.jsonl"
    lines = texts["prose"].read_text(encoding="utf-8", errors="replace").splitlines()[:200]
    asked = ({"question": line[:60], "choices": [line[60:90] + "a", "b" * (1 + n % 9)]} for n, line in enumerate(lines))
    made["questions"].write_text("".join(json.dumps({**each, "answer": 0}) + "\n" for each in asked))
    made["wordpiece"] = folder / "wordpiece.json"
    code = (
        "import sys, tokenizers as t\n"
        "found = sorted({word for word in open(sys.argv[2]).read().split() if word.isalpha()})[:3000]\n"
        "words = {w: n for n, w in enumerate(['[UNK]', *found])}\n"
        "made = t.Tokenizer(t.models.WordLevel(words, unk_token='[UNK]'))\n"
        "made.pre_tokenizer = t.pre_tokenizers.Whitespace()\n"
        "made.save(sys.argv[1])\n"
    )
    subprocess.run([python, "-c", code, str(made["wordpiece"]), prose], check=True)
    return made
