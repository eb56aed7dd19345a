"""Tokenizers: training in bounded memory, the file formats of other libraries, encoding and decoding."""
