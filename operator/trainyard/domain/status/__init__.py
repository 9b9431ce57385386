"""Compose the status that the operator writes. Pure."""
