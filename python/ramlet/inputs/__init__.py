"""Inputs as a user names them (files, folders, globs, standard input, URLs, hub datasets) -> files to read."""
