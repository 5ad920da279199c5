"""placet trains a plain PyTorch model on the machines you have."""
