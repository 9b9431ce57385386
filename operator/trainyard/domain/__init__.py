"""Decisions: a snapshot of a job and its pods in, a plan out. Pure: no I/O, no clock, no logging, no randomness."""
