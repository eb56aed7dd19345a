"""Tokenizers: learned from text in bounded memory, read from and written to the formats of others, run."""
