"""`python -m dev.benchmarks.scale`: how fast jobs get their pods, and what that costs. See docs/benchmarks/scale.md."""
