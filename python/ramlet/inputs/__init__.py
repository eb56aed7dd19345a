"""Inputs as a user names them (files, folders, globs, standard input, addresses, the hub) -> files to read."""
