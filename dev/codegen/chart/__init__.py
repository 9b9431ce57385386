"""The values of the chart as a model, from which its schema is made: what the operator reads too is taken from the operator's own settings."""
