"""The settings of Python functions, for type checkers and editors.

Written by `python -m ramlet.settings.types`: do not change it by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Literal, TypedDict

Amount = int | float | str
"""2048, 1e6, "32k" or "10M"; of bytes also "200MB"."""
PathName = str | PathLike[str]


class TrainSettings(TypedDict, total=False):
    """Of `ramlet.train`."""

    params: Amount | None
    """Approximate number of parameters, embedding included: 10M, 124M, 1.3B."""
    config: PathName | None
    """Shape of the model: JSON or YAML (keys of ramlet, transformers or nanoGPT), or a Llama or Qwen3 folder."""
    init_from: PathName | None
    """Initialize the weights from a run, a checkpoint, or a Llama or Qwen3 model saved by transformers."""
    seq_len: Amount | None
    """Sequence length in tokens."""
    kv_groups: Amount
    """Query heads that share one key/value head (GQA); 1 is multi-head attention."""
    tied: bool
    """Tie the LM head to the embedding."""
    qk_norm: bool | None
    """RMSNorm of queries and keys, as in Qwen3."""
    batch_size: Amount
    """Sequences per batch, over all processes; split into micro-batches to fit the memory budget, never reduced."""
    gradient_accumulation_steps: Amount
    """Batches per optimizer step. Not needed to save memory: micro-batches are automatic."""
    tokens_per_step: Amount | None
    """Tokens per optimizer step, instead of batch_size; rounded up to whole sequences."""
    max_steps: Amount | None
    """Length of the run in steps; give at most one of this, epochs and tokens."""
    epochs: float | str | None
    """Length of the run in epochs."""
    tokens: Amount | None
    """Length of the run in tokens."""
    lr: float | str | None
    """Peak learning rate."""
    min_lr: float | str | None
    """Final learning rate."""
    warmup: Amount | None
    """Warmup steps."""
    schedule: Literal["cosine", "linear", "constant", "wsd"] | None
    """Schedule after the warmup; wsd (warmup-stable-decay) is constant, then decays linearly."""
    decay: float | str | None
    """Fraction of the steps, at the end of the run, over which wsd decays the learning rate."""
    average: float | str
    """Average the weights over this last fraction of the run; the average is kept if its loss is lower; 0 disables."""
    weight_decay: float | str
    """Weight decay; not for norms or, with muon, embeddings."""
    beta1: float | str
    """AdamW's beta1; with muon only for embeddings and norms."""
    beta2: float | str
    """AdamW's beta2; with muon only for embeddings and norms."""
    eps: float | str
    """AdamW's epsilon; with muon only for embeddings and norms."""
    dropout: float | str
    """Dropout after the embedding and on the outputs of attention and MLP; attention weights have none."""
    clip: float | str
    """Clip the gradient norm to this; 0 disables."""
    optimizer: Literal["auto", "adamw", "adamw8bit", "muon", "muon8bit"]
    """Optimizer; auto: muon, but adamw for small batches and to train a model further; 8-bit states only if needed."""
    precision: Literal["auto", "fp8", "bf16", "fp16", "fp32"]
    """Compute dtype; auto: bf16 if fast, else fp16 on a GPU, fp32 on a CPU; fp8 is faster on recent GPUs."""
    weights: Literal["auto", "fp32", "bf16"]
    """Dtype of the weights in memory and in checkpoints; auto uses bf16 only if fp32 does not fit."""
    device: Literal["auto", "cpu", "cuda", "tpu"]
    """Device; auto uses a GPU or TPU if there is one."""
    engine: Literal["auto", "torch", "native", "jax"]
    """What runs the model; auto: torch (if installed) on GPUs, CPUs with AMX, torchrun; jax on TPUs; else native."""
    seed: Amount
    """Seed for the initial weights, the data order and the samples."""
    stride: Amount | None
    """Tokens between the starts of consecutive sequences; below seq_len they overlap."""
    max_examples: Amount | None
    """Use only the first N sequences of the data, before shuffling."""
    shift: bool
    """Move the sequence boundaries in every epoch after the first; not for packed datasets or streams."""
    document_mask: bool
    """Prevent attention across document boundaries."""
    val_fraction: float | str
    """Fraction held out for validation: the end of a .npy file, or documents of a text file; a dataset has its own."""
    shuffle_buffer: Amount
    """Size of a stream's shuffle buffer in sequences."""
    micro_batch: Amount | None
    """Sequences per forward pass."""
    shard: Literal["auto", "none", "states", "gradients", "weights"]
    """Shard over torchrun processes: states (ZeRO-1), also gradients (ZeRO-2), also weights (FSDP); auto: as needed."""
    recompute: bool | None
    """Activation checkpointing: less memory, slower."""
    eval_every: Amount | None
    """Steps between evaluations; 0 evaluates only at the end."""
    eval_tokens: Amount | None
    """Tokens per evaluation."""
    forgetting: float | str
    """With init_from: warn when the loss on an evaluation set, except val, is this many nats above the first."""
    sample_every: Amount | None
    """Steps between samples of generated text; 0 disables."""
    sample_prompt: str
    """Prompt for the samples."""
    sample_tokens: Amount
    """Tokens per sample."""
    checkpoint_every: Amount | None
    """Steps between checkpoints."""
    keep: Amount
    """Most recent checkpoints to keep, in addition to the best and, with wsd, the last one before the decay."""
    log_every: Amount
    """Steps between lines in metrics.jsonl."""
    spike: float | str
    """Stop when the loss is this many nats above its recent mean; 0 disables."""
    tensorboard: bool
    """Also write TensorBoard files to RUN/tensorboard."""
    wandb: bool
    """Also log to Weights & Biases; needs the package wandb."""


class PrepareSettings(TypedDict, total=False):
    """Of `ramlet.prepare`."""

    documents: Literal["file", "line"]
    """What a document is in a text file: the whole file, or each line."""
    doc_separator: str | None
    """String between the documents of a text file."""
    text_field: str
    """JSON field, or column of a Parquet file or dataset, that holds the text."""
    format: Literal["text", "jsonl", "parquet"] | None
    """Format of all inputs."""
    on_error: Literal["stop", "skip"]
    """At a broken line or file: stop, or skip it and count it."""
    end_token: str | None
    """EOS token to append to every document, or none."""
    unknown: Literal["error", "unk"]
    """A character that the vocabulary lacks is an error, or becomes the unk token."""
    normalize: bool
    """Normalize line ends and Unicode (NFC), remove control characters, trailing spaces and extra blank lines."""
    collapse_blanks: bool
    """When normalizing, also replace runs of spaces and tabs inside a line by one space."""
    filter: bool
    """Apply the filters below; if off, only min_tokens and max_tokens apply, and empty documents are dropped."""
    min_chars: Amount
    """Drop documents with fewer characters."""
    max_chars: Amount
    """Drop documents with more characters; 0 disables."""
    max_symbols: float | str
    """Drop documents with a larger fraction of symbols: not letters, marks, numbers or white space."""
    max_repeated: float | str
    """Drop documents with a larger fraction of their text in repeated lines."""
    max_invalid: float | str
    """Drop documents with a larger fraction of undecodable characters (U+FFFD)."""
    min_line_chars: Amount
    """Drop lines with fewer characters; blank lines stay."""
    max_line_chars: Amount
    """Drop lines with more characters; 0 disables."""
    max_line_symbols: float | str
    """Drop lines with a larger fraction of symbols."""
    dedup: Literal["doc", "line", "none"]
    """Drop repeated documents (doc) or repeated lines (line), keeping the first of each; none keeps all."""
    near: float | str | None
    """Also drop near-duplicates: documents with at least this Jaccard similarity to one that is kept; 0.8 is usual."""
    dedup_cache: PathName | None
    """Folder of hashes of kept documents; later runs with the same folder drop duplicates of these too."""
    exclude: PathName | Iterable[PathName]
    """Drop documents that share a passage with this evaluation set (text or a dataset); may be given several times."""
    exclude_ngram: Amount
    """Words in a row that count as a shared passage; in Chinese, Japanese or Thai, characters."""
    exclude_field: str | None
    """The same as text_field, for exclude."""
    document_bytes: Amount | None
    """Split documents that are longer than this."""
    min_tokens: Amount
    """Drop documents with fewer tokens."""
    max_tokens: Amount | None
    """Split or drop documents with more tokens."""
    long_documents: Literal["split", "drop"]
    """What to do with documents over max_tokens."""
    val_fraction: float | str
    """Fraction of documents for validation, chosen by their hash."""
    tokens_per_shard: Amount
    """Maximum tokens in a shard, which holds whole documents."""
    pack: Amount | None
    """Pack documents into sequences of this many tokens."""
    output_format: Literal["shards", "npy"]
    """A folder of shards, or all ids in one .npy file, without a validation split."""
    allow_empty: bool
    """Write the dataset even if no document is left, instead of an error."""


class TokenizerSettings(TypedDict, total=False):
    """Of `ramlet.Tokenizer.train`."""

    documents: Literal["file", "line"]
    """What a document is in a text file: the whole file, or each line."""
    doc_separator: str | None
    """String between the documents of a text file."""
    text_field: str
    """JSON field, or column of a Parquet file or dataset, that holds the text."""
    format: Literal["text", "jsonl", "parquet"] | None
    """Format of all inputs."""
    on_error: Literal["stop", "skip"]
    """At a broken line or file: stop, or skip it and count it."""
    vocab_size: Amount | None
    """Vocabulary size, special tokens included: 32k; required for bpe. char keeps the most frequent characters."""
    kind: Literal["bpe", "char", "byte"]
    """Byte-pair encoding, one token per character of the text, or one per byte."""
    pattern: str
    """Pre-tokenization: how text is split before merging."""
    special_tokens: str | Iterable[str]
    """Special token, ignored in the text; may be given several times. They get the last ids, in this order."""
    tie_break: Literal["hf", "bytes"]
    """Of equally frequent pairs, merge the one with the smallest ids (hf) or the largest bytes (bytes) first."""
    min_frequency: Amount
    """Merge only pairs that occur at least this often."""
    max_token_bytes: Amount | None
    """Learn no token longer than this many bytes."""
    unknown: Literal["error", "unk"]
    """With kind char: a character that the vocabulary lacks is an error, or becomes the token <unk>."""


class GenerateSettings(TypedDict, total=False):
    """Of `ramlet.generate`."""

    max_tokens: Amount
    """Maximum new tokens."""
    temperature: float | str
    """Sampling temperature; 0 is greedy."""
    top_k: Amount | None
    """Sample only from the k most likely tokens."""
    top_p: float | str | None
    """Sample only from the most likely tokens whose probabilities add up to p (nucleus sampling)."""
    repetition_penalty: float | str
    """Above 1 makes tokens that already occurred less likely."""
    seed: Amount | None
    """The same seed gives the same text; sample i has seed + i."""
    num_samples: Amount
    """Texts to generate, as one batch."""
    stop: str | Iterable[str]
    """Stop before this text; may be given several times."""
    truncate: bool
    """Keep only the end of a prompt that is longer than the context."""
