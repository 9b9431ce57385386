"""Follow the progress of the training: steps, goodput, stragglers and hung ranks. Pure."""
