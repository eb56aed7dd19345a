"""`ramlet prepare`: text -> clean, deduplicated, tokenized shards. Not `prepare/`, which would hide `ramlet.prepare`."""
