"""The training of each framework: a step of a tenth of a second, and a sum over all ranks. It runs unchanged under both systems."""
