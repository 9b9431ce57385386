"""Optimizers and learning rates for large batches."""
