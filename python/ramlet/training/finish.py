"""The end of a run: its best model is put in place, and stats.json marks it as finished."""

from __future__ import annotations

from typing import Any

from ramlet.runtime.budget import Budget
from ramlet.training import kept
from ramlet.training.loop import Run


def finish_run(run: Run, *, parameters: int, budget: Budget) -> dict[str, Any]:
    """Writes both, and returns the statistics; `budget` is that of the device."""
    progress, engine, meter, place = run.progress, run.engine, run.meter, run.folder.path
    model = kept.choose(place, progress, run.averaged)
    meter.stage("finishing")
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
            "device_peak": engine.peak(meter),
            "predicted": run.plan.peak,
            "predicted_parts": run.plan.parts,
        },
    }
    if engine.ranks.first:
        kept.write(place, model, run.trainee)
        run.folder.finish(statistics)
    return statistics
