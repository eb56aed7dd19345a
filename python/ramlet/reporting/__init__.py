"""One page about a run, a dataset or a tokenizer, made only from what the stages wrote.

    found.py       folders -> what is in them, with every mistake in one sentence
    metrics.py     metrics.jsonl -> curves, scores and samples, in one pass and bounded memory
    curves.py      any number of points -> at most 600, spikes kept
    lengths.py     .idx files -> how long documents are
    story.py       what belongs together: a run, its datasets, their tokenizers
    charts.py  bars.py  markup.py    figures -> SVG and HTML
    run_sections.py  data_sections.py  repeat.py  page.py    stories -> the page
    serve.py       the page on a local port, made anew while a run goes on
    entry.py       `ramlet.report`

No stage knows of reports, and a report asks no stage for anything. The charts are plain SVG from our own code: a
plotting library would be the largest dependency of all, for six kinds of charts, and its pages bring a megabyte of
script that has to run before anything is seen.
"""
