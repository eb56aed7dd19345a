"""How long the update of an optimizer takes within a step, and how large its states are.

    python benchmarks/recipe_update.py --optimizer muon --device cuda       # 124M, 32 x 1024; one line of JSON
    python benchmarks/recipe_update.py --optimizer muon --threads 2         # 10M, 32 x 256

Steps as in a run, with the plan of a run, on random ids: forward and backward passes of all micro-batches, then the
update (clipping included). Medians; the first steps do not count. `recipe.py update` compares the optimizers.
"""

from __future__ import annotations

import argparse
import json
import math
from statistics import median
from typing import Any

from train import SETUPS, Setup

SKIPPED = 3


def measured(optimizer: str, setup: Setup, device: str, threads: int | None, steps: int) -> dict[str, Any]:
    import numpy as np

    from ramlet.engines.opening import open_engine
    from ramlet.engines.plan import Task
    from ramlet.model.dtypes import DTYPES
    from ramlet.model.sizing import shape_for
    from ramlet.settings.kinds import Count
    from ramlet.training.settings import RunSettings

    settings = RunSettings(optimizer=optimizer)
    engine = open_engine(device, threads)
    shape = shape_for(
        Count().read(setup.params), vocab_size=setup.vocab, context=setup.seq_len, qk_norm=settings.qk_norm
    )
    task = Task(
        shape,
        setup.seq_len,
        setup.sequences,
        engine.budget("auto"),
        engine.precision("auto"),
        forced={"optimizer": optimizer},
        resident=engine.resident(stepping=True),
    )
    plan = engine.sketch(task)
    trainee = engine.trainee(shape, plan.choice, settings)
    trainee.reset(1)
    trainee.prepare(plan, 0)
    draw = np.random.default_rng(1)
    whole, updates = [], []
    for step in range(SKIPPED + steps):
        ids = draw.integers(0, setup.vocab, (setup.sequences, setup.seq_len + 1))
        began = engine.mark()
        for first in range(0, setup.sequences, plan.choice.micro_batch):
            rows = ids[first : first + plan.choice.micro_batch]
            batch = {"input_ids": rows[:, :-1].copy(), "targets": rows[:, 1:].copy()}
            trainee.learn(batch, 1 / setup.step_tokens)
        learned = engine.mark()
        trainee.update(1e-3, 1.0)
        ended = engine.mark()
        if step >= SKIPPED:
            whole.append(engine.seconds(began, ended))
            updates.append(engine.seconds(learned, ended))
    states = sum(math.prod(state.shape) * DTYPES[state.dtype].itemsize for state in trainee.states().values())
    return {
        "parameters": shape.parameters,
        "precision": plan.choice.compute,
        "step_seconds": median(whole),
        "update_seconds": median(updates),
        "state_bytes": states,
    }


def main() -> None:
    from ramlet.engines import OPTIMIZERS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--steps", type=int, help="[default: 10 on a CPU, 50 on a GPU]")
    parser.add_argument("--params", help="another size, to try the script")
    given = parser.parse_args()
    setup = SETUPS[given.device]
    if given.params:
        setup = Setup(**{**vars(setup), "params": given.params})
    steps = given.steps or (10 if given.device == "cpu" else 50)
    print(json.dumps(measured(given.optimizer, setup, given.device, given.threads, steps)))


if __name__ == "__main__":
    main()
