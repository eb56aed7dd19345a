"""Training: from a dataset to a model, within a memory budget. An engine (ramlet.engines) does the computing.

entry.py                  `ramlet.train`: arguments -> settings and data
settings.py  job.py       every setting with its default and help; all settings of a run, resolved
trainer.py                the whole run: plan, begin, run, finish
plan.py                   finds a plan that fits
loop.py                   the training loop; schedule.py the learning rate
evaluate.py  eval_sets.py loss, perplexity and bits per byte over a fixed number of tokens; the evaluation sets
evaluate_run.py           `ramlet eval`
checkpoint.py  saver.py   everything needed to resume, written atomically
run_folder.py run_files.py  the run on disk; how a new one replaces an old one
journal.py  board.py      metrics.jsonl; TensorBoard
pace.py  signals.py       the remaining time of a run; Ctrl-C
machine.py  propose.py    the machine's hardware; what can be trained on it
"""
