"""Measure one coordinator under the load of many agents."""
