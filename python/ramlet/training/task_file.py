"""Tasks to evaluate a model on: questions with choices, or pairs of sentences; a JSON object per line.

    {"question": "The capital of France is", "choices": ["Paris", "Rome"], "answer": 0}
    {"sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps."}

The fields of published sets are understood as they are (`QUESTIONS`, `CHOICES`, `ANSWERS`). The answer is the text of a
choice, its letter or its index from 0; a pair is a question without text whose first choice is right. A file is read
line by line, each time it is needed, so it may have any size. What is wrong with a line is an error with its number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from ramlet.errors import BrokenInput, SourceError
from ramlet.runtime.plurals import plural
from ramlet.runtime.small_files import open_regular, parse_json

QUESTIONS = ("question", "context", "prompt", "query", "ctx")
CHOICES = ("choices", "endings", "options")
ANSWERS = ("answer", "answerKey", "label", "gold")
GOOD, BAD = "sentence_good", "sentence_bad"
LONGEST_LINE = 1 << 20
"""In bytes; a longer line means another kind of file."""
READ = 1 << 16


@dataclass(frozen=True)
class Item:
    line: int
    """Its number in the file, from 1."""
    context: str
    choices: tuple[str, ...]
    answer: int
    file: str = "the task"


@dataclass(frozen=True)
class TaskFile:
    path: Path
    pairs: bool
    """Of sentences; otherwise questions with choices."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TaskFile:
        """The kind of the first item is that of the file."""
        for number, fields in _objects(Path(path)):
            return cls(Path(path), pairs=_is_pair(Path(path), number, fields))
        raise SourceError(f"{path} has no items: a task has a JSON object on each line")

    def __iter__(self) -> Iterator[Item]:
        for number, fields in _objects(self.path):
            pair = _is_pair(self.path, number, fields)
            if pair != self.pairs:
                kinds = ("a question", "pairs of sentences") if self.pairs else ("a pair of sentences", "questions")
                raise _broken(self.path, number, f"is {kinds[0]}, but the first item is of {kinds[1]}", "use two files")
            yield (_pair if pair else _question)(self.path, number, fields)


def _broken(path: Path, line: int, what: str, remedy: str = "fix it, or remove the line") -> BrokenInput:
    return BrokenInput(f"line {line:,} of {path} {what}: {remedy}")


def _objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Every line that is not blank, with its number."""
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            found = parse_json(line.decode().removeprefix("\ufeff"))
        except (ValueError, RecursionError):
            raise _broken(path, number, "is not valid JSON") from None
        if not isinstance(found, dict):
            raise _broken(path, number, "is not a JSON object")
        yield number, found


def _lines(path: Path) -> Iterator[bytes]:
    """Lines of bounded length; the file is not kept open between them longer than they are wanted."""
    try:
        with open_regular(path, SourceError) as file:
            rest, count = b"", 0
            while piece := file.read(READ):
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
                count += len(lines)
                if len(rest) > LONGEST_LINE:
                    raise _broken(path, count + 1, f"is longer than {LONGEST_LINE >> 20} MiB")
            if rest:
                yield rest
    except OSError as error:
        raise SourceError(f"cannot read the task {path}: {error.strerror}") from None


def _is_pair(path: Path, line: int, fields: Mapping[str, Any]) -> bool:
    if GOOD in fields and BAD in fields:
        return True
    if _first(fields, CHOICES) is None or _first(fields, QUESTIONS) is None:
        raise _broken(
            path,
            line,
            "is neither a question with choices nor a pair of sentences",
            f"it needs question, choices and answer, or {GOOD} and {BAD}",
        )
    return False


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _pair(path: Path, line: int, fields: Mapping[str, Any]) -> Item:
    return Item(line, "", _texts(path, line, [fields[GOOD], fields[BAD]], "sentence"), 0, str(path))


def _question(path: Path, line: int, fields: Mapping[str, Any]) -> Item:
    question, choices = _first(fields, QUESTIONS), _first(fields, CHOICES)
    if not isinstance(question, str):
        raise _broken(path, line, "has a question that is not text")
    listed: dict[str, Any] = choices if isinstance(choices, dict) else {}  # as in ARC
    choices, labels = listed.get("text", choices), listed.get("label")
    if not isinstance(choices, list) or len(choices) < 2:
        raise _broken(path, line, "has fewer than two choices")
    texts = _texts(path, line, choices, "choice")
    return Item(line, question, texts, _answer(path, line, texts, labels, _first(fields, ANSWERS)), str(path))


def _texts(path: Path, line: int, given: list[Any], what: str) -> tuple[str, ...]:
    for number, text in enumerate(given, 1):
        if not isinstance(text, str) or not text:
            raise _broken(path, line, f"has {'an empty' if text == '' else 'no text as its'} {what} ({number})")
    return tuple(given)


def _answer(path: Path, line: int, choices: tuple[str, ...], labels: Any, given: Any) -> int:
    if given is None:
        raise _broken(path, line, "has no answer", "add the index or the letter of the right choice")
    at = -1
    named = [str(label) for label in labels] if isinstance(labels, list) else []
    if not isinstance(given, (bool, dict, list)) and str(given) in named:  # 1 is the label "1", too
        at = named.index(str(given))
    elif isinstance(given, int) and not isinstance(given, bool):
        at = given
    elif isinstance(given, str) and given in choices:
        at = choices.index(given)
    elif isinstance(given, str) and len(given) == 1 and given.upper() in ascii_uppercase:
        at = ascii_uppercase.index(given.upper())
    elif isinstance(given, str) and given.isdecimal() and len(given) < 4:
        at = int(given)
    if not 0 <= at < len(choices):
        last = f"{len(choices) - 1} or A to {ascii_uppercase[min(len(choices), 26) - 1]}"
        raise _broken(
            path,
            line,
            f"has {plural(len(choices), 'choice')}, and the answer {given!r}",
            f"give 0 to {last}, or a text",
        )
    return at
