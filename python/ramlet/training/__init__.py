"""Training: from a dataset to a model, within a memory budget.

settings.py               every setting with its default and help
machine.py  predict.py    what the machine has; what a step takes, part by part
plan.py  probe.py         which way of stepping fits the budget; a few real steps that correct the prediction
base_memory.py            torch, loaded with as little resident memory as it can do with
loop.py                   the spine
step.py  schedule.py      one optimizer step; the learning rate
evaluate.py  eval_sets.py loss, perplexity and bits per byte over a fixed number of tokens; on which sets
evaluate_run.py           `ramlet eval`
checkpoint.py             everything a run needs to go on, whole or not at all
run_folder.py  journal.py the run on disk; metrics.jsonl and what else is told
ranks.py                  more than one process
"""
