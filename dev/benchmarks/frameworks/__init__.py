"""Recovery of every framework, beside the operator that people use for it today: `python -m dev.benchmarks.frameworks`."""
