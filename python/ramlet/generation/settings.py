"""The sampling settings, each with its default and bounds.

settings = SampleSettings(temperature=0.7, top_p=0.9, seed=1)
settings.changed("temperature", "0")        # as typed by a user
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ramlet.engines import LARGEST_SEED
from ramlet.errors import SettingsError
from ramlet.settings.declared import Declared, declared, setting
from ramlet.settings.kinds import Count, Number, Strings, Switch

TEXT, SAMPLING = "Text", "Sampling"
MOST = 10**9
"""Of what becomes a number of 32 bits, or is multiplied."""


@dataclass(frozen=True)
class SampleSettings(Declared):
    max_tokens: int = setting(
        200, Count(), "Maximum new tokens.", called=("max_tokens", "max_new_tokens"), short="n", panel=SAMPLING
    )
    temperature: float = setting(0.8, Number(), "Sampling temperature; 0 is greedy.", panel=SAMPLING)
    top_k: int | None = setting(
        None, Count(most=MOST), "Sample only from the k most likely tokens.", panel=SAMPLING, shown="off"
    )
    top_p: float | None = setting(
        None,
        Number(above=0, most=1),
        "Sample only from the most likely tokens whose probabilities add up to p (nucleus sampling).",
        panel=SAMPLING,
        shown="off",
    )
    repetition_penalty: float = setting(
        1.0, Number(above=0), "Above 1 makes tokens that already occurred less likely.", panel=SAMPLING
    )
    seed: int | None = setting(
        None,
        Count(least=0, most=LARGEST_SEED),
        "The same seed gives the same text; sample i has seed + i.",
        panel=SAMPLING,
        shown="random",
    )
    num_samples: int = setting(1, Count(most=MOST), "Texts to generate, as one batch.", panel=SAMPLING)
    stop: tuple[str, ...] = setting(
        (),
        Strings(what="some text", spaces=True),
        "Stop before this text; may be given several times.",
        panel=SAMPLING,
    )
    truncate: bool = setting(
        False, Switch(), "Keep only the end of a prompt that is longer than the context.", panel=TEXT
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", self.stop or ())
        super().__post_init__()

    def changed(self, name: str, text: str) -> SampleSettings:
        """A copy with one setting changed to what a user typed; `none` resets an optional one."""
        name = name.strip().lstrip("-").replace("-", "_")
        known = declared(SampleSettings)
        if name not in known:
            raise SettingsError(f"unknown setting {name!r}: choose from {', '.join(known)}")
        value: Any = text.strip()
        if isinstance(known[name].kind, Switch):
            value = _SWITCH_WORDS.get(value.lower(), value)
        elif value.lower() == "none" and not known[name].default:
            value = known[name].default
        return replace(self, **{name: value})


_SWITCH_WORDS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
