"""The dataset on disk: the files, and everything that is done with them once they are written.

    manifest.py  ledger.py                  dataset_metadata.json: read, check, write; the ledger of the input
    reader.py                               `ramlet.Dataset`: documents and ids, read without memory mapping
    texts.py                                the texts of documents, in pieces of bounded size
    shard_check.py  verify.py               checks every byte against the manifest
    adopt.py  merge.py                      shards moved in by hand; several datasets into one
    export/                                 the file formats of other trainers, one module each
    new_folder.py                           a result folder that appears only when it is complete
    unchanged.py                            whether a dataset changed while it was read
    inspect.py                              numbers and samples, for `ramlet data inspect`

The format, version 1:

    DATASET/
      dataset_metadata.json   the manifest; written last, so a folder without it is not finished
      tokenizer.json          the tokenizer of the ids
      train/shard_00000.bin   ids without a header, little-endian uint16 or uint32; the end id after every document
      train/shard_00000.idx   little-endian uint64 without a header: where each document ends in the .bin, counted
                              in ids, including the end id
      val/shard_00000.bin ...

A shard has whole documents, and shards are numbered from 0 in each split. In a packed dataset every `sequence_length`
ids are one sequence, padded with `pad_id`, and the .idx has the ends of the pieces. No piece crosses the end of a
sequence: a piece that ends in a later sequence than the previous one starts with that sequence, and the ids in between
are padding.
"""

TOKEN_BYTES = 500
"""Upper bound for a token of a loaded tokenizer; GPT-2's take 460."""
