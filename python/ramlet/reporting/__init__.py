"""One HTML page about a run, a dataset or a tokenizer, made only from the files that the stages wrote.

    found.py       a folder -> what is in it, with every mistake as one sentence
    metrics.py     metrics.jsonl -> curves, scores and samples, in one pass and bounded memory
    curves.py      any number of points -> at most 600, spikes kept
    lengths.py     .idx files -> how long documents are
    lineage.py     what belongs together: a run, its datasets, their tokenizers
    charts.py  bars.py  markup.py    numbers -> SVG and HTML
    run_sections.py  memory_sections.py  data_sections.py    sections of the page; a new chart goes into one of these
    page.py        all sections in order, with repeat.py, the commands to reproduce it
    serve.py       the page on a local port, updated while a run is in progress
    entry.py       `ramlet.report`
    doctor.py      `ramlet doctor`: what this machine has

No stage knows about reports, and a report only reads files. The charts are plain SVG from our own code: a plotting
library would be the largest dependency of all, for six kinds of charts, and its pages need a megabyte of script to run
before anything is visible.
"""
