"""Metrics of a running training: throughput, and where its time goes."""
