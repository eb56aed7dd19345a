"""The interface of the native core. Private: only modules of ramlet call it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "EncodeStream",
    "Encoder",
    "NativeChooser",
    "NativeDecoder",
    "NativeGPT",
    "Reader",
    "Repetition",
    "Windows",
    "adamw8bit_step",
    "assembled_shards",
    "build_exclude_set",
    "check_dedup_cache",
    "clean_text",
    "commit_dedup_cache",
    "contaminated_documents",
    "count_characters",
    "count_partitions",
    "count_task",
    "dedup_partitions",
    "drop_rules",
    "finish_near",
    "keep_large_blocks",
    "kernel_accumulate",
    "kernel_cross_entropy",
    "kernel_dropout",
    "kernel_gate",
    "kernel_gate_backward",
    "kernel_norm",
    "kernel_norm_backward",
    "kernel_qk_norm",
    "kernel_qk_norm_backward",
    "kernel_rotate",
    "kernel_squares",
    "least_memory",
    "least_room",
    "merge_counts",
    "momentum8bit_step",
    "muon_scratch_bytes",
    "muon_update",
    "near_partitions",
    "panic_on_purpose",
    "parquet_memory",
    "pattern_regex",
    "plan_tasks",
    "recognise_pattern",
    "release_file_pages",
    "release_freed_memory",
    "run_prepare_stage",
    "shingles",
    "shuffled",
    "split_file_pages",
    "split_pieces",
    "subtract_rounded",
    "train_bpe",
    "vectors",
    "xxh64_file",
]

_Spec = tuple[str, str, str, int, int]
"""Path ("-" is standard input), format, compression ("", gz, zst, xz or bz2), size or -1, modification time."""

_Watch = Callable[[str, int, int], None]
"""Called a few times per second with the stage (counting, sorting, merging), the amount done and the total."""

_Special = tuple[str, int]

def train_bpe(
    *,
    files: Iterator[_Spec] | None,
    texts: Iterator[list[str]] | None,
    total_bytes: int,
    read: dict[str, Any],
    pattern_name: str,
    specials: Sequence[str],
    tokens: int,
    min_frequency: int,
    max_token_bytes: int,
    tie_break: str,
    threads: int,
    memory: int,
    resident_limit: int,
    work_dir: str,
    signature: str,
    checkpoint_seconds: float,
    progress: _Watch | None,
    decoding: int = 0,
    counted: str | PathLike[str] | None = None,
) -> dict[str, Any]: ...
def count_task(
    work: str | PathLike[str],
    task: int,
    *,
    read: dict[str, Any],
    pattern_name: str,
    specials: Sequence[str],
    threads: int,
    memory: int,
    resident_limit: int,
    decoding: int,
) -> None: ...
def merge_counts(work: str | PathLike[str], tasks: int, partition: int, *, memory: int) -> None: ...
def count_partitions() -> int: ...
def least_memory(threads: int, tokens: int, decoding: int = 0) -> int: ...
def pattern_regex(name: str) -> str: ...
def adamw8bit_step(
    weights: npt.NDArray[np.float32] | npt.NDArray[np.uint16],
    gradients: npt.NDArray[np.float32] | npt.NDArray[np.uint16],
    first: npt.NDArray[np.uint8],
    first_scales: npt.NDArray[np.float32],
    root: npt.NDArray[np.uint8],
    root_scales: npt.NDArray[np.float32],
    *,
    factors: Sequence[float],
    rounding_key: int,
    first_index: int,
    threads: int,
) -> None: ...
def momentum8bit_step(
    gradients: npt.NDArray[np.float32] | npt.NDArray[np.uint16],
    codes: npt.NDArray[np.int8],
    scales: npt.NDArray[np.float32],
    *,
    decay: float,
    gain: float,
    threads: int,
) -> None: ...
def muon_scratch_bytes(sizes: Sequence[tuple[int, int]], threads: int) -> int: ...
def muon_update(
    matrices: Sequence[Sequence[int]],
    *,
    coefficients: Sequence[tuple[float, float, float]],
    factors: tuple[float, float, float, float],
    scratch: int,
    scratch_bytes: int,
    threads: int,
) -> None: ...
def subtract_rounded(
    weights: npt.NDArray[np.uint16],
    changes: npt.NDArray[np.float32],
    *,
    keep: float,
    rounding_key: int,
    first_index: int,
    threads: int,
) -> None: ...
def shuffled(length: int, words: Sequence[int]) -> npt.NDArray[np.uint64]: ...
def release_file_pages() -> int: ...
def split_file_pages(names: list[str]) -> None: ...
def keep_large_blocks(keep: bool) -> None: ...
def release_freed_memory() -> None: ...
def vectors() -> str: ...
def panic_on_purpose(threads: int) -> None: ...
def recognise_pattern(regex: str) -> str | None: ...
def split_pieces(text: str, pattern_name: str) -> list[str]: ...
def plan_tasks(
    files: Iterator[_Spec],
    folder: str | PathLike[str],
    *,
    documents: str,
    separator: str | None,
    task_bytes: int | None,
    whole_documents: bool = False,
) -> tuple[int, int, int, str]: ...
def dedup_partitions(total_bytes: int, unit: str) -> int: ...
def least_room(plan: str, merges: bool) -> tuple[int, int]: ...
def run_prepare_stage(
    work: str | PathLike[str],
    out: str | PathLike[str],
    stage: str,
    parts: list[int],
    *,
    encoder: Encoder | None,
    encode: Callable[[list[str]], Any] | None,
    decode: Callable[[list[int]], bytes] | None,
    memory: int,
    threads: int,
    total: int,
    progress: _Watch | None,
) -> None: ...
def assembled_shards(work: str | PathLike[str], out: str | PathLike[str]) -> str: ...
def check_dedup_cache(plan: str) -> None: ...
def commit_dedup_cache(work: str | PathLike[str], out: str | PathLike[str]) -> int: ...
def near_partitions(total_bytes: int, bands: int) -> int: ...
def finish_near(
    work: str | PathLike[str],
    out: str | PathLike[str],
    path: str | PathLike[str],
    *,
    encoder: Encoder | None,
    decode: Callable[[list[int]], bytes] | None,
) -> None: ...
def shingles(text: str) -> list[int]: ...

@final
class Repetition:
    def __new__(cls, ngram: int) -> Repetition: ...
    def add(self, texts: list[str]) -> None: ...
    def begin_counting(self) -> None: ...
    def result(self, most: int) -> str: ...

def build_exclude_set(
    files: Iterator[_Spec],
    read: dict[str, Any],
    path: str | PathLike[str],
    *,
    clean: str,
    ngram: int,
    document_bytes: int,
    memory: int,
    window_bytes: int,
    total: int,
    progress: _Watch | None,
) -> tuple[int, int, int]: ...
def contaminated_documents(work: str | PathLike[str], out: str | PathLike[str]) -> str: ...
def parquet_memory(path: str | PathLike[str], field: str) -> int: ...
def xxh64_file(path: str | PathLike[str], start: int = 0) -> tuple[int, int]: ...
def clean_text(text: str, settings: str) -> tuple[str | None, str | None, list[tuple[str, int, int]]]: ...
def drop_rules() -> list[tuple[str, str, str, str]]: ...
def count_characters(
    files: Iterator[_Spec],
    read: dict[str, Any],
    *,
    most: int | None,
    threads: int,
    block_bytes: int,
    window_bytes: int,
    spill_dir: str,
    total_bytes: int,
    progress: _Watch | None,
) -> tuple[str, str, dict[str, Any]]: ...

@final
class Encoder:
    @staticmethod
    def bpe(
        tokens: list[bytes | None],
        merges: Sequence[tuple[int, int, int]],
        *,
        pattern_name: str,
        ignore_merges: bool,
        rank_by_id: bool,
        nfc: bool,
        added: Sequence[_Special],
        cache_bytes: int,
    ) -> Encoder: ...
    @staticmethod
    def characters(
        characters: Iterable[tuple[str, int]], unknown: int | None, *, added: Sequence[_Special], cache_bytes: int
    ) -> Encoder: ...
    def encode(self, text: str, specials: Sequence[_Special]) -> list[int]: ...
    def encode_batch(
        self,
        texts: Sequence[str | bytes],
        specials: Sequence[_Special],
        *,
        threads: int,
        wide: bool,
        parts: bool = False,
    ) -> tuple[npt.NDArray[np.uint16] | npt.NDArray[np.uint32], npt.NDArray[np.uint64]]: ...
    def stream(self, specials: Sequence[_Special]) -> EncodeStream: ...
    def decode(self, ids: Sequence[int]) -> bytes: ...

@final
class EncodeStream:
    def push(self, text: str) -> list[int]: ...
    def finish(self) -> list[int]: ...

@final
class Reader:
    def __new__(
        cls,
        files: Iterator[_Spec],
        read: dict[str, Any],
        *,
        encoder: Encoder | None,
        block_bytes: int,
        window_bytes: int,
        spill_dir: str,
        longest_part: int | None = None,
        position: str | None = None,
    ) -> Reader: ...
    def next_batch(self) -> list[tuple[str, bool]] | None: ...
    def position(self) -> str | None: ...
    def counters(self) -> dict[str, Any]: ...

_Rows = npt.NDArray[np.int64]
_Batch = tuple[_Rows, _Rows, tuple[_Rows, _Rows] | None]
"""Inputs and labels, and with `documents` also positions and documents."""

@final
class Windows:
    def __new__(cls, datasets: Sequence[dict[str, Any]], *, seq_len: int, shuffle: bool) -> Windows: ...
    def read(self, first: int, step: int, count: int, *, seed: int, documents: bool) -> _Batch: ...
    def example(self, dataset: int, example: int, *, documents: bool) -> _Batch: ...
    def schedule(self, first: int, step: int, count: int, *, seed: int) -> list[tuple[int, int]]: ...

_Described = tuple[str, str, tuple[int, ...], tuple[int, int]]
"""Name, dtype as safetensors calls it, shape, and memory: address and bytes."""

@final
class NativeGPT:
    """A model in one piece of memory. All arguments but `shape` decide its layout; with `training=False` it has weights
    and a forward pass only.

    `shape` is `Shape.to_dict()` with "cos" and "sin", the rotary tables of `seq_len` positions or more: fp32, (tokens,
    head width / 2), as bytes.
    """

    def __new__(
        cls,
        shape: Mapping[str, Any],
        *,
        micro_batch: int,
        seq_len: int,
        chunk: int,
        recompute: bool,
        optimizer: str,
        weights: str,
        compute: str,
        dropout: float,
        document_mask: bool,
        held: int,
        unit: int,
        training: bool,
        threads: int,
    ) -> NativeGPT: ...
    @staticmethod
    def parts(
        shape: Mapping[str, Any],
        *,
        micro_batch: int,
        seq_len: int,
        chunk: int,
        recompute: bool,
        optimizer: str,
        weights: str,
        compute: str,
        dropout: float,
        document_mask: bool,
        held: int,
        unit: int,
        training: bool,
        threads: int,
    ) -> dict[str, int]: ...
    def tensors(self) -> list[_Described]: ...
    def gradients(self) -> list[_Described]: ...
    def states(self) -> list[_Described]: ...
    def initialize(self, seed: int) -> None: ...
    def learn(
        self,
        input_ids: _Rows,
        targets: _Rows,
        position_ids: _Rows | None,
        document_ids: _Rows | None,
        dropout_keys: _Rows | None,
        scale: float,
    ) -> float: ...
    def losses(
        self, input_ids: _Rows, targets: _Rows, position_ids: _Rows | None, document_ids: _Rows | None
    ) -> list[float]: ...
    def update(
        self, rate: float, clip: float, correction: float, hyper: tuple[float, float, float, float], seed: int
    ) -> float: ...

_Tensor = tuple[str, str, tuple[int, ...], tuple[int, int]]
"""Name, type ("F32" or "BF16"), shape, and memory as (address, bytes)."""

@final
class NativeDecoder:
    def __new__(
        cls,
        shape: Mapping[str, Any],
        owner: Any,
        tensors: Sequence[_Tensor],
        *,
        rows: int,
        capacity: int,
        tokens: int,
        threads: int,
    ) -> NativeDecoder: ...
    @staticmethod
    def bytes(
        shape: Mapping[str, Any], *, bf16: bool, rows: int, capacity: int, tokens: int, threads: int
    ) -> tuple[int, int]: ...
    @property
    def length(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def feed(self, ids: Sequence[Sequence[int]]) -> None: ...
    def logits(self) -> npt.NDArray[np.float32]: ...
    def spread(self) -> None: ...
    def clear(self) -> None: ...

@final
class NativeChooser:
    def __new__(
        cls,
        vocab: int,
        samples: int,
        *,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        repetition_penalty: float,
        prompt: Sequence[int],
        known: Sequence[int] | None,
    ) -> NativeChooser: ...
    @staticmethod
    def bytes(vocab: int, samples: int, *, top_p: float | None, repetition_penalty: float) -> int: ...
    def choose(self, logits: npt.NDArray[np.float32], draws: Sequence[float]) -> list[int] | None: ...
    def shares(self, logits: npt.NDArray[np.float32], sample: int) -> npt.NDArray[np.float32] | None: ...

# Kernels of a training step take addresses (`Tensor.data_ptr()`), so the native core does not depend on torch.
def kernel_norm(bf16: bool, x: int, gain: int, eps: float, out: int, rows: int, width: int, threads: int) -> None: ...
def kernel_norm_backward(
    bf16: bool,
    dy: int,
    x: int,
    gain: int,
    eps: float,
    gain_grad: int,
    dx: int,
    rows: int,
    width: int,
    unit: int,
    threads: int,
) -> None: ...
def kernel_rotate(
    bf16: bool,
    matrix: int,
    cos: int,
    sin: int,
    positions: int,
    wide_positions: bool,
    rows: int,
    width: int,
    context: int,
    half: int,
    heads: int,
    inverse: bool,
    threads: int,
) -> None: ...
def kernel_qk_norm(
    bf16: bool, qkv: int, out: int, tables: Sequence[int], eps: float, sizes: Sequence[int], threads: int
) -> None: ...
def kernel_qk_norm_backward(
    bf16: bool,
    grad: int,
    qkv: int,
    tables: Sequence[int],
    gain_grads: Sequence[int],
    eps: float,
    sizes: Sequence[int],
    unit: int,
    threads: int,
) -> None: ...
def kernel_gate(bf16: bool, gate_up: int, out: int, rows: int, half: int, threads: int) -> None: ...
def kernel_gate_backward(
    bf16: bool, gate_up: int, d_act: int, act: int, rows: int, half: int, threads: int
) -> None: ...
def kernel_dropout(
    bf16: bool,
    out: int,
    x: int,
    adds: bool,
    keys: tuple[int, ...],
    drops: tuple[int, int, float],
    rows: int,
    width: int,
    threads: int,
) -> None: ...
def kernel_cross_entropy(
    bf16: bool,
    logits: int,
    labels: int,
    losses: int,
    rows: int,
    width: int,
    vocab: int,
    scale: float,
    threads: int,
) -> None: ...
def kernel_accumulate(bf16: bool, total: int, part: int, count: int, threads: int) -> None: ...
def kernel_squares(bf16: bool, numbers: int, count: int, threads: int) -> float: ...
