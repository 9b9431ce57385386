"""Decide what a job in a queue does, and what its Workload must hold. Pure."""
