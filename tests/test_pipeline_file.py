"""pipeline.yaml: the options of the commands, krill's words, and every mistake told with its line."""

from __future__ import annotations

import doctest
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ramlet import cli
from ramlet.errors import RamletError, SettingsError
from ramlet.inputs.staging import Input
from ramlet.pipeline import file, krill_config, places, proposal, stages
from ramlet.pipeline.file import Pipeline, Section, load
from ramlet.preparing.settings import PrepareSettings
from ramlet.settings import owners
from ramlet.settings.declared import argv, declared
from ramlet.settings.kinds import Switch
from ramlet.tokenizer.settings import TrainSettings
from ramlet.training.settings import RunSettings

EXAMPLE = """\
memory: 2GB
threads: 2
work: my-model/
text: [corpus/, more.jsonl]
text-field: body
tokenizer: {vocab-size: 8k, special_tokens: ["<|endoftext|>"], type: bpe}
data: {dedup: line, val_fraction: 0.01, no_filter: true}
model: {params: 10M, seq_len: 256, untied: true}
training: {batch_size: 32, max_iters: 2000, eval: {general: other-dataset/}, lr: 1e-3}
report: false
"""


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def read_text(text: str, name: str = "pipeline.yaml") -> Pipeline:
        Path(name).write_text(text, encoding="utf-8")
        return load(name)

    return read_text


def section(found: Section | None) -> Section:
    assert found is not None
    return found


def test_the_example(read: Any) -> None:
    found = read(EXAMPLE)
    assert (found.memory, found.threads, found.work, found.report) == ("2GB", 2, "my-model/", False)
    assert found.text == (Input("corpus/"), Input("more.jsonl"))
    assert section(found.learned).settings == TrainSettings(
        vocab_size=8000, special_tokens=("<|endoftext|>",), text_field="body"
    )
    assert section(found.prepared).settings == PrepareSettings(
        dedup="line", val_fraction=0.01, filter=False, text_field="body"
    )
    assert section(found.trained).settings == RunSettings(
        params=10_000_000, seq_len=256, tied=False, batch_size=32, max_steps=2000, lr=0.001
    )
    assert found.evals == {"general": "other-dataset/"}
    assert found.notes == ()


def test_what_is_left_out(read: Any) -> None:
    found = read("text: corpus\n", "book.yaml")
    assert (found.work, found.tokenizer, found.memory, found.threads) == ("book", "gpt2", None, None)
    assert found.learned is None
    assert found.trained is None
    assert section(found.prepared).settings == PrepareSettings()


def test_a_tokenizer_or_a_dataset_that_is_there(read: Any) -> None:
    found = read("text: a\ntokenizer: char\n")
    assert (found.tokenizer, found.learned) == ("char", None)
    found = read("data: [web=0.7, code=0.3]\nmodel: {params: 1M}\n")
    assert (found.datasets, found.prepared) == (("web=0.7", "code=0.3"), None)


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub" / "here").mkdir(parents=True)
    text = "work: w\ntext: [a.txt, here/b, org/name, 's3://b/x', /c]\ntokenizer: t/tok\ndata: {dedup_cache: k}\n"
    text += "model: {init_from: base}\ntraining: {eval: [g=e]}\n"
    (tmp_path / "sub" / "p.yaml").write_text(text)
    found = load("sub/p.yaml")
    assert [each.path for each in found.text] == ["sub/a.txt", "sub/here/b", "org/name", "s3://b/x", "/c"]
    assert (found.work, found.tokenizer, found.evals) == ("sub/w", "t/tok", {"g": "sub/e"})
    (tmp_path / "sub" / "t" / "tok").mkdir(parents=True)
    assert load("sub/p.yaml").tokenizer == "sub/t/tok"
    assert section(found.prepared).settings.dedup_cache == "sub/k"
    assert section(found.trained).settings.init_from == "sub/base"


# -- the same options as the commands


def options_of(*path: str) -> dict[str, Any]:
    """The names of a command's options, without dashes."""
    command: Any = cli._root(path)
    for word in path:
        command = command.commands[word]
    words = [word for each in command.params for word in [*each.opts, *each.secondary_opts] if word.startswith("--")]
    return {word.lstrip("-").replace("-", "_"): None for word in words}


OF_THE_PIPELINE = {"cluster", "memory", "threads", "out", "json", "quiet", "debug", "force", "help"}


@pytest.mark.parametrize(
    ("path", "sections", "elsewhere"),
    [
        (("tokenizer", "train"), ["tokenizer"], {"input", "input_files", "output_prefix", "processes"}),
        (
            ("prepare",),
            ["data"],
            {"append", "stage", "part", "out_dir", "tokenizer", "tokenization", "input", "input_files"},
        ),
        (
            ("train",),
            ["model", "training"],
            {
                *("data", "dataset_dir", "input", "input_file", "stream", "dataset_id", "tokenizer", "model_name"),
                *("text_field", "docs", "resume", "no_resume", "use_streaming", "tokenization"),
            },
        ),
    ],
)
def test_every_option_of_a_command_is_a_key(path: tuple[str, ...], sections: list[str], elsewhere: set[str]) -> None:
    reader = file._Reader("p.yaml")
    keys = {key for name in sections for key in reader.keys[name]}
    assert set(options_of(*path)) - OF_THE_PIPELINE - elsewhere - keys == set()


@pytest.mark.parametrize(
    ("settings", "path"),
    [(TrainSettings, ("tokenizer", "train")), (PrepareSettings, ("prepare",)), (RunSettings, ("train",))],
)
def test_every_setting_is_a_flag_of_its_command(settings: Any, path: tuple[str, ...]) -> None:
    known = options_of(*path)
    for name, each in declared(settings).items():
        for said in [True, False] if isinstance(each.kind, Switch) else ["x"]:
            for word in argv(settings, {name: said}):
                assert word == "x" or word.lstrip("-").replace("-", "_") in known, word


def test_values_that_look_like_flags() -> None:
    assert argv(RunSettings, {"sample_prompt": "--x", "lr": 0.001, "tied": False, "wandb": False}) == [
        *("--sample-prompt=--x", "--lr", "0.001", "--untied")
    ]


# -- mistakes


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("text: a\nmemry: 2GB\n", "line 2: unknown key 'memry': did you mean memory?"),
        ("text: a\nmemory: 2XB\n", "line 2: memory is not valid: cannot read '2XB' as memory"),
        ("text: a\nthreads: 0\n", "line 2: threads must be at least 1, not 0"),
        ("text: a\nthreads: two\n", "line 2: threads must be a number like 2048, 32k or 10M, not 'two'"),
        ("text: a\ntext: b\n", "line 2: 'text' is given twice (the other is in line 1)"),
        ("text: a\ninputs: b\n", "line 2: 'inputs' and 'text' mean the same (the other is in line 1)"),
        ("text: []\n", "line 1: text is empty"),
        ("text: 5\n", "line 1: text must be a string, not 5"),
        ("text: '-'\n", "a pipeline reads its text more than once"),
        ("memory: 2GB\n", "names no text: add `text: [FILE or FOLDER]`"),
        ("", "is empty: `ramlet init TEXT` writes one"),
        ("- a\n", "line 1: the file must be KEY: VALUE lines"),
        ("text: [a\n", "not valid YAML"),
        ("text: a\nwork: !!python/object:os.system x\n", "line 2: could not determine a constructor"),
        ("text: a\nbatch_size: 5\n", "line 2: 'batch_size' belongs under `training`, not the top of the file"),
        ("text: a\nmodel: {batch_size: 5}\n", "line 2: 'batch_size' belongs under `training`, not model"),
        ("text: a\ndata:\n  memory: 2GB\n", "line 3: 'memory' belongs at the top of the file, not under data"),
        ("text: a\ntokenizer:\n  vocab_siz: 5\n", "line 3: unknown key 'vocab_siz': did you mean vocab_size?"),
        ("text: a\ntokenizer: {vocab_size: 5}\n", "line 2: a vocabulary of 5 is too small"),
        (
            "text: a\ntokenizer: {vocab_size: [5]}\n",
            "line 2: vocab_size must be a number like 2048, 32k or 10M, not a list",
        ),
        ("text: a\ntokenizer: {}\n", "line 2: no vocabulary size"),
        ("text: a\ntokenizer: [gpt2]\n", "line 2: tokenizer must be KEY: VALUE lines"),
        ("text: a\ntokenizer: {special_tokens: 5}\n", "line 2: special_tokens must be a string, not 5"),
        ("text: a\ndata: {dedup: maybe}\n", "line 2: dedup must be one of doc, line, none, not 'maybe'"),
        ("text: a\ndata:\n  min_chars: 9\n  max_chars: 3\n", "line 3: min_chars is 9, more than max_chars, 3"),
        ("text: a\ndata: {format: npy}\n", "line 2: a pipeline stores its dataset in shards"),
        ("data: there\n", "line 1: an existing dataset and nothing to do with it"),
        ("text: a\nmodel: {seq_len: 5}\n", "line 2: the size of the model is missing: add `model: {params: 10M}`"),
        (
            "text: a\nmodel:\n  params: 1M\ntraining:\n  schedule: up\n",
            "line 5: schedule must be one of cosine, linear",
        ),
        (
            "text: a\nmodel: {params: 1M}\ntraining: {max_steps: 2, epochs: 3}\n",
            "line 3: max_steps and epochs both say",
        ),
        ("text: a\nmodel: {params: 1M}\ntraining: {optimizer: sgd}\n", "line 3: optimizer must be one of auto, adamw"),
        ("text: a\nmodel: {params: 1M}\ntraining: {eval: {a: 5}}\n", "line 3: eval must be a string, not 5"),
        ("text: a\nmodel: {params: 1M}\ntraining: {eval: [b, c]}\n", "line 3: eval: give each set a name of its own"),
        ("text: a\nreport: maybe\n", "line 2: report must be true or false, not 'maybe'"),
        ("text: a\n? [a, b]\n: c\n", "line 2: a key must be a single word, not a list"),
    ],
)
def test_mistakes_have_their_line(read: Any, text: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(sentence)) as caught:
        read(text)
    assert str(caught.value).startswith("pipeline.yaml")
    assert "\n" not in str(caught.value)


WORDS = [
    *("text", "tokenizer", "data", "model", "training", "memory", "threads", "work", "report", "datasets", "train"),
    *("params", "vocab_size", "max_steps", "eval", "dedup", "config", "sequence_len", "optimizer", "path", "split"),
    *(
        "a",
        "10M",
        "2GB",
        "gpt2",
        "<<",
        "*x",
        "&x",
        "!!int",
        "!tag",
        "0x",
        "1e999",
        "-1",
        "null",
        "yes",
        ".nan",
        "'",
        '"',
    ),
    *("\t", "  ", "\n", ": ", "- ", "[", "]", "{", "}", ",", "|", ">", "#", "%", "@", "\x00", "\ufeff", "é"),
]
broken = st.lists(st.sampled_from(WORDS), max_size=30).map("".join) | st.binary(max_size=60)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=10,
)


@hypothesis_settings(max_examples=300)
@given(broken)
def test_broken_files_never_end_in_a_traceback(text: str | bytes) -> None:
    told(text.encode("utf-8") if isinstance(text, str) else text)


@hypothesis_settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(WORDS), values, max_size=5))
def test_wrong_types_never_end_in_a_traceback(content: dict[str, Any]) -> None:
    import yaml

    told(yaml.safe_dump({"text": "a", **content}).encode())


def told(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.yaml"
        path.write_bytes(content)
        sentence = ""
        try:
            load(path)
        except RamletError as error:
            sentence = str(error)
        assert "\n" not in sentence


# -- krill


FLAT = """\
preprocess_memory_efficient: true
preprocess_chunk_size: 5000
preprocess_save_shard_size: 100MB
preprocess_dedup_cache_dir: ./cache/dedup
sequence_len: 2048
min_length: 32
vocab_size: 32000
hub_tokenizer_id: org/tokenizer
hub_model_id: org/model
dataset_prepared_path: ./artifacts/data
output_dir: ./artifacts
num_epochs: 1
learning_rate: 1e-3
weight_decay: 0.01
optimizer: muon
model_config_name: micro
gradient_accumulation_steps: 2
micro_batch_size: 16
datasets:
  - {path: org/large, split: train, text_column: content}
"""

SECTIONS = """\
datasets:
  - path: org/large
    split: train
    text_column: content
tokenizer:
  hub_id: org/tokenizer
  vocab_size: 32000
preprocess:
  prepared_path: ./artifacts/data
  sequence_len: 2048
  min_length: 32
train:
  arch: llama
  model_config_name: micro
  hub_model_id: org/model
  output_dir: ./artifacts
  num_epochs: 1
  learning_rate: 1e-3
  weight_decay: 0.01
  optimizer: muon
  muon_implementation: moonlight
  micro_batch_size: 16
  gradient_accumulation_steps: 2
  resume: false
"""


@pytest.mark.parametrize("text", [FLAT, SECTIONS])
def test_krill_as_it_is(read: Any, text: str) -> None:
    found = read(text)
    assert found.text == (Input("org/large", split="train", text_field="content"),)
    assert found.work == "./artifacts"
    assert section(found.learned).settings == TrainSettings(
        vocab_size=32_000, special_tokens=("<|endoftext|>",), text_field="content"
    )
    wanted = PrepareSettings(pack=2048, min_tokens=32, text_field="content")
    assert replace(section(found.prepared).settings, dedup_cache=None) == wanted
    assert section(found.trained).settings == RunSettings(
        params=20_000_000,
        epochs=1.0,
        lr=1e-3,
        weight_decay=0.01,
        optimizer="muon",
        batch_size=16,
        gradient_accumulation_steps=2,
    )
    notes = "\n".join(found.notes)
    for sentence in (
        "sequence_len is read as data: pack",
        "micro_batch_size is read as training: batch_size",
        "output_dir is read as work",
        "model_config_name is read as model: {params: 20000000}",
        "hub_model_id has no effect here",
    ):
        assert sentence in notes


def test_krill_of_the_guide_prepares_only(read: Any) -> None:
    found = read("sequence_len: 2048\npreprocess_save_shard_size: 100MB\ndatasets: [{path: your/large/dataset}]\n")
    assert (found.learned, found.trained, found.tokenizer) == (None, None, "gpt2")
    assert stages._tokens_in(found, found.shard_bytes) == 50_000_000
    assert stages._tokens_in(replace(found, tokenizer="org/tok"), found.shard_bytes) == 25_000_000


def test_a_thing_said_in_both_words_is_said_twice(read: Any) -> None:
    with pytest.raises(SettingsError, match=r"line 3: 'pack' and 'sequence_len' mean the same"):
        read("text: a\nsequence_len: 5\ndata: {pack: 6}\n")


@pytest.mark.parametrize("module", [krill_config, owners, places, proposal])
def test_examples_in_the_docs(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
