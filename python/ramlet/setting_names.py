"""Names of settings that a caller gives as keywords.

check_names({"param": "1M"}, ["params", "tokens"])      there is no setting 'param': did you mean params?
"""

from __future__ import annotations

from collections.abc import Iterable

from ramlet.errors import SettingsError

__all__ = ["check_names"]


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Stops at the first name that is not known, with the one that was probably meant."""
    names = sorted(known)
    for name in given:
        if name not in names:
            from difflib import get_close_matches

            near = get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"they are {', '.join(names)}"
            raise SettingsError(f"there is no setting {name!r}: {hint}")
