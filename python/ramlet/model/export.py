"""Exports a trained model to a clean folder: for transformers, for llama.cpp, or for the converter of llama.cpp.

    export_model("RUN", "model", to="hf")
    export_model("RUN", "model", to="gguf", dtype="q8_0")   # model/model.gguf, and a Modelfile for Ollama
    export_model("RUN", "model", to="gguf-ready")           # then: python model/to_gguf.py path/to/llama.cpp

Weights are copied in pieces, converted if wanted: a model of any size needs two buffers of 16 MiB.

llama.cpp's converter identifies a tokenizer's split pattern by a hash of the ids of a test text; a newly trained
tokenizer is never in its table, and the converter stops. `to_gguf.py`, written next to the weights, runs the converter
of a llama.cpp checkout and names the pattern, which llama.cpp does know. Vocabularies that llama.cpp cannot read are
refused (gguf_vocabulary.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ramlet.dataset.new_folder import EXPORT_NOTE, is_export, new_folder, note_export
from ramlet.errors import ModelError, SettingsError, option
from ramlet.model.dtypes import DTYPES, PRECISIONS
from ramlet.model.files import files_by_name, save_description
from ramlet.model.folder import WEIGHTS, ModelFolder, find_model
from ramlet.model.gguf_file import STORED, load_gguf, write_gguf
from ramlet.model.gguf_vocabulary import Vocabulary, pattern_name, vocabulary_of
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import copy_tensors, read_header
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.checksum import file_checksum
from ramlet.runtime.plurals import plural
from ramlet.runtime.small_files import SMALL, TOKENIZER, open_regular
from ramlet.tokenizer.files.load import load

TARGETS = {
    "hf": "a folder for transformers and everything that reads its format",
    "gguf": "a .gguf file for llama.cpp, with a Modelfile for Ollama",
    "gguf-ready": "the same as hf in 16 bits, with a script that runs llama.cpp's own converter",
}
"""What each one writes, as the help says it."""
GGUF = "model.gguf"
USUAL_DTYPE = {"gguf": "f16", "gguf-ready": "fp16"}
"""Where it is not that of the run."""
BUFFERS = 72_000_000
"""Memory for the chunks of a copy, for reading the tensors' names, and for NumPy, which converts them."""
TOKENIZER_SHARE = 14
"""Memory to read a tokenizer.json and to write its tokens and merges in another form, per byte of the file: measured
11 to 12."""
_OTHER_NAMES = {"fp32": "f32", "fp16": "f16"}
"""llama.cpp names them differently; both names are understood."""

_MODELFILE = '''\
# ollama create {name} -f Modelfile
FROM ./{file}
# A prompt is continued as it is: this is no chat model.
TEMPLATE """{{{{ .Prompt }}}}"""
PARAMETER num_ctx {context}
'''

_SCRIPT = '''\
"""Makes a .gguf of this folder, with a checkout of llama.cpp (https://github.com/ggml-org/llama.cpp):

    python to_gguf.py path/to/llama.cpp [options of its convert_hf_to_gguf.py]

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


def export_parts(run: str | os.PathLike[str], to: str) -> dict[str, int]:
    """The memory that an export needs, by what needs it."""
    parts = {"chunks of the weights": BUFFERS}
    file = find_model(run).described / "tokenizer.json"
    if to != "hf" and file.exists():
        parts["the tokenizer"] = min(file.stat().st_size, TOKENIZER) * TOKENIZER_SHARE
    return parts


def export_model(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: str = "hf",
    dtype: str | None = None,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Exported:
    """Writes the model of a run to a new folder, atomically; does nothing if it is there already.

    `dtype` is fp32, bf16 or fp16 [default: that of the run, or fp16 for `gguf-ready`]; for `gguf` also q8_0 [default:
    f16]. `progress` is called with the stage, the bytes done and their total.
    """
    if to not in TARGETS:
        raise SettingsError(f"unknown export format {to!r}: choose from {', '.join(TARGETS)}")
    dtype = _known_dtype(to, dtype)
    found = find_model(run)
    shape = found.shape()
    sources = files_by_name(found, shape)
    if to != "hf" and shape.qk_norm and shape.rope_scaling is not None:
        raise ModelError(
            f"{run} has QK-norm and llama3 RoPE scaling, of which llama.cpp has only one in a model: "
            f"use {option('to', 'hf')}, or a model without one of them"
        )
    if to == "gguf":
        load_gguf()
    vocabulary = _vocabulary(found, shape) if to == "gguf" else None
    pattern = pattern_name(load(found.tokenizer_file, None, ())) if to == "gguf-ready" else None
    first = "model.embed_tokens.weight"
    stored = PRECISIONS.get(dtype or "") or read_header(sources[first]).tensors[first].dtype
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
        "dtype": DTYPES[stored].name if vocabulary is None else dtype,
        "name": Path(out).name if to != "hf" else "",
    }
    notes: list[str] = []
    with new_folder(out, "export", lambda: is_export(out, origin)) as folder:
        if folder is None:
            return Exported(*_listed(Path(out)), notes, already_done=True)
        if vocabulary is not None:
            assert dtype is not None
            notes += _write_gguf(shape, sources, vocabulary, folder, dtype, Path(out), partial(progress, "copying"))
        else:
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
                    file.write(_SCRIPT.format(name=pattern))
                notes.append(f"next: python {Path(out) / 'to_gguf.py'} path/to/llama.cpp --outfile model.gguf")
            copy_tensors(
                sources,
                folder / WEIGHTS,
                {"format": "pt"},
                dtype=PRECISIONS.get(dtype or ""),
                progress=partial(progress, "copying"),
            )
        note_export(folder, origin)
    return Exported(*_listed(Path(out)), notes)


def _known_dtype(to: str, dtype: str | None) -> str | None:
    """The dtype by its name for this target, or the usual one."""
    known = list(STORED) if to == "gguf" else list(PRECISIONS)
    names = _OTHER_NAMES if to == "gguf" else {theirs: ours for ours, theirs in _OTHER_NAMES.items()}
    wanted = names.get(dtype, dtype) if dtype is not None else USUAL_DTYPE.get(to)
    if wanted is not None and wanted not in known:
        raise SettingsError(f"unknown dtype {dtype!r}: choose from {', '.join(known)}")
    return wanted


def _vocabulary(found: ModelFolder, shape: Shape) -> Vocabulary:
    return vocabulary_of(load(found.tokenizer_file, None, ()), shape.vocab_size, min(found.end_ids(), default=None))


def _write_gguf(
    shape: Shape,
    sources: Mapping[str, Path],
    vocabulary: Vocabulary,
    folder: Path,
    dtype: str,
    out: Path,
    progress: Callable[[int, int], None],
) -> list[str]:
    """model.gguf, and a Modelfile for Ollama next to it; returns notes."""
    notes = list(vocabulary.notes)
    name = os.fsencode(out.name).decode(errors="replace")  # the file has UTF-8 only
    others = write_gguf(shape, sources, vocabulary, folder / GGUF, dtype=dtype, name=name, progress=progress)
    if others:
        notes.append(f"{plural(len(others), 'matrix', 'matrices')} with rows that are no multiple of 32 are in f16")
    with replacing(folder / "Modelfile") as file:
        file.write(_MODELFILE.format(name=name, file=GGUF, context=shape.context))
    notes.append(f"next: llama-cli -m {out / GGUF}, or ollama create {out.name} -f {out / 'Modelfile'}")
    return notes


def _listed(out: Path) -> tuple[list[str], int]:
    files = sorted(name for name in os.listdir(out) if name != EXPORT_NOTE)
    return files, sum((out / name).stat().st_size for name in files)
