"""Ids on disk, or text that is tokenized while it is read -> batches for training.

    loader.py          `ramlet.Loader`: datasets, packed or not, arrays, mixes of them
    tokens.py  npy.py  a split of a dataset or a part of an array, as one stream of ids
    stream_loader.py   `ramlet.StreamLoader`: the same from text, tokenized on the fly
    text_tokens.py     text files -> chunks of ids; stream_blocks.py: chunks -> blocks of sequences
    division.py        global batches -> those of a rank -> micro-batches
    batch.py           what the training loop gets
    resumable.py       what both loaders share: one loop at a time, its position, resuming
    read_ahead.py      the thread that reads ahead

The native core (`rust/loading/`) computes the order of examples and reads them.
"""
