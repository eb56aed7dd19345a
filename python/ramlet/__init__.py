"""Train a language model from raw text, in the RAM you have.

    import ramlet

    tokenizer = ramlet.Tokenizer.train(["corpus/"], vocab_size=32_000, memory="2GB")
    tokenizer.save("tokenizer.json")

Names are loaded on first use: `import ramlet` alone costs a few milliseconds and brings in neither
numpy nor torch nor the native module.
"""

from __future__ import annotations

# Type checkers take this name for true; importing typing would take most of the time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ramlet.budget import Budget, Meter
    from ramlet.dataset.reader import Dataset
    from ramlet.errors import (
        BrokenInput,
        BudgetError,
        DatasetError,
        DiskFull,
        Interrupted,
        RamletError,
        SettingsError,
        SourceChanged,
        SourceError,
        TokenizerError,
    )
    from ramlet.prepare_dataset import Prepared, prepare
    from ramlet.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "BrokenInput",
    "Budget",
    "BudgetError",
    "Dataset",
    "DatasetError",
    "DiskFull",
    "Interrupted",
    "Meter",
    "Prepared",
    "RamletError",
    "SettingsError",
    "SourceChanged",
    "SourceError",
    "Tokenizer",
    "TokenizerError",
    "__version__",
    "prepare",
]

_HOME = {
    "Budget": "ramlet.budget",
    "Dataset": "ramlet.dataset.reader",
    "Meter": "ramlet.budget",
    "Prepared": "ramlet.prepare_dataset",
    "prepare": "ramlet.prepare_dataset",
    "Tokenizer": "ramlet.tokenizer",
}


# Hidden from type checkers, to which it would make every name a valid one.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'ramlet' has no attribute {name!r}")
        from importlib import import_module

        value: object = getattr(import_module(_HOME.get(name, "ramlet.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
