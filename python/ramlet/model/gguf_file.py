"""Writes a model as one .gguf file, which llama.cpp and everything built on it runs.

    write_gguf(shape, sources, vocabulary, "model.gguf", dtype="q8_0", name="my-model")

llama.cpp's own package `gguf` writes the header and knows the names of the tensors; their data follows in pieces, so a
model of any size needs a few buffers. As in llama.cpp's converter:

- Norms are fp32 whatever the dtype is. A matrix whose rows are no multiple of 32 has no q8_0, and is fp16 instead.
- llama.cpp rotates neighboring pairs of a Llama's heads, transformers the two halves: the rows of the queries and keys
  are reordered. A Qwen3 is rotated as in transformers.
- Llama 3's RoPE scaling is a tensor with a factor for each frequency.
- The rows of the embedding without a token are left out, so that they are never generated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramlet.errors import ModelError, SettingsError
from ramlet.model.dtypes import DTYPES, convert
from ramlet.model.gguf_vocabulary import Vocabulary
from ramlet.model.names import named_tensors
from ramlet.model.shape import Shape
from ramlet.model.tensor_file import Entry, read_header, read_rows

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PIECE = 1 << 20
"""Elements of a tensor that are converted at once."""
BLOCK = 32
"""Numbers that share a scale in q8_0."""
STORED = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
"""By the names of llama.cpp: the dtype of the matrices."""
LARGEST_Q8 = 127 * 65504.0
"""Scales are fp16."""


def load_gguf() -> Any:
    """llama.cpp's package."""
    try:
        import gguf
    except ImportError:
        raise SettingsError("a .gguf needs llama.cpp's package gguf: pip install 'ramlet[gguf]'") from None
    return gguf


def write_gguf(
    shape: Shape,
    sources: Mapping[str, Path],
    vocabulary: Vocabulary,
    path: Path,
    *,
    dtype: str,
    name: str,
    progress: Callable[[int, int], None],
) -> list[str]:
    """Writes the file, not atomically; returns the tensors that q8_0 cannot store, which are fp16.

    `sources` has the safetensors file of each tensor; `progress` is called with the bytes read, and all.
    """
    gguf = load_gguf()
    kind = gguf.MODEL_ARCH.QWEN3 if shape.qk_norm else gguf.MODEL_ARCH.LLAMA
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    _describe(writer, gguf, shape, dtype, name)
    _add_vocabulary(writer, vocabulary)
    names = gguf.get_tensor_name_map(kind, shape.layers)
    rows = len(vocabulary.tokens)
    planned: list[tuple[str, tuple[int, ...], str]] = []
    for tensor in named_tensors(shape):
        size = (rows, *tensor.shape[1:]) if tensor.name in ("model.embed_tokens.weight", "lm_head.weight") else None
        stored = _stored(tensor.shape, dtype)
        planned.append((tensor.name, size or tensor.shape, stored))
        their_name = names.get_name(tensor.name, try_suffixes=(".weight",))
        _add_tensor(writer, gguf, their_name, size or tensor.shape, stored)
    factors = _rope_factors(shape)
    if factors is not None:
        _add_tensor(writer, gguf, "rope_freqs.weight", factors.shape, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("ab") as file:
        writer.write_padding(file, file.tell())
        headers = {source: read_header(source) for source in set(sources.values())}
        entries = {ours: headers[sources[ours]].tensors[ours] for ours, _, _ in planned}
        done, total = 0, sum(entry.size for entry in entries.values())
        for ours, size, stored in planned:
            entry = entries[ours]
            for piece in _converted(gguf, sources[ours], ours, entry, size[0], stored, _order(shape, ours)):
                file.write(piece)
            done += entry.size
            progress(done, total)
            writer.write_padding(file, file.tell())
        if factors is not None:
            file.write(factors.tobytes())
            writer.write_padding(file, file.tell())
        file.flush()
        os.fsync(file.fileno())
    return [ours for ours, _, stored in planned if dtype == "q8_0" and stored == "F16"]


def _describe(writer: Any, gguf: Any, shape: Shape, dtype: str, name: str) -> None:
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if dtype == "f32" else f"MOSTLY_{STORED[dtype]}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_vocabulary(writer: Any, vocabulary: Vocabulary) -> None:
    writer.add_vocab_size(len(vocabulary.tokens))
    writer.add_tokenizer_model(vocabulary.kind)
    writer.add_tokenizer_pre(vocabulary.pattern)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merges is None:
        writer.add_token_scores([0.0] * len(vocabulary.tokens))
    else:
        writer.add_token_merges(vocabulary.merges)
    # A text starts after the end of the previous one, but nothing is put before a prompt, as everywhere in ramlet.
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(vocabulary.end_id)
    for switch in (writer.add_add_bos_token, writer.add_add_eos_token, writer.add_add_space_prefix):
        switch(False)


def _stored(shape: tuple[int, ...], dtype: str) -> str:
    if len(shape) == 1:
        return "F32"
    return "F16" if dtype == "q8_0" and shape[-1] % BLOCK else STORED[dtype]


def _add_tensor(writer: Any, gguf: Any, name: str, shape: tuple[int, ...], stored: str) -> None:
    import numpy as np

    kind = gguf.GGMLQuantizationType[stored]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    # The dtype is not looked at if the kind is given, unless it is uint8: then the shape would be in bytes.
    writer.add_tensor_info(name, shape, np.dtype(np.float32), math.prod(shape) // block * size, raw_dtype=kind)


def _order(shape: Shape, name: str) -> list[int] | None:
    """The rows of a Llama's queries and keys, in llama.cpp's order: of each head, halves become neighbors."""
    if shape.qk_norm or not name.endswith(("q_proj.weight", "k_proj.weight")):
        return None
    heads = shape.heads if name.endswith("q_proj.weight") else shape.kv_heads
    half = shape.head_width // 2
    starts = range(0, heads * shape.head_width, shape.head_width)
    return [start + pair + side * half for start in starts for pair in range(half) for side in (0, 1)]


def _converted(
    gguf: Any, path: Path, name: str, entry: Entry, rows: int, stored: str, order: list[int] | None
) -> Iterator[Any]:
    """The bytes of the first rows of a tensor, in pieces."""
    import numpy as np

    width = math.prod(entry.shape[1:])
    at_once = max(1, PIECE // width)
    wanted = "F32" if stored == "Q8_0" else stored
    made = memoryview(bytearray(min(rows, at_once) * width * DTYPES[wanted].itemsize))
    for piece in read_rows(path, entry, order if order is not None else range(rows), at_once):
        try:
            numbers = convert(piece, entry.dtype, wanted, made)
            if stored == "Q8_0":
                matrix: npt.NDArray[np.float32] = np.frombuffer(numbers, np.float32).reshape(-1, width)
                most = max(matrix.max(), -matrix.min())
                if not math.isfinite(most):
                    raise ModelError(f"{name} is damaged, it has NaN or infinite numbers: export another checkpoint")
                if most > LARGEST_Q8:
                    raise OverflowError
                numbers = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q8_0).tobytes()
        except OverflowError:
            raise ModelError(f"{name} has numbers too large for {stored.lower()}: use bf16 or f32") from None
        yield numbers


def _rope_factors(shape: Shape) -> npt.NDArray[np.float32] | None:
    """What each frequency is divided by."""
    scaling = shape.rope_scaling
    if scaling is None:
        return None
    import numpy as np

    steps = [shape.rope_base ** (-at / shape.head_width) for at in range(0, shape.head_width, 2)]
    return np.array([step / scaling.scaled(step) for step in steps], np.float32)
