"""Measures the training library and the agent on a GPU, beside plain torch. Needs what `make test-gpu` needs."""
