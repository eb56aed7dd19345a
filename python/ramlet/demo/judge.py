"""The end of the demo: text of the trained model, of the untrained one, and real code, by the same measure.

    judge(run, dataset, untrained=Path("demo/untrained"), samples=16, tokens=200, memory="1GB")

The untrained model is the run's own at step 0: the same shape, initialized from the same seed; its folder is kept, so
that anyone can try it. The result goes to RUN/measures.json, which the report reads.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramlet.dataset.reader import Dataset
from ramlet.demo.plausible import Plausible, plausible
from ramlet.errors import RamletError
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.budget import Budget
from ramlet.runtime.ending import end_process
from ramlet.runtime.plurals import plural

MEASURES = "measures.json"
PROMPT = "import os\n\n\ndef"
"""How a file might begin. Without a trailing space, which belongs to the token of the next word."""
REAL_TOKENS = 20_000
TEMPERATURE = 0.6
"""Of all texts. A model as small as this one gives unlikely tokens too much weight."""
TOGETHER = 32
"""Texts that are generated at the same time: each takes half a megabyte."""
EXPLANATION = (
    "The share of lines in statements that Python's parser accepts, each statement by itself. Not counted: blank "
    "lines, comments, docstrings, statements of fewer than three tokens."
)


@dataclass(frozen=True)
class Judged:
    untrained: Plausible
    trained: Plausible
    real: Plausible
    sample: str
    """PROMPT, continued by the trained model."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Judged:
        shares = {name: Plausible(**values[name]) for name in ("untrained", "trained", "real")}
        return cls(**shares, sample=values["sample"])


def judge(
    run: str | os.PathLike[str],
    dataset: str | os.PathLike[str],
    *,
    untrained: str | os.PathLike[str],
    samples: int,
    tokens: int,
    memory: Budget | str,
    engine: str = "auto",
    seed: int = 1,
) -> Judged:
    """Generates text with both models, and judges it."""
    from ramlet.generation.entry import generate

    run, untrained = Path(run), Path(untrained)
    _save_untrained(run, untrained, engine, seed)
    how: dict[str, Any] = {"max_tokens": tokens, "memory": memory, "device": "cpu", "engine": engine}

    def texts_of(model: Path) -> list[str]:
        """In groups; each text of a call has a seed of its own, counted from the first."""
        found: list[str] = []
        for first in range(0, samples, TOGETHER):
            more = min(TOGETHER, samples - first)
            found += generate(model, num_samples=more, seed=seed + first, temperature=TEMPERATURE, **how)
        return found

    texts = {folder: texts_of(folder) for folder in (untrained, run)}
    judged = Judged(
        untrained=plausible(texts[untrained], cut=True),
        trained=plausible(texts[run], cut=True),
        real=plausible(_real(Path(dataset))),
        sample=PROMPT
        + generate(
            run,
            PROMPT,
            seed=seed,
            temperature=TEMPERATURE,
            repetition_penalty=1.1,  # a small model repeats itself
            **how,
        )[0],
    )
    _write(run, judged)
    return judged


def _save_untrained(run: Path, folder: Path, engine: str, seed: int) -> None:
    from ramlet.engines.opening import open_engine
    from ramlet.engines.plan import Choice
    from ramlet.model.files import save_description
    from ramlet.model.folder import WEIGHTS, find_model
    from ramlet.model.tensor_file import write_tensors
    from ramlet.training.run_folder import RunFolder
    from ramlet.training.settings import RunSettings

    noted = RunFolder(run, only_read=True).noted() or {}
    settings = RunSettings.from_dict(noted.get("all_settings", {"seed": seed}))
    shape = find_model(run).shape()
    trainee = open_engine("cpu", name=engine).trainee(shape, Choice(micro_batch=1, chunk=1), settings, seq_len=1)
    trainee.reset(settings.seed)
    folder.mkdir(exist_ok=True)
    end = json.loads((run / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    save_description(shape, folder, tokenizer_file=run / "tokenizer.json", end_id=end, dtype="F32")
    write_tensors(folder / WEIGHTS, trainee.weights(), {"format": "pt"})


def _real(dataset: Path) -> list[str]:
    """Whole documents of the validation split, until they have enough tokens."""
    opened = Dataset(dataset)
    texts: list[str] = []
    tokens = 0
    for ids in opened.documents("val"):
        texts.append(opened.tokenizer.decode(ids[: -1 if opened.end_id is not None else None]))
        tokens += len(ids)
        if tokens >= REAL_TOKENS:
            break
    return texts


def _write(run: Path, judged: Judged) -> None:
    points = [("untrained", judged.untrained), ("trained", judged.trained), ("real code", judged.real)]
    measure = {
        "name": "Lines that are Python",
        "explanation": EXPLANATION,
        "unit": "%",
        "points": [
            {"label": f"{label} ({plural(one.lines, 'line')})", "step": None, "value": round(100 * one.share, 1)}
            for label, one in points
        ],
    }
    with replacing(run / MEASURES) as written:
        written.write(json.dumps({"measures": [measure]}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(asdict(judge(**json.loads(sys.argv[1])))) + "\n")
        end_process(0)
    except RamletError as error:
        sys.stderr.write(f"error: {error}\n")
        end_process(1)
