"""A whole way from text to a model in one file: `ramlet run pipeline.yaml`, and `ramlet init`, which writes one.

file.py      the file, every mistake with its line; krill.py another tool's words
stages.py    what the file asks for, as stages: the command of each, and all that its result follows from
record.py    what is made already, in WORK/pipeline.json; judging.py what of it still holds
run.py       the spine; process.py a stage as a process; wording.py its error, in the words of the file
starter.py   a file for the text and the machine at hand; looking.py what they are like
"""
