"""One task, written by a good user of each: see `dev.benchmarks.training.task`."""
