"""A YAML file as nodes, which know their lines, and a reader that tells every mistake with its line.

    class MyReader(NodeReader): ...
    reader = MyReader("config.yaml")
    root = compose("config.yaml")
    for key, value in reader.pairs(root):
        name = reader.key(key, ["memory", "threads"])       # or the nearest one named
        reader.once(name, name, key)                        # or the line of the other
        reader.converted(name, value, Count().read)         # or what it should be instead

Only plain YAML is read: a tag cannot make it run anything, and nothing is made of it but strings, numbers and lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ramlet.errors import SettingsError
from ramlet.runtime.small_files import read_bytes
from ramlet.settings.names import nearest

if TYPE_CHECKING:
    import yaml

__all__ = ["Convert", "NodeReader", "compose"]

LARGEST_FILE = 1 << 18
"""A larger config is a data file named by mistake; as nodes this much may take 100 MB."""

Convert = Callable[[Any], Any]


def compose(name: str) -> yaml.Node | None:
    """The file as nodes; None where it is empty."""
    import yaml

    try:
        text = read_bytes(name, SettingsError, LARGEST_FILE)
    except OSError as error:
        raise SettingsError(f"cannot read {name}: {error.strerror}") from None
    try:
        # The C parser, where there is one, words its errors differently; a config is short.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}, line {mark.line + 1}" if mark else name
        if error.context == "expected a single document in the stream":
            raise SettingsError(f"{where}: a second document begins with ---: write one document a file") from None
        raise SettingsError(f"{where}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SettingsError(f"cannot read {name} as YAML ({reason}): is it a text file in UTF-8?") from None
    except RecursionError:
        raise SettingsError(f"cannot read {name} as YAML: its lists are nested too deep") from None
    _refuse_impossible(name, root)
    return root


def _refuse_impossible(name: str, root: yaml.Node | None) -> None:
    """`"\\ud800"` and `"\\0"` are strings to YAML that no path and no option can hold."""
    import yaml

    seen: set[int] = set()  # by aliases a node may be in many places
    left = [] if root is None else [root]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            line = node.start_mark.line + 1
            if any("\ud800" <= each <= "\udfff" for each in node.value):
                raise SettingsError(f"{name}, line {line}: half a character (a surrogate) stands here: write it whole")
            if "\0" in node.value:
                raise SettingsError(f"{name}, line {line}: no option takes a NUL: leave it out")
        elif isinstance(node, yaml.MappingNode):
            left += [each for pair in node.value for each in pair]
        else:
            left += node.value


class NodeReader:
    """Reads nodes of one file, and remembers which key said what."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.written: dict[str, tuple[str, int]] = {}
        """The key and the line by which a thing was said, to tell when it is said twice."""

    def fault(self, node: yaml.Node, sentence: str) -> SettingsError:
        return SettingsError(f"{self.name}, line {node.start_mark.line + 1}: {sentence}")

    def pairs(self, node: yaml.Node, what: str = "the file") -> list[tuple[yaml.Node, yaml.Node]]:
        """The keys and values of a mapping."""
        import yaml

        if not isinstance(node, yaml.MappingNode):
            raise self.fault(node, f"{what} is a list or a single value: write it as KEY: VALUE lines")
        return list(node.value)

    def word(self, node: yaml.Node) -> str:
        """A key as it is written, with underscores."""
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            raise self.fault(node, "a key is one word, not a list")
        if node.value == "<<":
            raise self.fault(node, "merging with << is not supported: write the keys out")
        return str(node.value).replace("-", "_")

    def key(self, node: yaml.Node, known: Sequence[str]) -> str:
        """The key as it is listed, or the nearest one named."""
        key = self.word(node)
        if key in known:
            return key
        near = nearest(key, known)
        hint = f": did you mean {near!r}?" if near else f": the keys are {', '.join(known)}"
        raise self.fault(node, f"no key {node.value!r}{hint}")

    def converted(self, key: str, node: yaml.Node, convert: Convert) -> Any:
        value = self.plain(node)
        if value is None:
            raise self.fault(node, f"{key} has no value: give one or leave the key out")
        try:
            return convert(value)
        except ValueError as error:
            raise self.fault(node, f"{key} {error}") from None

    def filled(self, key: str, node: yaml.Node, convert: Convert) -> Any:
        """The same of what cannot be empty."""
        if self.plain(node) == "":
            raise self.fault(node, f"{key} is empty: give a value or leave the key out")
        return self.converted(key, node, convert)

    def plain(self, node: yaml.Node) -> Any:
        """The node as strings, numbers, lists and mappings; other tags are refused."""
        import yaml

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
            said = f"{key!r} is given twice" if before == key else f"{key!r} and {before!r} mean the same"
            raise self.fault(node, f"{said} (the other in line {line}): leave one out")
        self.written[what] = (key, node.start_mark.line + 1)

    def with_line(self, error: SettingsError, section: yaml.Node | None) -> SettingsError:
        """An error of settings taken together, with the line of the first that it names, or of their section."""
        line = next((self.written[name][1] for name in error.settings if name in self.written), None)
        if line is None and section is not None:
            line = section.start_mark.line + 1
        where = self.name if line is None else f"{self.name}, line {line}"
        return SettingsError(f"{where}: {error.told(_as_key)}")


def _as_key(name: str, value: str | None) -> str:
    """How a setting is written in a file."""
    return name if value is None else f"{name}: {value}"
