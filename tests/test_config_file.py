"""Config files: ramlet's keys, krill's keys, and every mistake told with its line."""

from __future__ import annotations

import doctest
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ramlet.errors import SettingsError
from ramlet.inputs.staging import Input
from ramlet.preparing.config_file import Config, load
from ramlet.preparing.settings import PrepareSettings
from ramlet.runtime import amounts
from ramlet.settings import declared, kinds


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def read_text(text: str) -> Config:
        Path("config.yaml").write_text(text, encoding="utf-8")
        return load("config.yaml")

    return read_text


def test_own_keys(read: Any) -> None:
    config = read(
        """
inputs: [corpus/, "more/*.jsonl"]
out: data
memory: 2GB
threads: 4
append: true
tokenizer: char
tokens-per-shard: 10M
min_chars: 1,000
document-bytes: 64KiB
val_fraction: 1e-3
normalize: no
docs: line
max_tokens: null
"""
    )
    assert config.inputs == (Input("corpus/"), Input("more/*.jsonl"))
    assert (config.out, config.memory, config.threads, config.append) == ("data", "2GB", 4, True)
    assert config.settings == {
        "tokenizer": "char",
        "tokens_per_shard": 10_000_000,
        "min_chars": 1000,
        "document_bytes": 65536,
        "val_fraction": 0.001,
        "normalize": False,
        "documents": "line",
        "max_tokens": None,
    }
    assert config.notes == ()


def test_every_setting_is_a_key(read: Any) -> None:
    plain = PrepareSettings()
    for each in fields(PrepareSettings):
        value = getattr(plain, each.name)
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else "[]" if value == () else str(value)
            assert read(f"{each.name.replace('_', '-')}: {text}").settings == {each.name: value}


def test_krill_as_it_is(read: Any) -> None:
    config = read(
        """
preprocess_memory_efficient: true
preprocess_chunk_size: 5000
preprocess_save_shard_size: 100MB
preprocess_dedup_cache_dir: ./cache/dedup
sequence_len: 2048
min_length: 32
vocab_size: 32000
hub_tokenizer_id: org/tokenizer
dataset_prepared_path: ./artifacts/data
output_dir: ./artifacts
learning_rate: 1e-3
optimizer: muon
datasets:
  - path: your/large/dataset
    split: train
    text_column: content
  - {path: local.jsonl, text_column: body}
"""
    )
    assert config.inputs == (
        Input("your/large/dataset", split="train", text_field="content"),
        Input("local.jsonl", text_field="body"),
    )
    assert config.out == "./artifacts/data"
    assert config.settings == {
        "dedup_cache": "./cache/dedup",
        "pack": 2048,
        "min_tokens": 32,
        "tokenizer": "org/tokenizer",
    }
    assert config.shard_bytes == 100_000_000
    assert [note.split()[0] for note in config.notes] == [
        *("preprocess_memory_efficient", "preprocess_chunk_size", "vocab_size", "output_dir", "learning_rate"),
        "optimizer",
    ]


def test_one_column_for_all_is_the_setting(read: Any) -> None:
    config = read("datasets:\n- {path: a.jsonl, text_column: body}\n- {path: b.jsonl, text_column: body}\n")
    assert config.settings == {"text_field": "body"}
    assert "text_field" not in read("datasets:\n- {path: a.jsonl, text_column: body}\n- path: b.jsonl\n").settings


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("format: npy", {"output_format": "npy"}),
        ("format: jsonl", {"format": "jsonl"}),
        ("format: jsonl\noutput_format: npy", {"format": "jsonl", "output_format": "npy"}),
        ("input_format: text", {"format": "text"}),
        ("no_normalize: true\nno-filter: true\nno-dedup: true", {"normalize": False, "filter": False, "dedup": "none"}),
        ("no_dedup: false", {}),
        ("preprocess_dedup_cache_dir: null", {"dedup_cache": None}),
        ("datasets: [{path: a, split: null, text_column: }]", {}),
        ("", {}),
        ("# nothing\n", {}),
    ],
)
def test_other_names_of_settings(read: Any, text: str, settings: dict[str, Any]) -> None:
    assert read(text).settings == settings


def test_the_command_line_wins(read: Any) -> None:
    config = read("tokenizer: char\npack: 64\n")
    settings = config.prepare_settings(tokenizer="byte", dedup=None)
    assert (settings.tokenizer, settings.pack, settings.dedup) == ("byte", 64, "doc")


FAULTS = [
    ("a: 1\n", 1, "unknown key 'a': choose from inputs, "),
    ("out: x\n\nsequnce_len: 7\n", 3, "unknown key 'sequnce_len': did you mean sequence_len?"),
    ("sequence_len: big\n", 1, "sequence_len must be a number like 2048, 32k or 10M, not 'big'"),
    ("sequence_len: 1\n", 1, "sequence_len must be at least 2, not 1"),
    ("sequence_len: 0x10\n", 1, "sequence_len must be a number like 2048, 32k or 10M, not '0x10'"),
    ("sequence_len: 0b11\n", 1, "sequence_len must be a number like 2048, 32k or 10M, not '0b11'"),
    ("sequence_len: 1:30\n", 1, "sequence_len must be a number like 2048, 32k or 10M, not '1:30'"),
    ("val_fraction: 0:0.5\n", 1, "val_fraction must be a number like 0.1, not '0:0.5'"),
    ("sequence_len:\n  - 1\n", 2, "sequence_len must be a number like 2048, 32k or 10M, not a list"),
    ("out: a\nout: b\n", 2, "'out' is given twice (the other is in line 1): remove one"),
    ("pack: 8\nsequence_len: 8\n", 2, "'sequence_len' and 'pack' mean the same (the other is in line 1): remove one"),
    ("tokens_per_shard: 8\npreprocess_save_shard_size: 8MB\n", 2, "mean the same (the other is in line 1)"),
    ("dedup: doc\nno_dedup: true\n", 2, "'no_dedup' and 'dedup' mean the same"),
    ("tokens-per-shard: 8\ntokens_per_shard: 8\n", 2, "'tokens_per_shard' is given twice"),
    ("vocab_size: 8\nvocab_size: 8\n", 2, "'vocab_size' is given twice"),
    ("inputs: a\ndatasets: [{path: b}]\n", 2, "'datasets' and 'inputs' mean the same"),
    ("normalize: 3\n", 1, "normalize must be true or false, not 3"),
    ("no_filter: maybe\n", 1, "no_filter must be true or false, not 'maybe'"),
    ("dedup: no\n", 1, "dedup must be one of doc, line, none, not False: put it in quotes if you mean the text"),
    ("dedup: both\n", 1, "dedup must be one of doc, line, none, not 'both'"),
    ("dedup: null\n", 1, "dedup has no value: give one or remove the key"),
    ("val_fraction: 1.5\n", 1, "val_fraction must be at least 0 and below 1, not 1.5"),
    ("val_fraction: some\n", 1, "val_fraction must be a number like 0.1, not 'some'"),
    ("memory: 3 apples\n", 1, "memory is not valid: cannot read '3 apples' as memory"),
    ("memory: [1]\n", 1, "memory must be a size like 512MB, 2GB, 50% or auto, not a list"),
    ("threads: 0\n", 1, "threads must be at least 1, not 0"),
    ("append: 1\n", 1, "append must be true or false, not 1"),
    ("inputs: []\n", 1, "inputs is empty"),
    ("inputs: [a, 3]\n", 1, "inputs must be a string, not 3: put it in quotes if you mean the text"),
    ("out: 2024\n", 1, "out must be a string, not 2024"),
    ("out:\n", 1, "out has no value: give one or remove the key"),
    ("out: ''\n", 1, "out is empty: give a value or remove the key"),
    ("preprocess_save_shard_size:\n", 1, "preprocess_save_shard_size has no value"),
    ("datasets:\n- path:\n", 2, "path has no value"),
    ("preprocess_chunk_size: many\n", 1, "preprocess_chunk_size must be a number"),
    ("preprocess_memory_efficient: 1\n", 1, "preprocess_memory_efficient must be true or false"),
    ("preprocess_save_shard_size: 0\n", 1, "preprocess_save_shard_size must be at least 1"),
    ("datasets: []\n", 1, "datasets is empty"),
    ("datasets:\n- split: train\n", 2, "a dataset without a path"),
    ("datasets:\n- path: a\n  spilt: x\n", 3, "unknown key 'spilt': did you mean split?"),
    ("datasets:\n- path: a\n  path: b\n", 3, "'path' is given twice for this dataset"),
    ("datasets:\n- path: [a]\n", 2, "path must be a string, not a list"),
    ("datasets:\n- [a]\n", 2, "datasets is a list of {path, split, text_column}"),
    ("- a\n- b\n", 1, "the file must be KEY: VALUE lines, not a list or a single value"),
    ("out: !!python/object/apply:os.getcwd []\n", 1, "could not determine a constructor for the tag"),
    ("out: 'a\n", 2, "not valid YAML"),
    ("out: a\n\tpack: 3\n", 2, "not valid YAML"),
    ("<<: {out: a}\n", 1, "merge keys (<<) are not supported"),
    ("[a]: 3\n", 1, "a key must be a single word"),
    ("out: a\n---\nout: b\n", 2, "a second document begins"),
    ("out: *there\n", 1, "not valid YAML"),
    ('tokenizer: byte\nout: "\\ud800"\n', 2, "a lone surrogate"),
    ('tokenizer: byte\nout: "\\0"\n', 2, "a NUL character is not allowed"),
]


def test_numbers_are_those_of_the_command_line(read: Any) -> None:
    settings = read(
        "min_chars: 010\nmax_chars: 0\nmin_tokens: 00\nval_fraction: 00.5\ntokens_per_shard: 1_0\n"
    ).settings
    assert (settings["min_chars"], settings["max_chars"], settings["min_tokens"]) == (10, 0, 0)
    assert (settings["val_fraction"], settings["tokens_per_shard"]) == (0.5, 10)


@pytest.mark.parametrize(("text", "line", "words"), FAULTS)
def test_faults_are_told_with_their_line(read: Any, text: str, line: int, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(text)
    told = str(caught.value)
    assert told.startswith(f"config.yaml, line {line}: ")
    assert words in told
    assert "\n" not in told


def test_files_that_are_no_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"cannot read missing.yaml: No such file"):
        load("missing.yaml")
    Path("binary.yaml").write_bytes(bytes(range(256)))
    with pytest.raises(SettingsError, match=r"binary.yaml"):
        load("binary.yaml")
    Path("large.yaml").write_bytes(b"# long\n" * 200_000)
    with pytest.raises(SettingsError, match=r"is larger than 0\.26\d* MB"):
        load("large.yaml")
    Path("deep.yaml").write_text("out: " + "[" * 100_000)
    with pytest.raises(SettingsError):
        load("deep.yaml")


def test_aliases_cannot_make_a_message_long(read: Any) -> None:
    laughs = "optimizer:\n- &l0 [x]\n" + "".join(f"- &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 30))
    with pytest.raises(SettingsError) as caught:
        read(laughs + "out: *l29\n")
    assert len(str(caught.value)) < 200


def test_yaml_is_loaded_only_with_a_config() -> None:
    code = "import sys, ramlet.preparing.config_file; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_examples() -> None:
    for module in (amounts, declared, kinds):
        assert doctest.testmod(module).failed == 0
