"""The demo's last word: what the trained model writes, what it wrote before it learned, and real code, by one measure.

    judge(run, dataset, untrained=Path("demo/untrained"), samples=16, tokens=200, memory="1GB")

The untrained model is the run's own at step 0: the same shape, drawn by the same seed; it stays as a folder, so that
anyone may try it. The result goes to RUN/measures.json, from which the report takes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ramlet.dataset.reader import Dataset
from ramlet.demo.plausible import Plausible, plausible
from ramlet.runtime.atomic_files import replacing
from ramlet.runtime.budget import Budget
from ramlet.runtime.plurals import plural

__all__ = ["PROMPT", "Judged", "judge"]

MEASURES = "measures.json"
PROMPT = "import os\n\n\ndef"
"""As a file may begin. Without a space behind it: that belongs to the token of the next word."""
REAL_TOKENS = 20_000
EXPLANATION = (
    "The share of lines that belong to statements that Python's parser takes, each statement alone. Not counted: blank "
    "lines, comments, docstrings, statements of fewer than three tokens."
)


@dataclass(frozen=True)
class Judged:
    untrained: Plausible
    trained: Plausible
    real: Plausible
    sample: str
    """What the trained model makes of PROMPT."""


def judge(
    run: Path, dataset: Path, *, untrained: Path, samples: int, tokens: int, memory: Budget | str, seed: int = 1
) -> Judged:
    """Writes with both models and judges it."""
    from ramlet.generation.entry import generate

    _save_untrained(run, untrained, seed)
    texts = {
        folder: generate(
            folder, max_tokens=tokens, num_samples=samples, seed=seed, memory=memory, device="cpu", temperature=0.7
        )
        for folder in (untrained, run)
    }
    judged = Judged(
        untrained=plausible(texts[untrained], cut=True),
        trained=plausible(texts[run], cut=True),
        real=plausible(_real(dataset)),
        sample=PROMPT
        + generate(run, PROMPT, max_tokens=tokens, seed=seed, memory=memory, device="cpu", temperature=0.6)[0],
    )
    _write(run, judged)
    return judged


def _save_untrained(run: Path, folder: Path, seed: int) -> None:
    import yaml

    from ramlet.engines.torch.model_files import load_model, save_model

    model = load_model(run, device="cpu")
    noted = yaml.safe_load((run / "settings.yaml").read_text(encoding="utf-8"))
    model.weights.initialize(noted["all_settings"].get("seed", seed))
    folder.mkdir(exist_ok=True)
    end = json.loads((run / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    save_model(model, folder, tokenizer_file=run / "tokenizer.json", end_id=end)


def _real(dataset: Path) -> list[str]:
    """Whole documents that the model has not seen, until they are enough."""
    opened = Dataset(dataset)
    texts: list[str] = []
    held = 0
    for ids in opened.documents("val"):
        texts.append(opened.tokenizer.decode(ids[: -1 if opened.end_id is not None else None]))
        held += len(ids)
        if held >= REAL_TOKENS:
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
