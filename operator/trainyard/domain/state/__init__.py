"""Read what is stored and observed into frozen views. Pure."""
