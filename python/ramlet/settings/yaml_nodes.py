"""Parses a YAML file into nodes, which have line numbers, and reads them with errors that name the line.

    class MyReader(NodeReader): ...
    reader = MyReader("config.yaml")
    root = compose("config.yaml")
    for key, value in reader.pairs(root):
        name = reader.key(key, ["memory", "threads"])       # an unknown key is an error with a suggestion
        reader.once(name, name, key)                        # so is a key that is given twice
        reader.converted(name, value, Count().read)         # and a value of the wrong type

Only plain YAML is accepted: tags cannot run code or create objects other than strings, numbers, lists and mappings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ramlet.errors import SettingsError
from ramlet.runtime.small_files import read_bytes
from ramlet.settings.names import meant

if TYPE_CHECKING:
    import yaml

LARGEST_FILE = 1 << 18
"""A larger config is a data file given by mistake; nodes of this much YAML can take 100 MB."""

Convert = Callable[[Any], Any]

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_ODD_NUMBER = re.compile(r"[-+]?(?:0[\d_bx].*|.*:.*)", re.DOTALL)
"""To YAML 010 is 8, 0x10 is 16 and 1:30 is 90: they are left as they are written, and parsed as on the command line."""


def compose(name: str) -> yaml.Node | None:
    """The root node of the file; None if it is empty."""
    import yaml

    try:
        text = read_bytes(name, SettingsError, LARGEST_FILE)
    except OSError as error:
        raise SettingsError(f"cannot read {name}: {error.strerror}") from None
    try:
        # Not the C parser, whose messages differ: a config is short.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}, line {mark.line + 1}" if mark else name
        if error.context == "expected a single document in the stream":
            raise SettingsError(f"{where}: a second document begins with ---; a file may have only one") from None
        raise SettingsError(f"{where}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SettingsError(f"cannot read {name} as YAML ({reason}): is it a text file in UTF-8?") from None
    except RecursionError:
        raise SettingsError(f"cannot read {name} as YAML: it is nested too deeply") from None
    _check_characters(name, root)
    return root


def _check_characters(name: str, root: yaml.Node | None) -> None:
    """Refuses strings like `"\\ud800"` and `"\\0"`, which are valid in YAML but not in a path or an argument."""
    import yaml

    seen: set[int] = set()  # an alias puts the same node in several places
    left = [] if root is None else [root]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            line = node.start_mark.line + 1
            if any("\ud800" <= each <= "\udfff" for each in node.value):
                raise SettingsError(f"{name}, line {line}: a lone surrogate, which is not a character: remove it")
            if "\0" in node.value:
                raise SettingsError(f"{name}, line {line}: a NUL character is not allowed: remove it")
        elif isinstance(node, yaml.MappingNode):
            left += [each for pair in node.value for each in pair]
        else:
            left += node.value


class NodeReader:
    """Reads the nodes of one file, and remembers which key set what."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.written: dict[str, tuple[str, int]] = {}
        """The key and line that set each name, to detect duplicates."""

    def fault(self, node: yaml.Node, sentence: str) -> SettingsError:
        return SettingsError(f"{self.name}, line {node.start_mark.line + 1}: {sentence}")

    def pairs(self, node: yaml.Node, what: str = "the file") -> list[tuple[yaml.Node, yaml.Node]]:
        """The keys and values of a mapping."""
        import yaml

        if not isinstance(node, yaml.MappingNode):
            raise self.fault(node, f"{what} must be KEY: VALUE lines, not a list or a single value")
        return list(node.value)

    def word(self, node: yaml.Node) -> str:
        """A key, its hyphens replaced by underscores."""
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            raise self.fault(node, "a key must be a single word, not a list")
        if node.value == "<<":
            raise self.fault(node, "merge keys (<<) are not supported: write out the keys")
        return str(node.value).replace("-", "_")

    def key(self, node: yaml.Node, known: Sequence[str]) -> str:
        """A known key; an unknown one is an error with a suggestion."""
        key = self.word(node)
        if key in known:
            return key
        raise self.fault(node, f"unknown key {node.value!r}: {meant(key, known)}")

    def converted(self, key: str, node: yaml.Node, convert: Convert) -> Any:
        value = self.plain(node)
        if value is None:
            raise self.fault(node, f"{key} has no value: give one or remove the key")
        try:
            return convert(value)
        except ValueError as error:
            raise self.fault(node, f"{key} {error}") from None

    def filled(self, key: str, node: yaml.Node, convert: Convert) -> Any:
        """The same for a value that must not be empty."""
        if self.plain(node) == "":
            raise self.fault(node, f"{key} is empty: give a value or remove the key")
        return self.converted(key, node, convert)

    def plain(self, node: yaml.Node) -> Any:
        """The node as strings, numbers, lists and mappings; other tags are an error."""
        import yaml

        if isinstance(node, yaml.ScalarNode) and _ODD_NUMBER.fullmatch(node.value) and node.tag in _NUMBERS:
            return str(node.value)
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_document(node)
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None) or node.start_mark
            problem = getattr(error, "problem", None) or str(error)
            raise SettingsError(f"{self.name}, line {mark.line + 1}: {problem}") from None
        finally:
            loader.dispose()

    def once(self, what: str, key: str, node: yaml.Node) -> None:
        if what in self.written:
            before, line = self.written[what]
            problem = f"{key!r} is given twice" if before == key else f"{key!r} and {before!r} mean the same"
            raise self.fault(node, f"{problem} (the other is in line {line}): remove one")
        self.written[what] = (key, node.start_mark.line + 1)

    def with_line(self, error: SettingsError, section: yaml.Node | None) -> SettingsError:
        """An error about several settings, with the line of the first it names, or that of their section."""
        line = next((self.written[name][1] for name in error.settings if name in self.written), None)
        if line is None and section is not None:
            line = section.start_mark.line + 1
        where = self.name if line is None else f"{self.name}, line {line}"
        return SettingsError(f"{where}: {error.render(_as_key)}")


def _as_key(name: str, value: str | None) -> str:
    """A setting as written in a YAML file."""
    return name if value is None else f"{name}: {value}"
