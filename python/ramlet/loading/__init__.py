"""Ids on disk, or text on its way to ids -> batches for training.

    loader.py          `ramlet.Loader`: datasets, packed ones, arrays, mixes of them
    tokens.py  npy.py  what a name stands for: a split of a dataset, a part of an array, as one stream of ids
    stream_loader.py   `ramlet.StreamLoader`: the same from text, tokenised on the way
    text_tokens.py     text files -> chunks of ids; stream_blocks.py: these -> blocks of sequences
    division.py        global batches -> those of a rank -> micro-batches
    batch.py           what the training loop gets
    loop.py            one loop at a time, and where it stands; read_ahead.py: the thread that reads what comes next

The order of examples and the reading of them is the native core's (`rust/loading/`).
"""
