"""Train a language model from raw text, in the RAM you have.

    import ramlet

    tokenizer = ramlet.Tokenizer.train(["corpus/"], vocab_size=32_000, memory="2GB")
    tokenizer.save("tokenizer.json")
    ramlet.prepare(["corpus/"], "data", tokenizer="tokenizer.json", memory="2GB")
    ramlet.train("data", "run", params="10M", memory="2GB")
    print(ramlet.generate("run", "Once upon a time")[0])

Names are loaded on first use: `import ramlet` itself takes a few milliseconds and loads neither numpy nor torch nor the
native module.
"""

from __future__ import annotations

# Type checkers treat this name as true. Importing typing would take longer than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ramlet.dataset.reader import Dataset
    from ramlet.engines.torch.optim.adamw8bit import AdamW8bit
    from ramlet.errors import (
        BrokenInput,
        BudgetError,
        DatasetError,
        DiskFull,
        InternalError,
        Interrupted,
        ModelError,
        PipelineError,
        RamletError,
        SettingsError,
        SourceChanged,
        SourceError,
        TokenizerError,
        TrainingStopped,
    )
    from ramlet.fitting.entry import fit, plan_module
    from ramlet.fitting.run import FitResult
    from ramlet.generation.entry import generate
    from ramlet.loading.batch import Batch
    from ramlet.loading.loader import Loader
    from ramlet.loading.stream_loader import StreamLoader
    from ramlet.pipeline.run import run_pipeline
    from ramlet.preparing.entry import prepare
    from ramlet.preparing.run import Prepared
    from ramlet.reporting.entry import report
    from ramlet.runtime.budget import Budget
    from ramlet.runtime.meter import Meter
    from ramlet.tokenizer.tokenizer import Tokenizer
    from ramlet.training.entry import train
    from ramlet.training.evaluate_run import evaluate
    from ramlet.training.evaluate_tasks import evaluate_tasks
    from ramlet.training.listener import Listener
    from ramlet.training.propose import plan
    from ramlet.training.trainer import TrainResult

__version__ = "0.1.0"

__all__ = [
    "AdamW8bit",
    "Batch",
    "BrokenInput",
    "Budget",
    "BudgetError",
    "Dataset",
    "DatasetError",
    "DiskFull",
    "FitResult",
    "InternalError",
    "Interrupted",
    "Listener",
    "Loader",
    "Meter",
    "ModelError",
    "PipelineError",
    "Prepared",
    "RamletError",
    "SettingsError",
    "SourceChanged",
    "SourceError",
    "StreamLoader",
    "Tokenizer",
    "TokenizerError",
    "TrainResult",
    "TrainingStopped",
    "__version__",
    "evaluate",
    "evaluate_tasks",
    "fit",
    "generate",
    "plan",
    "plan_module",
    "prepare",
    "report",
    "run_pipeline",
    "train",
]

_HOME = {
    "AdamW8bit": "ramlet.engines.torch.optim.adamw8bit",
    "Batch": "ramlet.loading.batch",
    "Budget": "ramlet.runtime.budget",
    "Dataset": "ramlet.dataset.reader",
    "FitResult": "ramlet.fitting.run",
    "Listener": "ramlet.training.listener",
    "Loader": "ramlet.loading.loader",
    "Meter": "ramlet.runtime.meter",
    "Prepared": "ramlet.preparing.run",
    "prepare": "ramlet.preparing.entry",
    "run_pipeline": "ramlet.pipeline.run",
    "StreamLoader": "ramlet.loading.stream_loader",
    "Tokenizer": "ramlet.tokenizer.tokenizer",
    "TrainResult": "ramlet.training.trainer",
    "evaluate": "ramlet.training.evaluate_run",
    "evaluate_tasks": "ramlet.training.evaluate_tasks",
    "fit": "ramlet.fitting.entry",
    "generate": "ramlet.generation.entry",
    "plan": "ramlet.training.propose",
    "plan_module": "ramlet.fitting.entry",
    "report": "ramlet.reporting.entry",
    "train": "ramlet.training.entry",
}


# Hidden from type checkers, for which it would make every name valid.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'ramlet' has no attribute {name!r}")
        from importlib import import_module

        value: object = getattr(import_module(_HOME.get(name, "ramlet.errors")), name)
        value.__module__ = "ramlet"  # as help() and tracebacks should show it
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
