"""One task, written by a good user of each: see `benchmarks.training.task`."""
