"""Training on a cluster with stock PyTorch."""
