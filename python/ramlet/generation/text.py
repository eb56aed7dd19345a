"""Tokens as they come -> text as it can be shown: whole characters, and nothing of a stop text.

    pieces = TextPieces(tokenizer, stop=["\\n\\n"])
    for token in tokens:
        print(pieces.push(token), end="")
        if pieces.stopped:
            break
    print(pieces.finish(), end="")

A token may end within a character, and text may yet turn out to be the beginning of a stop: such ends are held back,
a few bytes and at most the length of the longest stop.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ramlet.tokenizer.tokenizer import Tokenizer

__all__ = ["TextPieces"]


class TextPieces:
    def __init__(self, tokenizer: Tokenizer, *, stop: Sequence[str] = (), prompt: Sequence[int] = ()) -> None:
        """The last tokens of the prompt tell tokenizers of some families whether a space comes next."""
        self._decode = _Joined(tokenizer, prompt) if tokenizer.kind == "hf" else _Bytes(tokenizer)
        self._stop = stop
        self._held = ""
        self.stopped = False
        """A stop text was met: what comes after it is dropped."""

    def push(self, token: int) -> str:
        """What the token makes certain."""
        return self._certain(self._decode.push(token))

    def finish(self) -> str:
        """What was held back, at the end of the tokens; a character that was never completed is U+FFFD."""
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
        sure = len(text) - self._beginning_of_a_stop(text)
        self._held = text[sure:]
        return text[:sure]

    def _beginning_of_a_stop(self, text: str) -> int:
        """How many characters at the end of the text begin a stop; the most, of all that there are."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for count in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stop):
                return count
        return 0


class _Bytes:
    """Tokens that are bytes: one after another they are the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._tokenizer.decode_bytes([token]))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Joined:
    """Tokens whose text depends on the one before (a leading space): each is decoded behind those shown last."""

    CONTEXT = 8
    LONGEST = 32
    """A character takes fewer tokens than this: what is not UTF-8 by then will not become it."""

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
