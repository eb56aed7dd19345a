"""tokenizer.json in the shapes that published files have, those that HF's library runs, and broken ones."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from published_shapes import (
    DOCUMENTS,
    END,
    LLAMA3,
    O200K,
    QWEN2,
    TEXTS,
    added,
    assert_same_as_hf,
    document_of,
    split,
    stored,
)
from ramlet import Tokenizer, TokenizerError


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer.train(texts=DOCUMENTS, vocab_size=900, special_tokens=[END])


class TestPublishedShapes:
    """Files as the models of the field have them, with a small vocabulary; all of them take the native way."""

    def test_gpt2(self, small: Tokenizer, tmp_path: Path) -> None:
        document = document_of(small, tmp_path)
        document["model"]["vocab"][END] = 899
        document["model"]["merges"] = [line.split(" ") for line in document["model"]["merges"]]
        document["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
        document["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        loaded = assert_same_as_hf(stored(document, tmp_path))
        assert (loaded.kind, loaded.pattern, loaded.fingerprint) == ("bpe", "gpt2", small.fingerprint)

    def test_llama3(self, tmp_path: Path) -> None:
        trained = Tokenizer.train(texts=DOCUMENTS, vocab_size=1000, pattern="llama3")
        document = document_of(trained, tmp_path)
        vocab = document["model"]["vocab"]
        # A token that no merge makes: with ignore_merges it is still found as a whole piece.
        vocab["zyxwvu"] = 1000
        document["model"]["ignore_merges"] = True
        document["pre_tokenizer"] = split(LLAMA3)
        document["added_tokens"] = [added(1001 + at, f"<|reserved_{at}|>") for at in range(5)]
        begin = {"SpecialToken": {"id": "<|reserved_0|>", "type_id": 0}}
        document["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|reserved_0|>": {"id": "<|reserved_0|>", "ids": [1001], "tokens": ["<|reserved_0|>"]}},
        }
        loaded = assert_same_as_hf(stored(document, tmp_path), [*TEXTS, "zyxwvu zyxwvut", "a<|reserved_3|>b"])
        assert (loaded.kind, loaded.pattern, loaded.encode("zyxwvu")) == ("bpe", "llama3", [1000])
        loaded.save(tmp_path / "again")
        again = json.loads((tmp_path / "again" / "tokenizer.json").read_text())
        assert again == document

    def test_qwen2(self, tmp_path: Path) -> None:
        trained = Tokenizer.train(texts=DOCUMENTS, vocab_size=1000, pattern="qwen2")
        document = document_of(trained, tmp_path)
        document["normalizer"] = {"type": "NFC"}
        document["pre_tokenizer"] = split(QWEN2)
        document["added_tokens"] = [added(1000, END), added(1001, "<|im_start|>"), added(1002, "<tool>", special=False)]
        loaded = assert_same_as_hf(stored(document, tmp_path), [*TEXTS, "x<tool>y <|im_start|>e\u0301<tool>"])
        assert (loaded.kind, loaded.pattern) == ("bpe", "qwen2")
        assert loaded.encode("<tool>") == [1002]
        assert list(loaded.special_tokens) == [END, "<|im_start|>"]
        assert loaded.decode(loaded.encode("cafe\u0301 ")) == "café "

    def test_o200k_with_gaps_in_the_ids(self, tmp_path: Path) -> None:
        trained = Tokenizer.train(texts=DOCUMENTS, vocab_size=1000, pattern="o200k")
        document = document_of(trained, tmp_path)
        document["pre_tokenizer"] = split(O200K, behavior="Removed", invert=True)
        document["model"]["vocab"] |= {END: 1010, "<|endofprompt|>": 1020}
        document["added_tokens"] = [added(1010, END), added(1020, "<|endofprompt|>")]
        loaded = assert_same_as_hf(stored(document, tmp_path))
        assert (loaded.pattern, loaded.vocab_size) == ("o200k", 1021)
        with pytest.raises(TokenizerError, match="no token has the id 1005"):
            loaded.decode([1005])

    def test_another_regex(self, tmp_path: Path) -> None:
        regex = r"\p{N}| ?\p{L}{1,5}|\s+"
        trained = Tokenizer.train(texts=DOCUMENTS, vocab_size=700, pattern=regex)
        trained.save(tmp_path)
        loaded = assert_same_as_hf(tmp_path / "tokenizer.json")
        assert loaded.pattern == regex
        assert loaded.fingerprint == trained.fingerprint

    def test_unseen_bytes_in_a_vocabulary_of_hf(self, tmp_path: Path) -> None:
        hf = tokenizers.Tokenizer(models.BPE())
        hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        hf.decoder = decoders.ByteLevel()
        hf.train_from_iterator(["hello world " * 9], trainers.BpeTrainer(vocab_size=50, show_progress=False))
        hf.save(str(tmp_path / "tokenizer.json"))
        loaded = assert_same_as_hf(tmp_path / "tokenizer.json", ["hello", " world hello"])
        with pytest.raises(TokenizerError, match="no token for byte 0x7A"):
            loaded.encode("zoo")

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(st.sampled_from(["<a>", "<ab>", "x<a>", "<", "a", ">", "<<a>>", "b ", " ", "é"]), max_size=20).map(
            "".join
        )
    )
    def test_special_and_added_tokens_that_overlap(self, text: str) -> None:
        path, loaded = _overlapping()
        hf = tokenizers.Tokenizer.from_file(str(path))
        assert loaded.encode(text, "all") == hf.encode(text, add_special_tokens=False).ids
        hf.encode_special_tokens = True
        assert loaded.encode(text) == hf.encode(text, add_special_tokens=False).ids


_OVERLAPPING: list[Any] = []


def _overlapping() -> tuple[Path, Tokenizer]:
    if not _OVERLAPPING:
        folder = Path(tempfile.mkdtemp())
        document = document_of(Tokenizer.train(texts=DOCUMENTS, vocab_size=300), folder)
        document["added_tokens"] = [
            added(300, "<a>"), added(301, "<ab>"), added(302, "x<a>", special=False), added(303, "a>", special=False),
        ]  # fmt: skip
        path = stored(document, folder)
        _OVERLAPPING.extend([path, Tokenizer.load(path)])
    return _OVERLAPPING[0], _OVERLAPPING[1]


class TestHfFamilies:
    """What the native core does not do goes through HF's library."""

    @pytest.fixture
    def hf(self) -> tokenizers.Tokenizer:
        hf = tokenizers.Tokenizer(models.Unigram())
        hf.normalizer = normalizers.NFKC()
        hf.pre_tokenizer = pre_tokenizers.Metaspace()
        hf.decoder = decoders.Metaspace()
        hf.train_from_iterator(
            DOCUMENTS,
            trainers.UnigramTrainer(
                vocab_size=1000, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
            ),
        )
        return hf

    def test_unigram(self, hf: tokenizers.Tokenizer, tmp_path: Path) -> None:
        hf.enable_truncation(5)
        hf.enable_padding(length=30)
        hf.save(str(tmp_path / "tokenizer.json"))
        hf.no_truncation()
        hf.no_padding()
        loaded = Tokenizer.load(tmp_path)
        assert (loaded.kind, loaded.vocab_size, loaded.end_of_text) == ("hf", hf.get_vocab_size(), 1)
        texts = ["The quick brown fox jumps over", "", "a</s>b", *DOCUMENTS[:50]]
        hf.encode_special_tokens = True
        expected = [hf.encode(text, add_special_tokens=False).ids for text in texts]
        assert [loaded.encode(text) for text in texts] == expected
        ids, ends = loaded.encode_batch(texts)
        assert ids.tolist() == [number for one in expected for number in one]
        assert ends.tolist()[:2] == [len(expected[0]), len(expected[0])]
        assert loaded.encode("a</s>b", "all").count(1) == 1
        assert loaded.encode("a</s>b", {"</s>"}).count(1) == 1
        assert list(loaded.encode_iterable(["The qui", "ck fox"])) == loaded.encode("The quick fox")
        assert loaded.decode(loaded.encode("The quick fox")) == "The quick fox"
        assert loaded.vocabulary[1] == b"</s>"
        with pytest.raises(TokenizerError, match="lone surrogate"):
            loaded.encode("\ud800")
        with pytest.raises(TokenizerError, match="no merges of bytes"):
            _ = loaded.merges
        loaded.save(tmp_path / "again.json")
        assert Tokenizer.load(tmp_path / "again.json").fingerprint == loaded.fingerprint
        with pytest.raises(TokenizerError, match=r"only tokenizer\.json can represent"):
            loaded.save(tmp_path / "x.tiktoken")

    @pytest.mark.parametrize(
        "change",
        [
            lambda document: document["model"].update(dropout=0.5),
            lambda document: document["model"].update(byte_fallback=True),
            lambda document: document["pre_tokenizer"].update(add_prefix_space=True),
            lambda document: document.update(normalizer={"type": "Lowercase"}),
            lambda document: document["added_tokens"][0].update(lstrip=True),
            lambda document: document["added_tokens"][0].update(rstrip=True, special=False),
            lambda document: document["added_tokens"][0].update(single_word=True),
            lambda document: document.update(
                normalizer={"type": "NFC"}, added_tokens=[{**document["added_tokens"][0], "normalized": True}]
            ),
            lambda document: document.update(
                pre_tokenizer={
                    "type": "Sequence",
                    "pretokenizers": [{"type": "Digits", "individual_digits": True}, document["pre_tokenizer"]],
                }
            ),
        ],
    )
    def test_byte_level_ones_with_something_more(
        self, small: Tokenizer, tmp_path: Path, change: Callable[[dict[str, Any]], None]
    ) -> None:
        document = document_of(small, tmp_path)
        change(document)
        path = stored(document, tmp_path)
        loaded = Tokenizer.load(path)
        assert loaded.kind == "hf"
        if not document["model"]["dropout"]:
            hf = tokenizers.Tokenizer.from_file(str(path))
            for text in (" 12 A b<|endoftext|> c", "Hello World"):
                assert loaded.encode(text, "all") == hf.encode(text, add_special_tokens=False).ids

    def test_without_the_library_it_says_so(
        self, hf: tokenizers.Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hf.save(str(tmp_path / "tokenizer.json"))
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(
            TokenizerError, match=r"needs HF's library, because its model is Unigram, not BPE: pip install"
        ):
            Tokenizer.load(tmp_path)


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Puts the last of `path` where the others lead."""

    def change(document: dict[str, Any]) -> None:
        *way, key, value = path
        for step in way:
            document = document[step]
        document[key] = value

    return change


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (_set("model", None), 'it has no "model"'),
            (_set("model", "vocab", []), "its vocabulary is a list"),
            (_set("model", "vocab", "!", "zero"), "the id of the token '!' is 'zero'"),
            (_set("model", "vocab", "!", -1), "the id of the token '!' is -1"),
            (_set("model", "vocab", "!", 1 << 40), "not a whole number below"),
            (_set("model", "vocab", "!", True), "is True, not a whole number"),
            (_set("model", "vocab", "!", 5), "have the same id 5"),
            (_set("model", "merges", {}), "its merges are a dict"),
            (_set("model", "merges", 0, "a b c"), "merge 1 is 'a b c', not a pair"),
            (_set("model", "merges", 0, 7), "merge 1 is 7, not a pair"),
            (_set("model", "merges", 0, ["a", 7]), "not a pair of tokens"),
            (_set("model", "merges", 0, "a ☃"), "merge 1, 'a' + '☃', needs '☃', which is not in the vocabulary"),
            (_set("model", "merges", 0, "Ł Ł"), "needs 'ŁŁ', which is not in the vocabulary"),
            (_set("added_tokens", 0, "id", 5), "has the id 5 of an ordinary token"),
            (_set("added_tokens", 0, "id", "x"), "has no valid id"),
            (_set("added_tokens", [{"id": 900}]), "wrong type"),
            (_set("added_tokens", [added(900, "<a>"), added(900, "<b>")]), "have the same id 900"),
            (_set("added_tokens", [added(900, "!")]), "has the id 900, but 0 in the vocabulary"),
            (_set("pre_tokenizer", []), "wrong type"),
            (_set("pre_tokenizer", split("(")), "is not a usable regex"),
        ],
    )
    def test_a_json_with_something_wrong(
        self, small: Tokenizer, tmp_path: Path, change: Callable[[dict[str, Any]], None], sentence: str
    ) -> None:
        document = document_of(small, tmp_path)
        change(document)
        path = stored(document, tmp_path)
        with pytest.raises(TokenizerError) as raised:
            Tokenizer.load(path).encode("a")
        assert sentence in str(raised.value)
        assert "\n" not in str(raised.value)

    @settings(max_examples=60, deadline=None)
    @given(st.floats(0, 0.999))
    def test_a_truncated_json(self, small: Tokenizer, tmp_path_factory: pytest.TempPathFactory, part: float) -> None:
        folder = tmp_path_factory.getbasetemp() / "truncated"
        folder.mkdir(exist_ok=True)
        if not (folder / "whole.json").exists():
            small.save(folder / "whole.json")
        whole = (folder / "whole.json").read_bytes().rstrip()
        (folder / "tokenizer.json").write_bytes(whole[: int(part * len(whole))])
        with pytest.raises(TokenizerError, match=r"is damaged: it is not JSON|is damaged: it is not UTF-8"):
            Tokenizer.load(folder)

    def test_other_files(self, tmp_path: Path) -> None:
        path = tmp_path / "tokenizer.json"
        for raw, sentence in (
            (b"\xff\xfe\x00", "it is not UTF-8"),
            (b"[1, 2]", 'it has no "model"'),
            (b"[" * 100_000, "it is not JSON"),
            (b"null", 'it has no "model"'),
        ):
            path.write_bytes(raw)
            with pytest.raises(TokenizerError, match=sentence):
                Tokenizer.load(path)


def test_added_tokens_made_by_hf_itself(small: Tokenizer, tmp_path: Path) -> None:
    small.save(tmp_path / "a.json")
    hf = tokenizers.Tokenizer.from_file(str(tmp_path / "a.json"))
    hf.add_tokens(["newword", AddedToken("plain", normalized=True)])
    hf.add_special_tokens(["<|new|>"])
    hf.save(str(tmp_path / "b.json"))
    loaded = assert_same_as_hf(tmp_path / "b.json", ["a newword b plain <|new|> newwordplain"])
    assert loaded.vocab_size == 903


def test_a_text_that_hf_cannot_encode_is_told_in_a_sentence(tmp_path: Path) -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode("a b") == [0, 1]
    sentence = "^HF's library cannot encode a text with this tokenizer: WordLevel error: Missing "
    for call in (lambda: loaded.encode("a c"), lambda: loaded.encode_batch(["a", "c"]), lambda: loaded.stream()):
        with pytest.raises(TokenizerError, match=sentence):
            stream: Any = call()
            stream.push("c")
            stream.finish()


def test_a_panic_of_hf_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):  # as pyo3 calls it
        pass

    def fail(*_: object, **__: object) -> None:
        raise PanicException("AddedVocabulary bad split")

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    words.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    monkeypatch.setattr(loaded.engine, "_plain", type("Broken", (), {"encode": fail, "decode": fail})())
    with pytest.raises(TokenizerError, match=r"^HF's library cannot encode a text .*: AddedVocabulary bad split$"):
        loaded.encode("a")
    with pytest.raises(TokenizerError, match=r"^HF's library cannot decode these ids .*: AddedVocabulary bad split$"):
        loaded.decode([0])
