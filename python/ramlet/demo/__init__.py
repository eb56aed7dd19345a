"""The parts of `ramlet demo`; the command itself, which runs the others one after another, is cli/demo.py.

stdlib_text.py   the text: the sources of the running Python's standard library, as one .jsonl file
script.py        the commands of the demo, and their sizes
plausible.py     how much of what a model writes is Python
judge.py         the same for the trained model, the untrained one and real code, written for the report
"""
