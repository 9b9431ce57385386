"""Atomic checkpoints, written in the background by stock torch.distributed.checkpoint."""
