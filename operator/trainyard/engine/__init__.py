"""The level-triggered core: which key is looked at, when, and by whom. Knows nothing of training."""
