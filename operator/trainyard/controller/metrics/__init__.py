"""Collect the operator's metrics."""
