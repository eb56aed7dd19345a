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
run_folder.py run_files.py  the run on disk; how a new one replaces an old one
journal.py                metrics.jsonl and what else is told
pace.py  signals.py       how long a run still takes; Ctrl-C
ranks.py                  more than one process
"""
