"""Hold names and public texts to the house's vocabulary and sentence length: `python -m dev.wordlint`."""
