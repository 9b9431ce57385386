"""Checkpoints that are whole or not there, and belong to the attempt that may go on from them."""
