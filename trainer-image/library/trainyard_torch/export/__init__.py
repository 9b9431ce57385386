"""Export of a trained model as files, each export with a record of its provenance."""
