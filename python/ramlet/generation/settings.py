"""How text is sampled: every setting with its default and its bounds.

settings = SampleSettings(temperature=0.7, top_p=0.9, seed=1)
settings.changed("temperature", "0")        # as typed by a user
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ramlet.engines import LARGEST_SEED
from ramlet.errors import SettingsError

__all__ = ["SampleSettings"]


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class SampleSettings:
    max_tokens: int = _option(200, "The most tokens to write.")
    temperature: float = _option(0.8, "Below 1 the likely becomes likelier; 0 always takes the likeliest.")
    top_k: int | None = _option(None, "Choose among so many of the likeliest tokens.")
    top_p: float | None = _option(None, "Choose among the likeliest tokens that together have this probability.")
    repetition_penalty: float = _option(1.0, "Above 1 makes tokens that occurred already less likely.")
    seed: int | None = _option(None, "The same seed gives the same text; sample i is that of seed + i.")
    num_samples: int = _option(1, "So many texts, written side by side.")
    stop: tuple[str, ...] = _option((), "End before this text; may be given more than once.")
    truncate: bool = _option(False, "Of a prompt that is too long keep the end, instead of refusing it.")

    def __post_init__(self) -> None:
        for name in ("max_tokens", "num_samples", "top_k"):
            value = getattr(self, name)
            if not ((_whole(value) and value >= 1) or (value is None and name == "top_k")):
                raise _wrong(name, value, "a whole number from 1 on")
        if not (_number(self.temperature) and self.temperature >= 0):
            raise _wrong("temperature", self.temperature, "0 or more, for example 0.8")
        if self.top_p is not None and not (_number(self.top_p) and 0 < self.top_p <= 1):
            raise _wrong("top_p", self.top_p, "more than 0 and at most 1, for example 0.9")
        if not (_number(self.repetition_penalty) and self.repetition_penalty > 0):
            raise _wrong("repetition_penalty", self.repetition_penalty, "more than 0, for example 1.1")
        if self.seed is not None and not (_whole(self.seed) and 0 <= self.seed <= LARGEST_SEED):
            raise _wrong("seed", self.seed, "a whole number from 0 to 2^63 - 1")
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()))
        if not all(isinstance(text, str) and text for text in self.stop):
            raise _wrong("stop", "", "some text")

    @classmethod
    def help_text(cls, name: str) -> str:
        return next(str(each.metadata["help"]) for each in fields(cls) if each.name == name)

    def changed(self, name: str, text: str) -> SampleSettings:
        """With one setting changed to what a user typed; `none` takes it back where that is possible."""
        name = name.strip().lstrip("-").replace("-", "_")
        kinds: dict[str, Any] = {each.name: type(each.default) for each in fields(self)}
        kinds |= {"top_k": int, "seed": int, "top_p": float, "stop": str}
        if name not in kinds:
            raise SettingsError(f"there is no setting {name}: there are {', '.join(kinds)}")
        value: Any = text.strip()
        if kinds[name] is bool:
            value = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}.get(
                value.lower()
            )
            if value is None:
                raise _wrong(name, text, "on or off")
        elif value.lower() == "none" and name in ("top_k", "top_p", "seed", "stop"):
            value = () if name == "stop" else None
        elif kinds[name] is not str:
            with suppress(ValueError):  # told below, with what it may be
                value = kinds[name](value)
        return replace(self, **{name: value})


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(name: str, value: object, what: str) -> SettingsError:
    return SettingsError(f"{name} {value} cannot be: give {what}")
