"""What the suffixes of a file name say: its format, its compression, whether it is text.

A new input format is a row of `FORMATS` and its reader in rust/source/ (`Format` in mod.rs). One that Python reads has
no row here: it is converted to jsonl first, and recognized in staging.py and in named.py (`needs_staging`).
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Format(NamedTuple):
    """How a kind of file is recognized, and what reading it takes. Text is what has no suffix of another."""

    suffixes: tuple[str, ...] = ()
    text_per_byte: float = 1.0
    """About how many bytes of text a byte on disk holds."""
    reader_bytes: int = 0
    """Memory of its reader, besides the blocks of text."""
    binary: bool = False
    """Whether NUL bytes are normal in it."""


FORMATS = {
    "text": Format(),
    "jsonl": Format((".jsonl", ".ndjson"), text_per_byte=0.9),
    # Pages of a column, compressed and not, its dictionary and a value; larger pages take more.
    "parquet": Format((".parquet", ".pq"), text_per_byte=2.5, reader_bytes=8 << 20, binary=True),
}
FORMAT_OF = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}

COMPRESSION_OF = {".gz": "gz", ".zst": "zst", ".zstd": "zst", ".xz": "xz", ".bz2": "bz2"}
_DECODER_BYTES = {"": 0, "gz": 1 << 20, "bz2": 6 << 20, "zst": 11 << 20, "xz": 11 << 20}
"""Memory of a decoder, with the window of 8 MiB that every budget has space for."""


def _suffixes(words: str) -> frozenset[str]:
    return frozenset("." + word for word in words.split())


ARCHIVES = _suffixes("zip tar tgz tbz tbz2 txz tzst 7z rar")

# Certainly not text: a file in a folder is skipped if it has one of these.
_BINARY = ARCHIVES | _suffixes(
    "png jpg jpeg gif bmp ico tif tiff webp heic avif psd xcf mp3 wav flac ogg oga opus m4a aac wma mid "
    "mp4 mkv avi mov webm wmv flv m4v jar war whl egg deb rpm iso img dmg cab apk lz lz4 lzma br "
    "o a so dylib dll exe lib obj ko class pyc pyo pyd wasm bc rlib rmeta pdf doc docx xls xlsx ppt pptx "
    "odt ods odp odg epub mobi djvu ttf otf woff woff2 eot npy npz pkl pickle pt pth ckpt safetensors gguf "
    "onnx tflite h5 hdf5 arrow feather orc avro bin idx db sqlite sqlite3 mdb rdb mo gmo swp"
)

# Certainly text: a folder's walk need not open the file.
_TEXT = _suffixes(
    "txt text md markdown rst adoc org tex bib log csv tsv html htm xhtml xml svg json yaml yml toml ini cfg "
    "conf srt vtt po pot properties py pyi pyx c h cc cpp cxx hh hpp hxx cu cuh rs go java kt kts scala groovy "
    "js mjs cjs jsx ts tsx vue svelte css scss less sql sh bash zsh fish ps1 bat rb php pl pm lua r jl m mm hs "
    "ml mli ex exs erl hrl clj cljs lisp el scm rkt swift dart zig nim f f90 f95 pas asm s v sv vhd tcl cmake "
    "mk dts dtsi proto thrift graphql tf gradle diff patch ipynb"
)


def split_suffixes(name: str) -> tuple[str, str]:
    """`a.jsonl.gz` -> (`.jsonl`, `gz`)."""
    inner, suffix = os.path.splitext(name)
    compression = COMPRESSION_OF.get(suffix.lower(), "")
    if compression:
        suffix = os.path.splitext(inner)[1]
    return suffix.lower(), compression


def stem(name: str) -> str:
    """`a.jsonl.gz` -> `a`."""
    inner, suffix = os.path.splitext(name)
    return os.path.splitext(inner)[0] if suffix.lower() in COMPRESSION_OF else inner


def decoder_bytes(form: str, compression: str) -> int:
    """The least memory that reading such a file takes, windows and pages included."""
    return _DECODER_BYTES[compression] + FORMATS[form].reader_bytes


def is_text(path: str, suffix: str, compression: str, form: str | None) -> bool:
    """Whether a file found in a folder is one to read; `form` is the format of all inputs, if given."""
    if suffix in _BINARY:
        return False
    if suffix in _TEXT or suffix in FORMAT_OF or compression or (form and FORMATS[form].binary):
        return True
    return b"\0" not in first_bytes(path, 1024)


def first_bytes(path: str, count: int) -> bytes:
    """The beginning of a file; nothing if it cannot be read, which the reader will report."""
    try:
        # Not open(), which costs more; a pipe must not make us wait for its writer.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.read(file, count)
        finally:
            os.close(file)
    except OSError:
        return b""
