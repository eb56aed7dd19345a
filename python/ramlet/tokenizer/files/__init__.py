"""Tokenizer files: one module per format, each with `read` and `write` where both make sense.

    tokenizer_json     HF's tokenizer.json: has everything; ramlet's default
    vocab_merges       vocab.json + merges.txt, as GPT-2 was published: tokens and merges, no pattern
    tiktoken           .tiktoken: tokens and ranks, no pattern and no special tokens
    gpt2               GPT-2's published merges, from an installed package or downloaded once
    hub                files of a repository on the Hugging Face hub

A file that cannot be used raises a TokenizerError with its name and what is wrong with it.
"""
