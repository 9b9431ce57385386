"""Manifests and patches for queues and schedulers of others. Pure."""
