"""The end of the demo: text of the trained model, of the untrained one, and real code, by the same measure.

    judge(run, dataset, untrained=Path("demo/untrained"), samples=16, tokens=200, memory="1GB")

The untrained model is the run's own at step 0: the same shape, initialized from the same seed; its folder is kept, so
that anyone can try it. The result goes to RUN/measures.json, which the report reads.
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

MEASURES = "measures.json"
PROMPT = "import os\n\n\ndef"
"""How a file might begin. Without a trailing space, which belongs to the token of the next word."""
REAL_TOKENS = 20_000
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


def judge(
    run: Path, dataset: Path, *, untrained: Path, samples: int, tokens: int, memory: Budget | str, seed: int = 1
) -> Judged:
    """Generates text with both models, and judges it."""
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
        + generate(
            run,
            PROMPT,
            max_tokens=tokens,
            seed=seed,
            memory=memory,
            device="cpu",
            temperature=0.6,
            repetition_penalty=1.1,  # a small model repeats itself
        )[0],
    )
    _write(run, judged)
    return judged


def _save_untrained(run: Path, folder: Path, seed: int) -> None:
    import yaml

    from ramlet.engines.torch.model_files import load_model, save_model

    model = load_model(run, device="cpu")
    recorded = yaml.safe_load((run / "settings.yaml").read_text(encoding="utf-8"))
    model.weights.initialize(recorded["all_settings"].get("seed", seed))
    folder.mkdir(exist_ok=True)
    end = json.loads((run / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    save_model(model, folder, tokenizer_file=run / "tokenizer.json", end_id=end)


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
