"""`ramlet.train`: turns its arguments into settings and data, loads the engine and starts the run.

ramlet.train("my-dataset", "my-run", params="10M", max_steps=2000, evals={"general": "other"}, memory="2GB")
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramlet.engines.opening import choose_engine, open_engine, require_ranks
from ramlet.errors import SettingsError, option
from ramlet.inputs.paths import check_path
from ramlet.notebook import in_notebook
from ramlet.runtime.budget import Budget
from ramlet.runtime.meter import Meter
from ramlet.runtime.threads import check_threads
from ramlet.settings.names import check_names, given_to
from ramlet.tokenizer.tokenizer import Tokenizer
from ramlet.training.listener import Listener, Silent
from ramlet.training.settings import RunSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ramlet.settings.typed import TrainSettings
    from ramlet.training.feed import Feed
    from ramlet.training.trainer import TrainResult

Data = str | os.PathLike[str] | Sequence[tuple[str | os.PathLike[str], float]]


def train(
    data: Data | None,
    out: str | os.PathLike[str],
    *,
    stream: str | os.PathLike[str] | Sequence[str] | None = None,
    tokenizer: Tokenizer | str | os.PathLike[str] | Any | None = None,
    reading: Mapping[str, Any] | None = None,
    evals: Mapping[str, str | os.PathLike[str]] | None = None,
    memory: Budget | str | int | None = "auto",
    host_memory: Budget | str | int | None = None,
    threads: int | None = None,
    resume: bool | None = None,
    meter: Meter | None = None,
    listener: Listener | None = None,
    **settings: Unpack[TrainSettings],
) -> TrainResult:
    """Trains a model in the folder `out`, or resumes the run that is there.

        result = ramlet.train("my-dataset", "my-run", params="10M", max_steps=2000, memory="2GB")

    `data` is a dataset, a .npy file, or pairs of them with weights. Instead, `stream` is any text, tokenized with
    `tokenizer` (a Tokenizer, or what `ramlet.Tokenizer.load` accepts) during training; `reading` says how to read it:
    `{"documents": "line", "text_field": ...}`. `evals` are further datasets to evaluate on, by name. `memory` is that
    of the process on a CPU and of the device on a GPU, where `host_memory` is that of the process. `resume=False`
    starts over; True also resumes with another length or learning rate. `listener` is called after steps, evaluations
    and samples (`ramlet.Listener`); without one, a notebook shows the run. The settings are the options of
    `ramlet train`, with underscores.
    """
    chosen = RunSettings(**given_to(train, settings, RunSettings))
    check_threads(threads)
    check_path(out)
    if (data is None) == (stream is None):
        raise SettingsError("give either a dataset or a stream of text to train on")
    if not isinstance(evals or {}, Mapping):
        raise SettingsError(f"{option('evals')} must be datasets by name, as in {{'general': {evals!r}}}")
    found = choose_engine(chosen.engine, chosen.device)
    require_ranks(chosen.shard, found.name)
    budget = Budget.parse(memory if chosen.device == "cpu" or found.name == "native" else host_memory or memory)
    with nullcontext(meter) if meter is not None else Meter(budget) as watching:
        # Before the engine, which takes seconds to load: errors in the data are reported at once.
        feed = _feed(data, stream, tokenizer, chosen, Path(out), reading or {})
        watching.stage(f"loading {found.name}")
        engine = open_engine(chosen.device, threads, name=found.name)
        from ramlet.training.trainer import train_run

        with _shown(listener, watching) as told:
            return train_run(
                chosen,
                feed,
                out,
                engine=engine,
                chosen=found,
                evals={name: os.fspath(path) for name, path in (evals or {}).items()},
                memory=memory,
                meter=watching,
                resume=resume,
                listener=told,
            )


def _shown(listener: Listener | None, meter: Meter) -> AbstractContextManager[Listener]:
    """The caller's listener; without one, a notebook shows the run."""
    if listener is None and in_notebook():
        from ramlet.notebook.display import TrainingDisplay

        return TrainingDisplay(meter)
    return nullcontext(listener or Silent())


def _feed(
    data: Data | None, stream: Any, tokenizer: Any, settings: RunSettings, out: Path, reading: Mapping[str, Any]
) -> Feed:
    from ramlet.inputs.settings import ReadSettings
    from ramlet.loading.loader import mix_of
    from ramlet.settings.declared import declared
    from ramlet.training.feed import DataFeed, StreamFeed

    if data is not None:
        of_text = [*reading] if tokenizer is None else ["tokenizer", *reading]
        if of_text:
            raise SettingsError(f"{option(of_text[0])} is for text: a dataset was tokenized when it was prepared")
        return DataFeed([(os.fspath(path), float(weight)) for path, weight in mix_of(data)], settings)
    if tokenizer is None:
        raise SettingsError(f"a stream is tokenized during training: give a {option('tokenizer')}")
    check_names(reading, declared(ReadSettings))
    sources = [stream] if isinstance(stream, (str, os.PathLike)) else stream
    if isinstance(tokenizer, (str, os.PathLike)):
        named: Tokenizer | str = os.fspath(tokenizer)
    else:
        named = Tokenizer.load(tokenizer)
    return StreamFeed([os.fspath(source) for source in sources], named, settings, out / "stream", reading)
