"""What processes tell each other while they train: less of it, or less often."""
