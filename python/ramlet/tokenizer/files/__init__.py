"""Tokenizer files: one module a format, each with `read` and `write` where both make sense.

    tokenizer_json     HF's tokenizer.json: holds everything, and is what ramlet writes by itself
    vocab_merges       vocab.json + merges.txt, as GPT-2 was published: tokens and merges, no pattern
    tiktoken           .tiktoken: tokens and ranks, no pattern and no special tokens
    gpt2               GPT-2's published merges, from an installed package or downloaded once
    hub                files of a repository on the Hugging Face hub

A file that cannot be used is a TokenizerError that names the file and what is wrong with it.
"""
