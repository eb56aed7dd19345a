"""The dataset on disk: what the files hold, and everything that is done with them once they are written.

    checksum.py  manifest.py  ledger.py     dataset_metadata.json: read, check, write; its account of the input
    reader.py                               `ramlet.Dataset`: documents and ids, read and never mapped
    shard_check.py  verify.py               is every byte what the manifest says it is
    adopt.py  merge.py                      shards moved in by hand; several datasets into one
    export.py  export_hf.py                 the layouts of other trainers
    new_folder.py                           a result folder that is there whole or not at all
    unchanged.py                            that what is read for a while stays the same
    inspect.py                              figures and samples, for `ramlet data inspect`

The format, version 1:

    DATASET/
      dataset_metadata.json   the manifest; written last, so a folder without it is not finished
      tokenizer.json          what made the ids
      train/shard_00000.bin   ids without a header, little-endian uint16 or uint32; the end id after every document
      train/shard_00000.idx   little-endian uint64 without a header: where each document ends in the .bin, counted
                              in ids, the end id included
      val/shard_00000.bin ...

A shard holds whole documents, and shards are numbered from 0 in each split. In a packed dataset every
`sequence_length` ids are one sequence, filled up with `pad_id`, and the .idx has the ends of the pieces. No piece
crosses a sequence: a piece whose end lies beyond the sequence in which the one before it ended begins with the
next sequence, and what is between is padding.
"""
