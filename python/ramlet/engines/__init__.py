"""What computes, behind one contract. torch/: PyTorch, on CPUs and GPUs."""
