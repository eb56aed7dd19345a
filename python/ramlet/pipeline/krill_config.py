"""krill's keys: its config file is a pipeline, flat as in older versions or in sections as in newer ones.

    sequence_len: 2048      data: pack            tokenizer: {hub_id, vocab_size}
    min_length: 150         data: min_tokens      preprocess: {prepared_path, sequence_len, min_length}
    num_epochs: 1           training: epochs      train: {arch, model_config_name, num_epochs, ...}

What each key was read as is shown as a note. Nothing is ever uploaded.
"""

from __future__ import annotations

DATA = {
    "sequence_len": "pack",
    "min_length": "min_tokens",
    "preprocess_dedup_cache_dir": "dedup_cache",
    "preprocess_save_shard_size": "tokens_per_shard",
    "preprocess_memory_efficient": "",
    "preprocess_chunk_size": "",
}
"""Their names in the section `data`; empty where the memory budget decides."""

PREPROCESS = ("sequence_len", "min_length", "prepared_path")

TRAINING = {
    "num_epochs": "epochs",
    "learning_rate": "lr",
    "weight_decay": "weight_decay",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "micro_batch_size": "batch_size",
    "optimizer": "optimizer",
    "model_config_name": "params",
}

NOTED = {
    "hub_model_id": "nothing is uploaded; the run's folder opens in transformers as it is",
    "dataset_prepared_path": "the dataset goes into the folder `work`",
    "prepared_path": "the dataset goes into the folder `work`",
    "arch": "models have the Llama architecture",
    "muon_implementation": "there is one implementation",
    "resume": "an interrupted run always resumes",
}
"""Keys without effect, and why."""

_SIZES = {"pico": 520_000, "micro": 20_000_000, "small": 187_000_000}
"""Parameters of its presets with its vocabulary of 32,000."""


def parameters(preset: object) -> int:
    """
    >>> parameters("micro")
    20000000
    """
    if not isinstance(preset, str) or preset not in _SIZES:
        raise ValueError(f"must be one of {', '.join(_SIZES)}, not {preset!r}: give model: {{params: 10M}} instead")
    return _SIZES[preset]
