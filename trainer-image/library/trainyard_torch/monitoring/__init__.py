"""What a training tells of itself while it runs: how fast it is, and where its time goes."""
