"""Decide the size of the group. Pure."""
