"""Inputs as a user names them (files, folders, globs, standard input, addresses, datasets of the hub) -> files to read."""
