"""Follow how far the training is, and what its time went into. Pure."""
