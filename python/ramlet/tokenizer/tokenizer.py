"""`ramlet.Tokenizer`: train, load, save, encode, decode.

    tokenizer = Tokenizer.train(["corpus/"], vocab_size=32_000, special_tokens=["<|endoftext|>"], memory="2GB")
    tokenizer.save("tokenizer.json")
    ids = tokenizer.encode("Once upon a time")
    assert tokenizer.decode(ids) == "Once upon a time"

Text that looks like a special token is plain text, unless the call allows it:

    tokenizer.encode("<|endoftext|>")                               # several ordinary tokens
    tokenizer.encode("<|endoftext|>", allowed_special="all")        # one id

The native core encodes byte-level BPE of any origin, bytes and characters; HF's library encodes the other families.
It takes a word cache of 40 MB (set it with `memory=`) and what a call returns, and no more, however much is encoded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramlet.errors import SettingsError, TokenizerError
from ramlet.runtime.budget import Budget
from ramlet.runtime.digest import digest
from ramlet.runtime.meter import Meter
from ramlet.runtime.threads import available_threads, check_threads
from ramlet.tokenizer.engines import Engine, HfEngine, NativeEngine, Stream
from ramlet.tokenizer.model import TokenizerModel, check_ids, check_names, merges_by_id, place_token

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Unpack

    from ramlet.settings.typed import TokenizerSettings
    from ramlet.tokenizer.engines import Arrays

CACHE_BYTES = 40 << 20
"""The word cache shared by all threads: with batches of 8 MB the whole process stays under 200 MB."""

_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|im_end|>")


class Tokenizer:
    """Text -> ids and back. Create one with `train`, `load` or `from_merges`.

    tokenizer = ramlet.Tokenizer.load("gpt2")
    tokenizer.encode("Hello, world")        # [15496, 11, 995]
    tokenizer.decode([15496, 11, 995])
    """

    def __init__(self, model: TokenizerModel | HfEngine, *, memory: Budget | str | int | None = None) -> None:
        """For use inside this package; users call `train`, `load` or `from_merges`."""
        self._model = model
        self._cache_bytes = CACHE_BYTES if memory is None else Budget.parse(memory).total
        self.statistics: dict[str, Any] = {}
        """After training: settings, what was read, seconds and memory by stage."""

    @classmethod
    def train(
        cls,
        inputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
        *,
        texts: Iterable[str] | None = None,
        memory: Budget | str | int | None = "auto",
        threads: int | None = None,
        work_dir: str | os.PathLike[str] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
        processes: int | None = None,
        **settings: Unpack[TokenizerSettings],
    ) -> Tokenizer:
        """Trains a tokenizer on files or on texts, within `memory`.

        `inputs` is a path, a folder, a glob or a list of these; an iterator, or anything given as `texts`, yields
        documents. The settings are the options of `ramlet tokenizer train`, with underscores: vocab_size, kind,
        special_tokens ... `progress` is called with the stage, what is done and the total. With `work_dir`, an
        interrupted training on files resumes from the counts it left there. `processes` is another name for `threads`,
        as in other trainers.
        """
        from tempfile import TemporaryDirectory

        from ramlet.settings.names import given_to
        from ramlet.tokenizer.settings import TrainSettings
        from ramlet.tokenizer.train import Corpus, learn

        if processes is not None and threads not in (None, processes):
            raise SettingsError(f"threads ({threads}) and processes ({processes}) mean the same: give only one")
        threads = threads if processes is None else processes
        if inputs is not None and texts is None and not isinstance(inputs, (str, os.PathLike, list, tuple, set)):
            inputs, texts = None, inputs
        chosen = TrainSettings(**given_to(cls.train, settings, TrainSettings))
        corpus = Corpus(chosen, inputs=inputs, texts=texts)
        with TemporaryDirectory(prefix="ramlet-") as folder, Meter(Budget.parse(memory)) as meter:
            model, statistics = learn(
                corpus, chosen, meter=meter, work_dir=Path(work_dir or folder), threads=threads, progress=progress
            )
        tokenizer = cls(model)
        tokenizer.statistics = statistics
        return tokenizer

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | Any,
        *,
        pattern: str | None = None,
        special_tokens: Mapping[str, int] | Iterable[str] = (),
        memory: Budget | str | int | None = None,
    ) -> Tokenizer:
        """Loads a file, a folder or a name, or takes a tokenizer of ramlet, HF tokenizers or transformers.

        Known names are `gpt2` and `byte`. A file is a tokenizer.json or a `.tiktoken`; a folder contains one of them,
        or vocab.json and merges.txt. Any other name is looked up on the hub. `pattern` and `special_tokens` are for
        files that do not have them; `.tiktoken` needs a pattern.
        """
        from ramlet.tokenizer.files.load import load, load_object

        if isinstance(source, Tokenizer):
            return cls(source._model, memory=memory)
        if not isinstance(source, (str, os.PathLike)):
            return cls(load_object(source, pattern, special_tokens), memory=memory)
        return cls(load(source, pattern, special_tokens), memory=memory)

    @classmethod
    def from_merges(
        cls,
        vocab: Mapping[int, bytes],
        merges: Iterable[tuple[bytes, bytes]],
        special_tokens: Iterable[str] | None = None,
        *,
        pattern: str = "gpt2",
        memory: Budget | str | int | None = None,
    ) -> Tokenizer:
        """A tokenizer from its tokens by id and its merges in order.

        A special token that is not in the vocabulary gets the next id:

        >>> vocab = {**{byte: bytes([byte]) for byte in range(256)}, 256: b"th", 257: b"the"}
        >>> tokenizer = Tokenizer.from_merges(vocab, [(b"t", b"h"), (b"th", b"e")], ["<|endoftext|>"])
        >>> tokenizer.encode("the<|endoftext|>", allowed_special="all")
        [257, 258]
        """
        ids: dict[bytes, int] = {}
        check_ids(vocab, "a token")
        for number, token in vocab.items():
            if ids.setdefault(bytes(token), number) != number:
                raise TokenizerError(f"the token {token!r} has two ids, {ids[bytes(token)]} and {number}")
        specials: dict[str, int] = {}
        next_id = max(vocab, default=-1) + 1
        names = list(special_tokens or ())
        for name in names:
            known = ids.get(name.encode(errors="surrogatepass"))
            specials[name] = next_id if known is None else known
            next_id += known is None
        tokens: list[bytes | None] = []
        special_ids = set(specials.values())
        for number, token in vocab.items():
            if number not in special_ids:
                place_token(tokens, number, token)
        check_names(names, tokens)
        return cls(TokenizerModel(tokens, merges_by_id(merges, ids), pattern, specials), memory=memory)

    def save(self, path: str | os.PathLike[str], *, format: str | None = None) -> None:  # noqa: A002
        """Writes the tokenizer, atomically.

        `json` is a tokenizer.json (`path` may be a folder for it), `tiktoken` a `.tiktoken` file, `vocab` a folder with
        vocab.json and merges.txt. Without a format, the suffix of the path decides. What a format cannot represent is
        an error; `.tiktoken` and `vocab` do not keep the pattern, nor `.tiktoken` the special tokens.
        """
        from ramlet.tokenizer.files import save

        save.save(self._model, Path(path), format)

    def encode(self, text: str, allowed_special: Collection[str] | str = ()) -> list[int]:
        """The ids of a text. `allowed_special` lists the special tokens to recognize in it, or is "all"."""
        return self.engine.encode(text, self._allowed(allowed_special))

    def encode_batch(
        self,
        documents: Iterable[str | bytes],
        threads: int | None = None,
        allowed_special: Collection[str] | str = (),
        dtype: npt.DTypeLike | None = None,
    ) -> Arrays:
        """The ids of all documents in one array, and a second array with where each document ends in it.

        A document is a str, or UTF-8 as bytes, which saves a copy if the text is not ASCII. Ids are uint16 if the
        vocabulary fits, else uint32, unless `dtype` is given.
        """
        if isinstance(documents, (str, bytes)):
            raise SettingsError("encode_batch takes a list of documents: put the document into a list, or use encode")
        texts = documents if isinstance(documents, (list, tuple)) else list(documents)
        wide = False
        if dtype is not None:
            import numpy as np

            wanted = np.dtype(dtype)
            if wanted not in (np.uint16, np.uint32):
                raise SettingsError(f"dtype must be uint16 or uint32, not {wanted}")
            wide = bool(wanted == np.uint32)
            if not wide and self.vocab_size > 1 << 16:
                raise SettingsError(f"the ids of {self.vocab_size:,} tokens do not fit uint16: use uint32")
        check_threads(threads)
        return self.engine.encode_batch(texts, self._allowed(allowed_special), threads or available_threads(), wide)

    def encode_iterable(self, texts: Iterable[str], allowed_special: Collection[str] | str = ()) -> Iterator[int]:
        """The ids of one text that comes in parts, lazily: the same ids as of the joined text.

        Only what the next part could change is kept back. (A single piece of over 2 MB, such as letters without a
        space, is split; the families of HF's library need the whole text in memory.)
        """
        stream = self.stream(allowed_special)
        for text in texts:
            # Long parts are split, so that the list of their ids stays small.
            for start in range(0, len(text), 1 << 16):
                yield from stream.push(text[start : start + (1 << 16)])
        yield from stream.finish()

    def stream(self, allowed_special: Collection[str] | str = ()) -> Stream:
        """Encodes one text in parts: `push` returns the ids that are certain, `finish` the rest, and starts over."""
        return self.engine.stream(self._allowed(allowed_special))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the tokens, one after another."""
        numbers: list[int] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        if isinstance(self._model, HfEngine):
            return self._model.decode(numbers).encode()
        tokens = self._token_bytes
        try:
            if numbers and min(numbers) < 0:
                raise IndexError
            return b"".join([tokens[number] for number in numbers])  # type: ignore[misc]
        except (IndexError, TypeError):
            wrong = next(
                (number for number in numbers if not 0 <= number < len(tokens) or tokens[number] is None), None
            )
            raise TokenizerError(f"no token has the id {wrong}: ids go from 0 to {len(tokens) - 1}") from None

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """The text of the tokens. Invalid UTF-8, such as part of a character, becomes U+FFFD; `errors` is that of
        `bytes.decode`."""
        return self.decode_bytes(ids).decode("utf-8", errors)

    @property
    def vocabulary(self) -> dict[int, bytes]:
        """The bytes of every token by id, including special tokens."""
        if isinstance(self._model, HfEngine):
            return self._model.vocabulary()
        return {number: token for number, token in enumerate(self._token_bytes) if token is not None}

    @property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """The merges, in order."""
        if isinstance(self._model, HfEngine):
            raise TokenizerError("this tokenizer has no merges of bytes: it is not a byte-level BPE")
        tokens = self._token_bytes
        return [(tokens[left] or b"", tokens[right] or b"") for left, right, _ in self._model.ranked_merges[0]]

    @property
    def vocab_size(self) -> int:
        """One more than the largest id: the number of rows of an embedding."""
        return self._model.size

    @property
    def special_tokens(self) -> dict[str, int]:
        """The special tokens with their ids."""
        return dict(sorted(self._model.specials.items(), key=lambda item: item[1]))

    @property
    def end_of_text(self) -> int | None:
        """The id of the special token that ends a document, recognized by its name; None if there is none."""
        return next((self._model.specials[name] for name in _END_OF_TEXT if name in self._model.specials), None)

    @property
    def pattern(self) -> str | None:
        """The name or the regex of the pattern that splits text into pieces; None if there is none."""
        model = self._model
        return None if isinstance(model, HfEngine) or model.characters else model.pattern

    @property
    def kind(self) -> str:
        """`bpe`, `byte`, `char`, or `hf` for the families that HF's library runs."""
        return "hf" if isinstance(self._model, HfEngine) else self._model.kind

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what decides the ids; the same in every file format."""
        if isinstance(self._model, HfEngine):
            import json

            canonical = json.dumps(json.loads(self._model.text), sort_keys=True)
            return digest(iter([b"ramlet hf tokenizer 1", canonical.encode()]))
        return self._model.fingerprint

    def limit_cache(self, cache_bytes: int) -> None:
        """Sets the size of the word cache; an engine that has one already is made again when it is next used."""
        self._cache_bytes = cache_bytes
        if not isinstance(self._model, HfEngine):
            self.__dict__.pop("engine", None)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: without the engine, which is created again on demand, with its own cache."""
        return {name: value for name, value in self.__dict__.items() if name != "engine"}

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        specials = f", {len(self._model.specials)} special" if self._model.specials else ""
        return f"<ramlet.Tokenizer: {self.kind}, {self.vocab_size:,} tokens{specials}>"

    @cached_property
    def engine(self) -> Engine:
        """What encodes; for use inside this package."""
        if isinstance(self._model, HfEngine):
            return self._model
        return NativeEngine(self._model, self._cache_bytes)

    @cached_property
    def _token_bytes(self) -> list[bytes | None]:
        assert isinstance(self._model, TokenizerModel)
        return self._model.token_bytes()

    def _allowed(self, allowed: Collection[str] | str) -> list[tuple[str, int]]:
        if not allowed:
            return []
        specials = self._model.specials
        if isinstance(allowed, str):
            allowed = specials if allowed == "all" else [allowed]
        for name in allowed:
            if name not in specials:
                known = ", ".join(specials) or "none"
                raise TokenizerError(f"{name!r} is not a special token of this tokenizer (it has {known})")
        return [(name, specials[name]) for name in allowed]
