"""`ramlet prepare`: text -> clean, deduplicated, tokenized shards. (`prepare/` would hide `ramlet.prepare`.)"""
