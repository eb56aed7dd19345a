"""What `ramlet demo` is made of; the command itself, which runs the others one after the other, is cli/demo.py.

stdlib_text.py   the text: the sources of the running Python's standard library, as one .jsonl file
script.py        the commands that the demo stands for, and their sizes
plausible.py     how much of what a model writes is Python
judge.py         the same for the trained model, the untrained one and real code, written for the report
"""
