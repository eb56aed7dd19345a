"""Exports a trained model to a clean folder for transformers, or for the converter of llama.cpp.

    export_model("RUN", "model", to="hf")
    export_model("RUN", "model", to="gguf-ready")           # then: python model/to_gguf.py path/to/llama.cpp

Weights are copied in pieces, converted if wanted: a model of any size needs two buffers of 16 MiB.

llama.cpp's converter identifies a tokenizer's split pattern by a hash of the ids of a test text; a newly trained
tokenizer is never in its table, and the converter stops. `to_gguf.py`, written next to the weights, runs the converter
of a llama.cpp checkout and names the pattern, which llama.cpp does know. Vocabularies that llama.cpp cannot read
(characters, bytes) are refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ramlet.dataset.new_folder import EXPORT_NOTE, is_export, new_folder, note_export
from ramlet.errors import ModelError, SettingsError, option
from ramlet.model.dtypes import DTYPES, PRECISIONS
from ramlet.model.files import files_by_name, save_description
from ramlet.model.folder import WEIGHTS, ModelFolder, find_model
from ramlet.model.tensor_file import copy_tensors, read_header
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.checksum import file_checksum
from ramlet.runtime.small_files import SMALL, TOKENIZER, open_regular
from ramlet.tokenizer.tokenizer import Tokenizer

TARGETS = ("hf", "gguf-ready")

PATTERN_NAMES = {"gpt2": "gpt-2", "cl100k": "dbrx", "llama3": "dbrx", "o200k": "gpt-4o", "qwen2": "qwen2"}
"""llama.cpp's names of the patterns; `dbrx` is llama3's pattern without a token at the start of every text."""

_SCRIPT = '''\
"""Makes a .gguf of this folder, with a checkout of llama.cpp (https://github.com/ggml-org/llama.cpp):

    python {folder}/to_gguf.py path/to/llama.cpp [options of its convert_hf_to_gguf.py]

Its converter recognizes tokenizers by a list of known vocabularies; this script names the pattern of this one.
"""

import sys
from pathlib import Path

if len(sys.argv) < 2 or not (Path(sys.argv[1]) / "convert_hf_to_gguf.py").is_file():
    sys.exit("usage: python to_gguf.py path/to/llama.cpp [options of its convert_hf_to_gguf.py]")
sys.path.insert(0, sys.argv[1])
sys.argv = ["convert_hf_to_gguf.py", str(Path(__file__).resolve().parent), *sys.argv[2:]]

import convert_hf_to_gguf as converter

modules = [converter, sys.modules.get("conversion.base")]
owners = [getattr(module, name, None) for module in modules for name in ("TextModel", "Model")]
owner = next((owner for owner in owners if hasattr(owner, "get_vocab_base_pre")), None)
if owner is None:
    sys.exit("this llama.cpp has changed its converter: run convert_hf_to_gguf.py and tell it the pattern {name}")
owner.get_vocab_base_pre = lambda self, tokenizer: "{name}"
converter.main()
'''


@dataclass(frozen=True)
class Exported:
    files: list[str]
    bytes: int
    notes: list[str] = field(default_factory=list)
    """Sentences that the user should read, and the next command."""
    already_done: bool = False
    """Nothing was written: the folder already had this export."""


def export_model(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: str = "hf",
    dtype: str | None = None,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Exported:
    """Writes the model of a run to a new folder, atomically; does nothing if it is there already.

    `dtype` is fp32, bf16 or fp16 [default: that of the run, or fp16 for `gguf-ready`]. `progress` is called with the
    stage, the bytes done and their total.
    """
    if to not in TARGETS:
        raise SettingsError(f"unknown export format {to!r}: choose from {', '.join(TARGETS)}")
    if dtype is not None and dtype not in PRECISIONS:
        raise SettingsError(f"unknown dtype {dtype!r}: choose from {', '.join(PRECISIONS)}")
    found = find_model(run)
    shape = found.shape()
    sources = files_by_name(found, shape)
    if to == "gguf-ready" and shape.qk_norm and shape.rope_scaling is not None:
        raise ModelError(
            f"{run} has QK-norm and llama3 RoPE scaling, of which llama.cpp has only one in a model: "
            f"use {option('to', 'hf')}, or a model without one of them"
        )
    pattern = _pattern(found) if to == "gguf-ready" else None
    if dtype is None and to == "gguf-ready":
        dtype = "fp16"
    wanted = PRECISIONS[dtype] if dtype else None
    embedding = sources["model.embed_tokens.weight"]
    stored = wanted or read_header(embedding).tensors["model.embed_tokens.weight"].dtype
    notes: list[str] = []
    tokenizer_file = found.described / "tokenizer.json"
    generation = found.described / "generation_config.json"
    small = {found.described / "config.json": SMALL, tokenizer_file: TOKENIZER, generation: SMALL}
    for path, most in small.items():
        if path.exists():
            open_regular(path, ModelError, most).close()
    read = [path for path in sorted({*sources.values(), *small}) if path.exists()]
    sizes = [path.stat().st_size for path in read]
    checksums = {}
    for number, path in enumerate(read):
        progress("reading", sum(sizes[:number]), sum(sizes))
        checksums[path.name] = file_checksum(path)
    origin = {
        "model": checksums,
        "to": to,
        "dtype": DTYPES[stored].name,
        "name": Path(out).name if pattern is not None else "",
    }
    with new_folder(out, "export", lambda: is_export(out, origin)) as folder:
        if folder is None:
            return Exported(*_listed(Path(out)), notes, already_done=True)
        if not tokenizer_file.exists():
            notes.append("the model has no tokenizer.json: copy it into the folder")
        save_description(
            shape,
            folder,
            tokenizer_file=tokenizer_file if tokenizer_file.exists() else None,
            end_id=min(found.end_ids(), default=None),
            dtype=stored,
        )
        if generation.exists():
            shutil.copyfile(generation, folder / generation.name)
        if pattern is not None:
            with replacing(folder / "to_gguf.py") as file:
                file.write(_SCRIPT.format(folder=Path(out).name, name=pattern))
            notes.append(f"next: python {Path(out) / 'to_gguf.py'} path/to/llama.cpp --outfile model.gguf")
        copy_tensors(sources, folder / WEIGHTS, {"format": "pt"}, dtype=wanted, progress=partial(progress, "copying"))
        note_export(folder, origin)
    return Exported(*_listed(Path(out)), notes)


def _listed(out: Path) -> tuple[list[str], int]:
    files = sorted(name for name in os.listdir(out) if name != EXPORT_NOTE)
    return files, sum((out / name).stat().st_size for name in files)


def _pattern(found: ModelFolder) -> str:
    tokenizer = Tokenizer.load(found.tokenizer_file)
    name = PATTERN_NAMES.get(tokenizer.pattern or "") if tokenizer.kind == "bpe" else None
    if name is None:
        what = f"a {tokenizer.kind} tokenizer" if tokenizer.kind != "bpe" else f"the pattern {tokenizer.pattern}"
        raise ModelError(
            f"llama.cpp does not support {what}: only byte-level BPE with the patterns "
            f"{', '.join(PATTERN_NAMES)} can be converted; {option('to', 'hf')} has no such limit"
        )
    return name
