"""Training, evaluation and generation with PyTorch: the one package that imports it."""
