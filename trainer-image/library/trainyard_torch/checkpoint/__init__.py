"""Checkpoints that are whole or passed over, written beside the training by stock torch.distributed.checkpoint."""
