"""Training: from a dataset to a model, within a memory budget. What computes is an engine (ramlet.engines).

entry.py                  `ramlet.train`: what was given becomes settings and data
settings.py  job.py       every setting with its default and help; what a run is once all of them are decided
trainer.py                the spine: plan, begin, run, finish
plan.py                   how a run finds a plan that fits
loop.py                   the steps, and what is done between them; schedule.py the learning rate
evaluate.py  eval_sets.py loss, perplexity and bits per byte over a fixed number of tokens; on which sets
evaluate_run.py           `ramlet eval`
checkpoint.py  saver.py   everything a run needs to go on, whole or not at all
run_folder.py run_files.py  the run on disk; how a new one replaces an old one
journal.py  board.py      metrics.jsonl and what else is told
pace.py  signals.py       how long a run still takes; Ctrl-C
machine.py  propose.py    what the machine has; what can be trained on it
"""
