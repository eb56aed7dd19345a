"""Tokens -> text that can be printed right away: whole characters, and no part of a stop text.

    pieces = TextPieces(tokenizer, stop=["\\n\\n"])
    for token in tokens:
        print(pieces.push(token), end="")
        if pieces.stopped:
            break
    print(pieces.finish(), end="")

A token may end within a character, and the end of the text may turn out to be the start of a stop text: such ends are
held back, a few bytes and at most the length of the longest stop text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ramlet.tokenizer.tokenizer import Tokenizer


class TextPieces:
    def __init__(self, tokenizer: Tokenizer, *, stop: Sequence[str] = (), prompt: Sequence[int] = ()) -> None:
        """Some tokenizers need the last tokens of the prompt to decide whether a space comes next."""
        self._decode = _Joined(tokenizer, prompt) if tokenizer.kind == "hf" else _Bytes(tokenizer)
        self._stop = stop
        self._held = ""
        self.stopped = False
        """A stop text was found: everything from there on is dropped."""

    def push(self, token: int) -> str:
        """The text that can be printed after this token."""
        return self._certain(self._decode.push(token))

    def finish(self) -> str:
        """The text held back so far; an incomplete character becomes U+FFFD."""
        text = self._certain(self._decode.finish()) + self._held
        self._held = ""
        return text

    def _certain(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        sure = len(text) - self._partial_stop(text)
        self._held = text[sure:]
        return text[:sure]

    def _partial_stop(self, text: str) -> int:
        """The number of characters at the end of the text that may be the start of a stop text."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for count in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stop):
                return count
        return 0


class _Bytes:
    """Tokens that are bytes: their concatenation is the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._tokenizer.decode_bytes([token]))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Joined:
    """Tokens whose text depends on the one before (a leading space): each is decoded after the last ones."""

    CONTEXT = 8
    LONGEST = 32
    """A character has fewer tokens than this: what is not valid UTF-8 by then never will be."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._shown = list(prompt[-self.CONTEXT :])
        self._new: list[int] = []

    def push(self, token: int) -> str:
        self._new.append(token)
        text = self._text()
        if text.endswith("\ufffd") and len(self._new) < self.LONGEST:
            return ""
        self._shown = (self._shown + self._new)[-self.CONTEXT :]
        self._new = []
        return text

    def finish(self) -> str:
        return self._text() if self._new else ""

    def _text(self) -> str:
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode(self._shown + self._new)[len(before) :]
