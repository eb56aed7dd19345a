"""From text to a model with one file: `ramlet run pipeline.yaml`, and `ramlet init`, which writes one.

file.py      the file, every mistake with its line; krill.py the keys of another tool
stages.py    what the file asks for, as stages: the command of each, and everything its result depends on
record.py    what is already made, in WORK/pipeline.json; due.py what is out of date
run.py       the main loop; executor.py how a stage is run: the contract; process.py as a process
wording.py   the error of a stage, with the keys of the file
init.py      chooses a file for this text and this machine; proposal.py what is in it; looking.py the text
"""
