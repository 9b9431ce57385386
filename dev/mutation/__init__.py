"""Measure the unit tests by planted mistakes: `make mutation`, and docs/design/0024-mutation-run.md."""
