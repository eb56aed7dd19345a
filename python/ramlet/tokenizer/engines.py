"""What runs a tokenizer: the native core, or HF's `tokenizers` for the families that the core does not support.

Both have the same few methods, on ids and texts and nothing else; `ramlet.Tokenizer` knows which tokens are special
and checks what a user asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ramlet.errors import SettingsError, TokenizerError
from ramlet.tokenizer.model import TokenizerModel, all_pairs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ramlet import _native

    Arrays = tuple[npt.NDArray[np.unsignedinteger[Any]], npt.NDArray[np.uint64]]

Specials = Sequence[tuple[str, int]]
T = TypeVar("T")


class Stream(Protocol):
    """Encodes one text that comes in parts."""

    def push(self, text: str) -> list[int]: ...
    def finish(self) -> list[int]: ...


class Engine(Protocol):
    """Text -> ids; of the special tokens, only the given ones are recognized in the text."""

    MEMORY_PER_BYTE: int
    """Of a text that is encoded as a whole."""

    def encode(self, text: str, specials: Specials) -> list[int]: ...
    def encode_batch(self, texts: Sequence[str | bytes], specials: Specials, threads: int, wide: bool) -> Arrays: ...
    def stream(self, specials: Specials) -> Stream: ...


class NativeEngine:
    """The core's encoder, with a word cache of `cache_bytes` that all threads share."""

    MEMORY_PER_BYTE = 64
    """A token of its own is a number of 40 bytes in a list."""

    def __init__(self, model: TokenizerModel, cache_bytes: int) -> None:
        self.model = model
        self._added = sorted(model.added.items())
        self.encoder = _guarded(lambda: self._encoder(cache_bytes))

    def _encoder(self, cache_bytes: int) -> _native.Encoder:
        from ramlet import _native

        model = self.model
        if model.characters:
            characters = ((token.decode(), number) for number, token in enumerate(model.tokens) if token is not None)
            unknown = model.unknown[1] if model.unknown else None
            return _native.Encoder.characters(characters, unknown, added=self._added, cache_bytes=cache_bytes)
        return _native.Encoder.bpe(
            # One entry per id, special tokens included: the core derives the width of ids from the length.
            [*model.tokens, *[None] * (model.size - len(model.tokens))],
            all_pairs(model.tokens) if model.rank_by_id else model.merges,
            pattern_name=model.pattern,
            ignore_merges=model.ignore_merges,
            rank_by_id=model.rank_by_id,
            nfc=model.nfc,
            added=self._added,
            cache_bytes=cache_bytes,
        )

    def _all(self, specials: Specials) -> Specials:
        # In one search, as in HF's library: where a special and an added token overlap, the first one wins.
        return [*specials, *self._added] if specials else specials

    def encode(self, text: str, specials: Specials) -> list[int]:
        return _guarded(lambda: self.encoder.encode(text, self._all(specials)))

    def encode_batch(self, texts: Sequence[str | bytes], specials: Specials, threads: int, wide: bool) -> Arrays:
        # Without this the core imports numpy for its first array, and panics if Ctrl-C interrupts that.
        import numpy as np  # noqa: F401

        wide = wide or self.model.size > 1 << 16
        return _guarded(lambda: self.encoder.encode_batch(texts, self._all(specials), threads=threads, wide=wide))

    def encode_parts(self, texts: Sequence[str], threads: int) -> Arrays:
        """The ids of texts that `_native.Reader` cut, without special tokens."""
        import numpy as np  # noqa: F401 - as above

        wide = self.model.size > 1 << 16
        return _guarded(lambda: self.encoder.encode_batch(texts, [], threads=threads, wide=wide, parts=True))

    def stream(self, specials: Specials) -> Stream:
        return _GuardedStream(self.encoder.stream(self._all(specials)))


def _guarded(call: Callable[[], T]) -> T:
    """The result of the call; what can be wrong with a text becomes a TokenizerError."""
    try:
        return call()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text has a lone surrogate, U+{ord(error.object[error.start]):04X} at character {error.start}, "
            "which UTF-8 cannot encode: replace it, for example with text.encode('utf-8', 'replace').decode()"
        ) from None
    except SettingsError as error:
        raise TokenizerError(error.sentence) from None  # with its settings marked, for the command line


def _decoded(number: int, text: str | bytes) -> str:
    try:
        return text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"document {number} of the batch is not UTF-8 at byte {error.start}: "
            'decode it with its real encoding, or with errors="replace"'
        ) from None


class _GuardedStream:
    def __init__(self, stream: _native.EncodeStream) -> None:
        self._stream = stream

    def push(self, text: str) -> list[int]:
        return _guarded(lambda: self._stream.push(text))

    def finish(self) -> list[int]:
        return _guarded(self._stream.finish)


_CANNOT_ENCODE = "HF's library cannot encode a text with this tokenizer"


def _explained(what: str, call: Callable[[], T]) -> T:
    """The result of a call of HF's library, which raises bare Exceptions, and whose panics are BaseExceptions."""
    try:
        return call()
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{what}: {error}") from None


class HfEngine:
    """HF's `tokenizers`, in batches of bounded size; special tokens are plain text unless they are allowed."""

    MEMORY_PER_CHARACTER = 500
    """If every character is a word, as punctuation and Chinese ones are to BERT's tokenizers, and digits to others:
    490. Other text takes 100 to 270."""
    MEMORY_PER_BYTE = MEMORY_PER_CHARACTER
    BATCH_CHARACTERS = 1 << 17
    """Of several texts; a longer one is a batch of its own."""

    def __init__(self, path: str, reason: str) -> None:
        try:
            import tokenizers
        except ImportError:
            raise TokenizerError(f"{path} needs HF's library, because {reason}: pip install 'ramlet[hf]'") from None
        plain = _explained(f"{path} cannot be used", lambda: tokenizers.Tokenizer.from_file(path))
        self.__setstate__(plain.to_str())

    def __getstate__(self) -> str:
        return self.text

    def __setstate__(self, text: str) -> None:
        self.text: str = text
        self._plain = self._load()
        self._plain.encode_special_tokens = True
        listed = self._plain.get_added_tokens_decoder()
        self.specials: dict[str, int] = {token.content: number for number, token in listed.items() if token.special}

    def _load(self) -> Any:
        import tokenizers

        loaded = tokenizers.Tokenizer.from_str(self.text)
        # The file may turn on both, which would drop or add ids.
        loaded.no_truncation()
        loaded.no_padding()
        return loaded

    @cached_property
    def _with_specials(self) -> Any:
        """Recognizes all special tokens; `_plain` recognizes none."""
        return self._load()

    @cached_property
    def size(self) -> int:
        """One more than the largest id."""
        return max(self._plain.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def vocabulary(self) -> dict[int, bytes]:
        every = self._plain.get_vocab(with_added_tokens=True)
        return {number: name.encode() for name, number in sorted(every.items(), key=lambda item: item[1])}

    def decode(self, ids: list[int]) -> str:
        decode = self._plain.decode
        what = "HF's library cannot decode these ids with this tokenizer"
        text: str = _explained(what, lambda: decode(ids, skip_special_tokens=False))
        return text

    def encode(self, text: str, specials: Specials) -> list[int]:
        _guarded(text.encode)
        if specials and len(specials) < len(self.specials):
            return self._encode_parts(text, dict(specials))
        tokenizer = self._with_specials if specials else self._plain
        return self._ids(tokenizer, text)

    def _ids(self, tokenizer: Any, text: str) -> list[int]:
        ids: list[int] = _explained(_CANNOT_ENCODE, lambda: tokenizer.encode(text, add_special_tokens=False).ids)
        return ids

    def _encode_parts(self, text: str, specials: dict[str, int]) -> list[int]:
        """If only some special tokens are allowed, the text is split at them here."""
        names = sorted(specials, key=len, reverse=True)
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, names))})", text):
            if part in specials:
                ids.append(specials[part])
            elif part:
                ids.extend(self._ids(self._plain, part))
        return ids

    def encode_batch(self, texts: Sequence[str | bytes], specials: Specials, threads: int, wide: bool) -> Arrays:
        import numpy as np

        dtype = np.dtype(np.uint32 if wide or self.size > 1 << 16 else np.uint16)
        rows: list[Any] = []
        lengths: list[int] = []
        start = 0
        while start < len(texts):
            end, characters = start, 0
            while end < len(texts) and (end == start or characters + len(texts[end]) <= self.BATCH_CHARACTERS):
                characters += len(texts[end])
                end += 1
            decoded = [_decoded(number, texts[number]) for number in range(start, end)]
            for ids in self._encode_some(decoded, specials):
                rows.append(np.asarray(ids, dtype=dtype))
                lengths.append(len(ids))
            start = end
        flat = np.concatenate(rows) if rows else np.empty(0, dtype)
        return flat, np.cumsum(lengths, dtype=np.uint64) if lengths else np.empty(0, np.uint64)

    def _encode_some(self, texts: Sequence[str], specials: Specials) -> list[list[int]]:
        if specials and len(specials) < len(self.specials):
            return [self.encode(text, specials) for text in texts]
        for text in texts:
            _guarded(text.encode)
        tokenizer = self._with_specials if specials else self._plain
        encode = tokenizer.encode_batch_fast
        return [one.ids for one in _explained(_CANNOT_ENCODE, lambda: encode(list(texts), add_special_tokens=False))]

    def stream(self, specials: Specials) -> Stream:
        return _WholeTextStream(self, specials)


class _WholeTextStream:
    """Collects the whole text: in these families its end can change the ids of its beginning."""

    def __init__(self, engine: HfEngine, specials: Specials) -> None:
        self._engine = engine
        self._specials = specials
        self._parts: list[str] = []

    def push(self, text: str) -> list[int]:
        self._parts.append(text)
        return []

    def finish(self) -> list[int]:
        text, self._parts = "".join(self._parts), []
        return self._engine.encode(text, self._specials)
