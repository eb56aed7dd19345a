"""Paths in a pipeline's file, which are relative to it, as the commands need them.

>>> path_at("models/pipeline.yaml", "run"), path_at("pipeline.yaml", "run"), path_at("models/p.yaml", "/data")
('models/run', 'run', '/data')

Hub names and URLs stay as they are, unless something next to the file has that name.

>>> place_of("models/p.yaml", "models/corpus/a.txt"), place_of("models/p.yaml", "/data/a.txt")
('corpus/a.txt', '/data/a.txt')
"""

from __future__ import annotations

import os
from dataclasses import replace

from ramlet.inputs.named import Input, looks_remote
from ramlet.tokenizer.files.hub import looks_like_a_name

TOKENIZERS = ("gpt2", "byte", "char")


def path_at(file: str, path: str) -> str:
    """A path relative to the file, from the current folder."""
    folder = os.path.dirname(file)
    if not folder or os.path.isabs(path):
        return path
    return os.path.normpath(os.path.join(folder, path))


def place_of(file: str, path: str) -> str:
    """A path for the record: below the file's folder it is relative to it, so that everything can be moved together."""
    whole = os.path.abspath(path)
    below = os.path.relpath(whole, os.path.dirname(os.path.abspath(file)))
    return whole if below.split(os.sep)[0] == ".." else below


def input_at(file: str, given: Input) -> Input:
    """`path_at` for text, which may be a hub name or a URL."""
    path = path_at(file, given.path)
    if path == given.path or "://" in given.path or "::" in given.path:
        return given
    local = os.path.join(os.path.dirname(file), given.path.split("/")[0])
    if not os.path.lexists(local) and looks_remote(given.path):
        return given
    return replace(given, path=path)


def tokenizer_at(file: str, name: str) -> str:
    """`path_at` for a tokenizer, which may be a name."""
    path = path_at(file, name)
    if name in TOKENIZERS or (not os.path.exists(path) and looks_like_a_name(name)):
        return name
    return path
