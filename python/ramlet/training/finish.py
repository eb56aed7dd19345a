"""The end of a run: its best model is put in place, and stats.json marks it as finished."""

from __future__ import annotations

from typing import Any

from ramlet.model.tensor_file import send_tensors
from ramlet.runtime.budget import Budget
from ramlet.training import kept
from ramlet.training.running import Run


def finish_run(run: Run, *, parameters: int, budget: Budget) -> dict[str, Any]:
    """Writes both, and returns the statistics; `budget` is that of the device."""
    progress, engine, meter, place = run.progress, run.engine, run.meter, run.folder.path
    model = kept.choose(place, progress, run.averaged)
    meter.stage("finishing")
    ranks, peak, predicted = engine.ranks, engine.peak(meter), run.plan.peak
    by_rank = list(zip(ranks.every(peak), ranks.every(predicted)))
    statistics = {
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 3),
        "loss": progress.loss,
        "model": model.to_dict(),
        "scores": model.scores,
        "last_scores": progress.scores,
        **({"forgetting": progress.rises(model.scores)} if progress.before else {}),
        "best": {"step": progress.best, "loss": progress.best_loss},
        "parameters": parameters,
        "memory": {
            **meter.summary(),
            "device": engine.kind,
            "device_budget": budget.asked,
            "device_peak": peak,
            "predicted": predicted,
            "predicted_parts": run.plan.parts,
            **({"ranks": [{"peak": each, "predicted": was} for each, was in by_rank]} if len(by_rank) > 1 else {}),
        },
    }
    if ranks.first:
        kept.write(place, model, run.trainee)
        run.folder.finish(statistics)
    elif run.evaluates_together and model.averaged:
        send_tensors(run.trainee.weights())
    return statistics
